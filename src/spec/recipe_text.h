// Two of the visitors of a recipe's keys: the writer of TOML, and the list of keys for people. (The reader is in
// recipe.cc, the keys in recipe_fields.h.)
#pragma once
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "spec/recipe.h"
#include "spec/recipe_keys.h"
#include "spec/toml_text.h"

namespace sinter::spec {

// The names of an enumeration's values; of two for one value the first is written.
template <class E>
using ChoiceNames = std::vector<std::pair<const char*, E>>;

// What a number may be.
struct NumberRange {
  double low = 0;
  double high = 1e15;
};

// Writes every key as TOML.
class RecipeWriter {
 public:
  void section(const char* name) { text_ += fmt::format("{}[{}]\n", text_.empty() ? "" : "\n", name); }
  void value(const char* key, const std::string& v) { line(key, toml_quoted(v)); }
  void value(const char* key, bool v) { line(key, v ? "true" : "false"); }
  void value(const char* key, int64_t v, NumberRange = {}) { line(key, std::to_string(v)); }
  void value(const char* key, double v, NumberRange = {}) {
    std::string text = fmt::format("{}", v);
    if (text.find_first_of(".en") == std::string::npos) text += ".0";
    line(key, text);
  }
  template <class E>
  void choice(const char* key, E v, const ChoiceNames<E>& names) {
    for (const auto& [name, choice] : names) {
      if (choice == v) return line(key, toml_quoted(name));
    }
  }
  void strings(const char* key, const std::vector<std::string>& items) {
    std::vector<std::string> quoted;
    for (const std::string& item : items) quoted.push_back(toml_quoted(item));
    line(key, fmt::format("[{}]", fmt::join(quoted, ", ")));
  }
  void sources(const char* key, const std::vector<SourceRecipe>& items) {
    std::vector<std::string> parts;
    for (const SourceRecipe& s : items)
      parts.push_back(fmt::format("{{path = {}, weight = {:.17g}}}", toml_quoted(s.path), s.weight));
    line(key, fmt::format("[{}]", fmt::join(parts, ", ")));
  }
  const std::string& text() const { return text_; }

 private:
  void line(const char* key, const std::string& value) { text_ += fmt::format("{} = {}\n", key, value); }
  std::string text_;
};

// Lists every key with its type, default and range.
class KeyLister {
 public:
  void section(const char* name) { section_ = name; }
  void value(const char* key, const std::string& v) { add(key, "text", toml_quoted(v)); }
  void value(const char* key, bool v) { add(key, "true or false", v ? "true" : "false"); }
  void value(const char* key, int64_t v, NumberRange range = {}) { add(key, "whole number", std::to_string(v), range); }
  void value(const char* key, double v, NumberRange range = {}) { add(key, "number", fmt::format("{}", v), range); }
  template <class E>
  void choice(const char* key, E v, const ChoiceNames<E>& names) {
    std::vector<std::string> words;
    std::string chosen;
    for (const auto& [name, choice] : names) {
      words.push_back(name);
      if (choice == v && chosen.empty()) chosen = toml_quoted(name);
    }
    add(key, fmt::format("one of {}", fmt::join(words, ", ")), chosen);
  }
  void strings(const char* key, const std::vector<std::string>&) { add(key, "list of texts", "[]"); }
  void sources(const char* key, const std::vector<SourceRecipe>&) { add(key, "path or list", "[]"); }
  std::vector<RecipeKey> keys;

 private:
  void add(const char* key, std::string type, std::string value, std::optional<NumberRange> range = {}) {
    std::string text;
    if (range)
      text =
          range->high >= 1e15 ? fmt::format("from {}", range->low) : fmt::format("{} to {}", range->low, range->high);
    keys.push_back({section_, key, std::move(type), std::move(value), text, std::string(key_meaning(section_, key))});
  }
  std::string section_;
};

}  // namespace sinter::spec
