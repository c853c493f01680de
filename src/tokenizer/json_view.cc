#include "tokenizer/json_view.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace sinter::tokenizer {

bool JsonView::is_null() const { return value_->is_null(); }
bool JsonView::is_string() const { return value_->is_string(); }
bool JsonView::is_array() const { return value_->is_array(); }
bool JsonView::is_object() const { return value_->is_object(); }

void JsonView::fail(std::string_view message) const {
  base::fail("'{}': {}{}{}", file_, key_, key_.empty() ? "" : ": ", message);
}

std::string JsonView::child_key(std::string_view name) const {
  return key_.empty() ? std::string(name) : fmt::format("{}.{}", key_, name);
}

const std::string& JsonView::string() const {
  if (!value_->is_string()) fail(fmt::format("found {}, expected a string", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

bool JsonView::boolean() const {
  if (!value_->is_boolean()) fail(fmt::format("found {}, expected true or false", value_->type_name()));
  return value_->get<bool>();
}

int64_t JsonView::integer(int64_t low, int64_t high) const {
  if (!value_->is_number_integer()) fail(fmt::format("found {}, expected a whole number", value_->type_name()));
  const bool fits = !value_->is_number_unsigned() || value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
  const int64_t number = fits ? value_->get<int64_t>() : INT64_MAX;
  if (!fits || number < low || number > high)
    fail(fmt::format("found {}, expected {} to {}", value_->dump(), low, high));
  return number;
}

double JsonView::number() const {
  if (!value_->is_number()) fail(fmt::format("found {}, expected a number", value_->type_name()));
  return value_->get<double>();
}

size_t JsonView::size() const {
  if (!value_->is_array()) fail(fmt::format("found {}, expected a list", value_->type_name()));
  return value_->size();
}

JsonView JsonView::element(size_t index) const { return {(*value_)[index], file_, fmt::format("{}[{}]", key_, index)}; }

JsonView JsonView::at(std::string_view key) const {
  if (!value_->is_object())
    fail(fmt::format("found {}, expected an object with the key '{}'", value_->type_name(), key));
  auto it = value_->find(key);
  if (it == value_->end()) fail(fmt::format("the key '{}' is missing", key));
  return {*it, file_, child_key(key)};
}

std::optional<JsonView> JsonView::find(std::string_view key) const {
  if (!value_->is_object()) fail(fmt::format("found {}, expected an object", value_->type_name()));
  auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonView{*it, file_, child_key(key)};
}

bool JsonView::boolean_or(std::string_view key, bool fallback) const {
  auto member = find(key);
  return member ? member->boolean() : fallback;
}

std::string JsonView::string_or(std::string_view key, std::string_view fallback) const {
  auto member = find(key);
  return member ? member->string() : std::string(fallback);
}

int64_t JsonView::integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
  auto member = find(key);
  return member ? member->integer(low, high) : fallback;
}

void JsonView::for_each_member(base::FunctionRef<void(const std::string&, const JsonView&)> visit) const {
  if (!value_->is_object()) fail(fmt::format("found {}, expected an object", value_->type_name()));
  for (auto it = value_->begin(); it != value_->end(); ++it) visit(it.key(), {it.value(), file_, child_key(it.key())});
}

void JsonView::check_keys(std::initializer_list<const char*> known) const {
  if (!value_->is_object()) fail(fmt::format("found {}, expected an object", value_->type_name()));
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    if (std::find(known.begin(), known.end(), it.key()) != known.end()) continue;
    std::vector<std::string> names(known.begin(), known.end());
    fail(fmt::format("the key '{}' is not supported{}", it.key(), base::did_you_mean(it.key(), names)));
  }
}

}  // namespace sinter::tokenizer
