#include "spec/recipe.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "spec/hf_config.h"
#include "spec/recipe_check.h"
#include "spec/recipe_fields.h"
#include "spec/recipe_keys.h"
#include "spec/recipe_text.h"
#include "spec/toml_text.h"

namespace sinter::spec {
namespace {

using base::fail;

// Fills a recipe from a TOML table; finish() refuses what no key asked for.
class Reader {
 public:
  Reader(const toml::table& root, std::string origin) : root_(root), origin_(std::move(origin)) {}

  void section(const char* name) {
    check_keys();
    section_ = name;
    section_names_.push_back(name);
    keys_.clear();
    const toml::node* node = root_.get(name);
    SINTER_CHECK(!node || node->is_table(), "{}: '{}' must be a section, as in [{}]", origin_, name, name);
    table_ = node ? node->as_table() : nullptr;
  }
  void value(const char* key, std::string& out) {
    if (const toml::node* node = take(key)) {
      SINTER_CHECK(node->is_string(), "{} is {}; expected a string", where(key), found(*node));
      out = **node->as_string();
    }
  }
  void value(const char* key, bool& out) {
    if (const toml::node* node = take(key)) {
      SINTER_CHECK(node->is_boolean(), "{} is {}; expected true or false", where(key), found(*node));
      out = **node->as_boolean();
    }
  }
  void value(const char* key, double& out, NumberRange range = {}) {
    if (const toml::node* node = take(key)) out = number(where(key), *node, range);
  }
  void value(const char* key, int64_t& out, NumberRange range = {}) {
    if (const toml::node* node = take(key)) {
      double number = this->number(where(key), *node, range);
      SINTER_CHECK(number == std::floor(number), "{} is {}; expected a whole number", where(key), number);
      out = static_cast<int64_t>(number);
    }
  }
  template <class E>
  void choice(const char* key, E& out, const ChoiceNames<E>& names) {
    const toml::node* node = take(key);
    if (!node) return;
    SINTER_CHECK(node->is_string(), "{} must be a string", where(key));
    const std::string text = **node->as_string();
    std::vector<std::string> known;
    for (const auto& [name, choice] : names) {
      if (text == name) {
        out = choice;
        return;
      }
      known.push_back(name);
    }
    fail("{} is '{}'; expected one of {}{}", where(key), text, fmt::join(known, ", "), base::did_you_mean(text, known));
  }
  void strings(const char* key, std::vector<std::string>& out) {
    const toml::node* node = take(key);
    if (!node) return;
    out.clear();
    if (node->is_string()) {
      out.push_back(**node->as_string());
      return;
    }
    SINTER_CHECK(node->is_array(), "{} must be a string or a list of strings", where(key));
    for (const toml::node& item : *node->as_array()) {
      SINTER_CHECK(item.is_string(), "{} must hold strings only", where(key));
      out.push_back(**item.as_string());
    }
  }
  void sources(const char* key, std::vector<SourceRecipe>& out) {
    const toml::node* node = take(key);
    if (!node) return;
    out.clear();
    if (const toml::array* list = node->as_array()) {
      for (const toml::node& item : *list) out.push_back(source(key, item));
    } else {
      out.push_back(source(key, *node));
    }
  }
  void finish() {
    check_keys();
    for (const auto& [name, node] : root_) {
      std::string text(name.str());
      SINTER_CHECK(std::find(section_names_.begin(), section_names_.end(), text) != section_names_.end(),
                   "{}: there is no section [{}]{}", origin_, text, base::did_you_mean(text, section_names_));
    }
  }

 private:
  std::string where(const char* key) const { return fmt::format("{}: {}.{}", origin_, section_, key); }
  const toml::node* take(const char* key) {
    keys_.push_back(key);
    return table_ ? table_->get(key) : nullptr;
  }
  // What is said with so many digits is no number to TOML, and comes as text.
  static bool is_digits(const toml::node& node) {
    const auto text = node.value_exact<std::string>();
    return text && !text->empty() && text->find_first_not_of("0123456789") == std::string::npos;
  }
  // A value of the wrong kind, for people.
  static std::string found(const toml::node& node) {
    if (const auto text = node.value_exact<std::string>()) return "'" + *text + "'";
    if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
    if (const auto number = node.value<double>()) return fmt::format("{}", *number);
    return node.is_array() ? "a list" : node.is_table() ? "a table" : "a date or time";
  }
  double number(const std::string& place, const toml::node& node, NumberRange range) const {
    SINTER_CHECK(node.is_number(), "{} is {}; expected a number{}", place, found(node),
                 is_digits(node) ? " below 2^63" : "");
    // toml++ gives no double for a whole number that a double cannot hold.
    const auto whole = node.value_exact<int64_t>();
    const double value = whole ? static_cast<double>(*whole) : node.value<double>().value_or(std::nan(""));
    constexpr double kMostWhole = 1e15;  // doubles still tell neighbours apart there
    SINTER_CHECK(!whole || std::abs(value) <= kMostWhole, "{} is {}; expected {} to {}", place, *whole,
                 std::max(range.low, -kMostWhole), std::min(range.high, kMostWhole));
    SINTER_CHECK(value >= range.low && value <= range.high, "{} is {}; expected {} to {}", place, value, range.low,
                 range.high);
    return value;
  }
  SourceRecipe source(const char* key, const toml::node& node) const {
    SourceRecipe out;
    if (node.is_string()) {
      out.path = **node.as_string();
      return out;
    }
    SINTER_CHECK(node.is_table(), "{}: each source is a path or {{path = \"...\", weight = 1.0}}", where(key));
    const std::vector<std::string> known{"path", "weight"};
    for (const auto& [name, value] : *node.as_table()) {
      std::string text(name.str());
      if (text == "path") {
        SINTER_CHECK(value.is_string(), "{}: path must be a string", where(key));
        out.path = **value.as_string();
      } else if (text == "weight") {
        out.weight = number(where(key) + ": a source's weight", value, {1e-9, 1e9});
      } else {
        fail("{}: a source has no key '{}'{}", where(key), text, base::did_you_mean(text, known));
      }
    }
    SINTER_CHECK(!out.path.empty(), "{}: a source has no path", where(key));
    return out;
  }
  void check_keys() const {
    if (!table_) return;
    for (const auto& [name, node] : *table_) {
      std::string text(name.str());
      const std::string hint = base::did_you_mean(text, keys_);
      SINTER_CHECK(std::find(keys_.begin(), keys_.end(), text) != keys_.end(), "{}: [{}] has no key '{}'{}", origin_,
                   section_, text, hint.empty() ? other_section_hint(text) : hint);
    }
  }

