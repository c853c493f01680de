// Expressions of the template language, parsed by descent in Jinja's order of precedence.
#pragma once
#include <initializer_list>

#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/parser.h"

namespace sinter::tokenizer::jinja {

class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, const std::string& template_name)
      : tokens_(std::move(tokens)), name_(template_name) {}

 protected:
  // Counts levels of nested syntax, so that hostile templates end in an error and not in a stack overflow.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser_.level_; }
    Level(const Level&) = delete;

   private:
    ExpressionParser& parser_;
  };

  ExprPtr parse_expression(bool with_condition = true);
  // One expression, or several with commas between them as a tuple. Stops before the names in `ends`.
  ExprPtr parse_tuple(bool with_condition = true, std::initializer_list<std::string_view> ends = {});
  // Filters without the value they apply to, as in {% filter upper|trim %}.
  ExprPtr parse_bare_filters();
  CallArguments parse_arguments();
  ExprPtr parse_postfix_chain(ExprPtr node);  // .a [b] (c)
  ExprPtr parse_primary();

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_op(std::string_view op) const { return current().kind == TokenKind::op && current().text == op; }
  bool is_name(std::string_view name) const { return current().kind == TokenKind::name && current().text == name; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_identifier();
  [[noreturn]] void fail(const std::string& message) const { fail_at(name_, current().line, message); }
  [[noreturn]] void fail_found(const std::string& expected) const;

  std::vector<Token> tokens_;
  const std::string& name_;
  size_t at_ = 0;
  int level_ = 0;

 private:
  ExprPtr make(ExprKind kind, int line, std::string name = "") const;
  ExprPtr with_items(ExprPtr node, std::vector<ExprPtr> items) const;
  void attach(Expr& node, CallArguments arguments) const;
  ExprPtr parse_condition();
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_comparison();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters = true);
  ExprPtr parse_left(ExprPtr (ExpressionParser::*operand)(), std::initializer_list<std::string_view> ops);
  ExprPtr parse_number();
  ExprPtr parse_brackets();
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_filter_chain(ExprPtr node);
  ExprPtr parse_filter(ExprPtr node);
  ExprPtr parse_test(ExprPtr node);
  std::string parse_dotted_name();
};

}  // namespace sinter::tokenizer::jinja
