// A value of a JSON file together with where it stands, so that every complaint names the file and the key.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/threads.h"

namespace sinter::tokenizer {

// Does not own the value. Cheap to copy except for the path string.
class JsonView {
 public:
  JsonView(const nlohmann::json& value, std::string file, std::string key = "")
      : value_(&value), file_(std::move(file)), key_(std::move(key)) {}

  bool is_null() const;
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;

  // Each throws base::Error naming the file and key when the value is of another type or out of range.
  const std::string& string() const;
  bool boolean() const;
  int64_t integer(int64_t low, int64_t high) const;
  double number() const;
  size_t size() const;                   // of an array
  JsonView element(size_t index) const;  // of an array
  JsonView at(std::string_view key) const;
  std::optional<JsonView> find(std::string_view key) const;  // absent or null: nothing
  bool boolean_or(std::string_view key, bool fallback) const;
  std::string string_or(std::string_view key, std::string_view fallback) const;
  int64_t integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  void for_each_member(base::FunctionRef<void(const std::string& name, const JsonView& value)> visit) const;

  // Throws when the object has a key that is not listed: it might change the answer.
  void check_keys(std::initializer_list<const char*> known) const;
  // Throws "<file>: <key>: <message>".
  [[noreturn]] void fail(std::string_view message) const;

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return file_; }
  std::string child_key(std::string_view name) const;

 private:
  const nlohmann::json* value_;
  std::string file_, key_;
};

}  // namespace sinter::tokenizer
