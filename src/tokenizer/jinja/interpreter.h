// Walks the tree of a template and writes its output.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/jinja/parser.h"
#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {

struct Rendered {
  std::string text;
  // Byte ranges of `text` inside {% generation %} blocks: what the assistant says, for loss masks.
  std::vector<std::pair<size_t, size_t>> generated;
};

class Interpreter : public Runtime {
 public:
  // `name` stands in errors. Variables are the template's globals besides the functions every template has.
  Interpreter(std::string name, const Limits& limits) : Runtime(limits), name_(std::move(name)) {}
  // Throws TemplateError. An object renders once.
  Rendered render(const Statements& body, const std::vector<std::pair<std::string, Value>>& variables);

  // Printing an undefined value is an error (Jinja's StrictUndefined) instead of nothing.
  bool is_strict = false;

 private:
  // One level of variables: the template, a macro call, one pass of a loop.
  struct Scope : Object {
    std::unordered_map<std::string, Value> variables;
    std::shared_ptr<Scope> parent;
    void clear() override {
      variables.clear();
      parent.reset();
    }
  };
  using ScopePtr = std::shared_ptr<Scope>;
  enum class Flow { normal, broken, continued };
  class Level;       // counts nested evaluations
  class InnerScope;  // a scope for the life of a C++ block
  class Capture;     // collects the output for the life of a C++ block

  Flow run(const Statements& body);
  Flow run(const Statement& statement);
  Flow run_condition(const Statement& statement);
  Flow run_loop(const Statement& statement, const Value& iterable, int depth);
  void run_set_block(const Statement& statement);
  void run_call_block(const Statement& statement);
  Flow run_with(const Statement& statement);
  void run_generation(const Statement& statement);
  std::string capture(const Statements& body);
  void assign(const AssignTarget& target, const Value& value);
  Value make_macro(const Statement& statement, std::string name);
  Value call_macro(const Statement& statement, const std::string& name, const ScopePtr& scope, Arguments& arguments);
  void bind_parameters(const Statement& statement, const std::string& name, Arguments& arguments);

  Value evaluate(const Expr& expr);
  Value evaluate_name(const std::string& name);
  Value evaluate_dict(const Expr& expr);
  Value evaluate_negate(const Expr& expr);
  Value evaluate_binary(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  Value evaluate_comparison(const Expr& expr);
  Value evaluate_condition(const Expr& expr);
  Value evaluate_call(const Expr& expr);
  Value evaluate_slice(const Expr& expr);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs);
  Arguments evaluate_arguments(const CallArguments& given);
  Value apply_filters(const Expr& expr, const Value& innermost);
  void write(const std::string& text);
  void write_value(const Value& value);

  std::string name_;
  int line_ = 1;   // of the node being evaluated
  int depth_ = 0;  // of nested evaluations
  std::shared_ptr<Dict> globals_;
  ScopePtr scope_;
  std::string* out_ = nullptr;
  Rendered rendered_;
};

}  // namespace sinter::tokenizer::jinja
