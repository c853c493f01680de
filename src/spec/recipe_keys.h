// Every key of a recipe for people: what `sinter train --keys` prints, docs/recipe.md holds and templates carry.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinter::spec {

struct RecipeKey {
  std::string section, name;
  std::string type;           // "number", "whole number", "text", "true or false", "one of a, b", "list"
  std::string default_value;  // as TOML
  std::string range;          // "1 to 20", or ""
  std::string meaning;
};

// In the order of the recipe. The types, defaults and ranges are those that the reader uses.
std::vector<RecipeKey> recipe_keys();

// What a key means, in one line; "" for a key that has none (a test finds it).
std::string_view key_meaning(std::string_view section, std::string_view name);

// "; did you mean 'optimizer.lr'?" for a key that stands in another section, or is given without one; "" else.
std::string other_section_hint(std::string_view name);

// A commented recipe to start from: "small" (a laptop's CPU), "gpu" (one GPU) or "cluster" (many ranks).
std::string recipe_template(const std::string& kind);
std::vector<std::string> template_names();

}  // namespace sinter::spec
