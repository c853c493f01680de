// The syntax tree of a template, and the parser that builds it.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/value.h"

namespace sinter::tokenizer::jinja {

enum class ExprKind {
  constant,    // value
  name,        // name
  list,        // items
  tuple,       // items
  dict,        // items: key, value, key, value, ...
  negate,      // items[0]; also unary plus: name "+" or "-", and "not"
  binary,      // items[0] name items[1]: arithmetic, "and", "or"
  concat,      // items joined by ~
  comparison,  // items[0] ops[0] items[1] ops[1] ...
  condition,   // items[0] if items[1] else items[2] (which may be null)
  filter,      // items[0] | name(arguments); items[0] is null inside {% filter %}
  test,        // items[0] is name(arguments)
  attribute,   // items[0].name
  item,        // items[0][items[1]]
  slice,       // items[0][items[1]:items[2]:items[3]], each bound may be null
  call,        // items[0](arguments)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr list, dict;  // *list, **dict; may be null
};

struct Expr {
  ExprKind kind = ExprKind::constant;
  int line = 1;
  int depth = 1;  // levels of the tree from here down
  std::string name;
  Value value;
  std::vector<ExprPtr> items;
  std::vector<std::string> ops;
  CallArguments arguments;
};

// What {% set %} and {% for %} assign to: a name, a namespace's attribute, or several targets.
struct AssignTarget {
  std::string name, attribute;
  std::vector<AssignTarget> parts;
  bool is_tuple = false;
};

enum class StatementKind {
  text,          // text
  output,        // expr
  condition,     // branches (a null test is the else)
  loop,          // target in expr if filter: body, else_body
  set,           // target = expr
  set_block,     // target = body, through the filter in expr (may be null)
  macro,         // text(parameters): body
  call_block,    // body given to the call in expr as caller(parameters)
  filter_block,  // body through the filter in expr
  with,          // assignments, body
  generation,    // body, marked as the assistant's
  break_loop,
  continue_loop,
};

struct Statement;
using Statements = std::vector<std::unique_ptr<Statement>>;

struct Branch {
  ExprPtr test;
  Statements body;
};

struct MacroParameter {
  std::string name;
  ExprPtr standard;  // default value; may be null
};

struct Statement {
  StatementKind kind = StatementKind::text;
  int line = 1;
  std::string text;
  ExprPtr expr, filter;
  AssignTarget target;
  std::vector<Branch> branches;
  std::vector<std::pair<AssignTarget, ExprPtr>> assignments;
  std::vector<MacroParameter> parameters;
  Statements body, else_body;
  bool is_recursive = false;
  // A macro's body uses varargs, kwargs or caller: only then does a call accept such arguments.
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;
};

// Throws TemplateError naming the template, the line and what was found.
Statements parse_template(std::string_view source, const std::string& template_name, const WhiteSpace& space = {});

}  // namespace sinter::tokenizer::jinja