  const toml::table& root_;
  std::string origin_, section_;
  const toml::table* table_ = nullptr;
  std::vector<std::string> keys_, section_names_;
};

toml::table parse_toml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    std::string what(e.description());  // "Error while parsing key-value pair: expected ..."
    if (constexpr std::string_view kPrefix = "Error while parsing "; what.starts_with(kPrefix))
      what.erase(0, kPrefix.size());
    fail("'{}' line {} is not TOML: {}{}", origin, e.source().begin.line, what,
         origin.ends_with(".toml") ? "" : "; expected a recipe, such as `sinter train --template small` prints");
  }
}

// "section.key=value" into the table; a value that is not TOML on its own is a bare string.
void apply_override(toml::table& root, const std::string& text) {
  size_t equals = text.find('='), dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 >= equals)
    base::fail_usage("'{}' is not of the form section.key=value, such as train.steps=100{}", text,
                     other_section_hint(text.substr(0, equals)));
  const std::string section = text.substr(0, dot), key = text.substr(dot + 1, equals - dot - 1);
  const std::string value = text.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("v = " + value);
  } catch (const toml::parse_error& e) {
    if (!value.empty() && std::string_view("[{\"'").find(value[0]) != std::string_view::npos)  // no bare word
      base::fail_usage("'{}' is not TOML: {}", text, e.description());
    parsed.insert_or_assign("v", value);
  }
  if (!root.contains(section)) root.insert(section, toml::table{});
  toml::table* table = root.get(section)->as_table();
  SINTER_CHECK(table, "override '{}': '{}' is not a section of the recipe", text, section);
  table->insert_or_assign(key, *parsed.get("v"));
}

// train.steps and train.tokens say the same thing: an override of one takes the place of the other in the file.
void drop_other_length(toml::table& root, const std::vector<std::string>& overrides) {
  auto is_given = [&](std::string_view key) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& o) { return o.starts_with(key); });
  };
  toml::table* train = root["train"].as_table();
  const bool steps = is_given("train.steps="), tokens = is_given("train.tokens=");
  if (train && steps != tokens) train->erase(steps ? "tokens" : "steps");
}

Recipe read_recipe(const toml::table& root, const std::string& place) {
  Recipe recipe;
  Reader reader(root, place);
  visit_recipe(reader, recipe);
  reader.finish();
  return recipe;
}

bool is_readable(const toml::table& root, const std::string& place) {
  try {
    check_recipe(read_recipe(root, place), place);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

}  // namespace

Recipe parse_recipe(std::string_view text, const std::string& origin, const std::vector<std::string>& overrides) {
  const toml::table file = parse_toml(text, origin);
  toml::table root = file;
  for (const std::string& override_text : overrides) apply_override(root, override_text);
  drop_other_length(root, overrides);
  // What is wrong may be in either.
  const std::string place = overrides.empty() ? origin : fmt::format("{} with {}", origin, fmt::join(overrides, " "));
  Recipe recipe;
  try {
    recipe = read_recipe(root, place);
    check_recipe(recipe, place);
  } catch (const base::Error& e) {
    if (!overrides.empty() && is_readable(file, origin)) base::fail_usage("{}", e.what());  // so it is an override
    throw;
  }
  return recipe;
}

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_recipe(base::read_file(path), path, overrides);
}

std::vector<RecipeKey> recipe_keys() {
  Recipe defaults;
  KeyLister lister;
  visit_recipe(lister, defaults);
  return lister.keys;
}

std::string recipe_to_toml(const Recipe& recipe) {
  Recipe copy = recipe;
  RecipeWriter writer;
  visit_recipe(writer, copy);
  return writer.text();
}

}  // namespace sinter::spec
