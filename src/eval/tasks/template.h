// One template of a task file: Jinja, with the white space and the strictness of lm-evaluation-harness, evaluated over
// one document.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/parser.h"
#include "tokenizer/jinja/value.h"

namespace sinter::eval {

using TaskDocument = tokenizer::jinja::Value;  // a dict of a document's fields
using tokenizer::jinja::Value;

class Template {
 public:
  Template() = default;
  // `name` (file and key) stands in errors. Throws base::Error where the source does not parse.
  Template(std::string source, std::string name);
  // A value that is the same for every document.
  explicit Template(Value constant) : constant_(std::move(constant)), is_set_(true) {}

  bool is_set() const { return is_set_; }
  const std::string& source() const { return source_; }

  // A source that is exactly a field's name gives the field unchanged, one that is exactly "{{ expression }}" gives the
  // expression's value, every other the text it renders to. A field that is missing is an error that names it.
  Value evaluate(const TaskDocument& document, const std::vector<std::pair<std::string, Value>>& more = {}) const;
  // The same as text (numbers as Python prints them).
  std::string text(const TaskDocument& document, const std::vector<std::pair<std::string, Value>>& more = {}) const;
  // The text the source renders to, whatever it is.
  std::string render(const TaskDocument& document, const std::vector<std::pair<std::string, Value>>& more = {}) const;

 private:
  std::string run(const tokenizer::jinja::Statements& body, const TaskDocument& document,
                  const std::vector<std::pair<std::string, Value>>& more, Value* kept) const;

  std::string source_, name_;
  std::shared_ptr<const tokenizer::jinja::Statements> body_, value_body_;  // the second keeps the expression's value
  Value constant_ = Value();
  bool is_set_ = false;
};

// Small helpers for values.
std::string value_text(const Value& value);  // as Python's str()
bool values_equal(const Value& a, const Value& b);
const Value* find_field(const TaskDocument& document, std::string_view key);
std::vector<std::string> text_list(const Value& value);  // items as text; a list is needed, else base::Error
// A list or dict of one's own: what a template made dies with its rendering.
Value clone_value(const Value& value);

}  // namespace sinter::eval
