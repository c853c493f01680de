#include "tokenizer/jinja/expression_parser.h"

#include <algorithm>
#include <charconv>

namespace sinter::tokenizer::jinja {
namespace {

constexpr int kMaxLevels = 150;     // of nested syntax
constexpr int kMaxTreeDepth = 300;  // of one expression; a + b + c is as deep as it is long

}  // namespace

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.level_ <= kMaxLevels) return;
  --parser_.level_;
  parser_.fail(fmt::format("the template nests deeper than {} levels", kMaxLevels));
}

bool ExpressionParser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail_found(fmt::format("'{}'", op));
}

std::string ExpressionParser::expect_identifier() {
  if (current().kind != TokenKind::name) fail_found("a name");
  return take().text;
}

void ExpressionParser::fail_found(const std::string& expected) const {
  fail(fmt::format("found {}, expected {}", describe(current()), expected));
}

ExprPtr ExpressionParser::make(ExprKind kind, int line, std::string name) const {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->line = line;
  node->name = std::move(name);
  return node;
}

ExprPtr ExpressionParser::with_items(ExprPtr node, std::vector<ExprPtr> items) const {
  for (const ExprPtr& item : items) {
    if (item) node->depth = std::max(node->depth, item->depth + 1);
  }
  if (node->depth > kMaxTreeDepth) fail(fmt::format("an expression has more than {} levels", kMaxTreeDepth));
  node->items = std::move(items);
  return node;
}

void ExpressionParser::attach(Expr& node, CallArguments arguments) const {
  auto count = [&](const ExprPtr& argument) {
    if (argument) node.depth = std::max(node.depth, argument->depth + 1);
  };
  for (const ExprPtr& argument : arguments.positional) count(argument);
  for (const auto& [name, argument] : arguments.named) count(argument);
  count(arguments.list);
  count(arguments.dict);
  if (node.depth > kMaxTreeDepth) fail(fmt::format("an expression has more than {} levels", kMaxTreeDepth));
  node.arguments = std::move(arguments);
}

namespace {

template <class... Nodes>
std::vector<ExprPtr> nodes(Nodes... given) {
  std::vector<ExprPtr> list;
  (list.push_back(std::move(given)), ...);
  return list;
}

}  // namespace

ExprPtr ExpressionParser::parse_expression(bool with_condition) {
  Level level(*this);
  return with_condition ? parse_condition() : parse_or();
}

ExprPtr ExpressionParser::parse_condition() {
  int line = current().line;
  ExprPtr value = parse_or();
  while (skip_name("if")) {
    ExprPtr test = parse_or(), otherwise;
    if (skip_name("else")) {
      Level level(*this);
      otherwise = parse_condition();
    }
    value = with_items(make(ExprKind::condition, line), nodes(std::move(value), std::move(test), std::move(otherwise)));
  }
  return value;
}

ExprPtr ExpressionParser::parse_or() {
  ExprPtr left = parse_and();
  while (is_name("or")) {
    int line = take().line;
    left = with_items(make(ExprKind::binary, line, "or"), nodes(std::move(left), parse_and()));
  }
  return left;
}

ExprPtr ExpressionParser::parse_and() {
  ExprPtr left = parse_not();
  while (is_name("and")) {
    int line = take().line;
    left = with_items(make(ExprKind::binary, line, "and"), nodes(std::move(left), parse_not()));
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  Level level(*this);
  int line = take().line;
  return with_items(make(ExprKind::negate, line, "not"), nodes(parse_not()));
}

ExprPtr ExpressionParser::parse_comparison() {
  int line = current().line;
  std::vector<ExprPtr> items = nodes(parse_sum());
  std::vector<std::string> ops;
  for (;;) {
    static constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
    if (current().kind == TokenKind::op &&
        std::find(std::begin(kOps), std::end(kOps), current().text) != std::end(kOps)) {
      ops.push_back(take().text);
    } else if (skip_name("in")) {
      ops.emplace_back("in");
    } else if (is_name("not") && ahead(1).kind == TokenKind::name && ahead(1).text == "in") {
      take();
      take();
      ops.emplace_back("not in");
    } else {
      break;
    }
    items.push_back(parse_sum());
  }
  if (ops.empty()) return std::move(items[0]);
  ExprPtr node = make(ExprKind::comparison, line);
  node->ops = std::move(ops);
  return with_items(std::move(node), std::move(items));
}

ExprPtr ExpressionParser::parse_left(ExprPtr (ExpressionParser::*operand)(),
                                     std::initializer_list<std::string_view> ops) {
  ExprPtr left = (this->*operand)();
  while (current().kind == TokenKind::op && std::find(ops.begin(), ops.end(), current().text) != ops.end()) {
    Token op = take();
    left = with_items(make(ExprKind::binary, op.line, op.text), nodes(std::move(left), (this->*operand)()));
  }
  return left;
}

ExprPtr ExpressionParser::parse_sum() { return parse_left(&ExpressionParser::parse_concat, {"+", "-"}); }

ExprPtr ExpressionParser::parse_concat() {
  int line = current().line;
  std::vector<ExprPtr> items = nodes(parse_product());
  while (skip_op("~")) items.push_back(parse_product());
  if (items.size() == 1) return std::move(items[0]);
  return with_items(make(ExprKind::concat, line), std::move(items));
}

ExprPtr ExpressionParser::parse_product() { return parse_left(&ExpressionParser::parse_power, {"*", "/", "//", "%"}); }

ExprPtr ExpressionParser::parse_power() {
  ExprPtr left = parse_unary();
  while (is_op("**")) {
    int line = take().line;
    left = with_items(make(ExprKind::binary, line, "**"), nodes(std::move(left), parse_unary()));
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    Level level(*this);
    Token sign = take();
    node = with_items(make(ExprKind::negate, sign.line, sign.text), nodes(parse_unary(false)));
  } else {
    node = parse_primary();
  }
  node = parse_postfix_chain(std::move(node));
  return with_filters ? parse_filter_chain(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::parse_primary() {
  int line = current().line;
  switch (current().kind) {
    case TokenKind::name: {
      std::string name = take().text;
      ExprPtr node = make(ExprKind::constant, line);
      if (name == "true" || name == "True") {
        node->value = Value(true);
      } else if (name == "false" || name == "False") {
        node->value = Value(false);
      } else if (name == "none" || name == "None") {
        node->value = Value::none();
      } else {
        node->kind = ExprKind::name;
        node->name = std::move(name);
      }
      return node;
    }
    case TokenKind::string: {
      std::string text;
      while (current().kind == TokenKind::string) text += take().text;  // 'a' 'b' is 'ab'
      ExprPtr node = make(ExprKind::constant, line);
      node->value = Value(std::move(text));
      return node;
    }
    case TokenKind::integer:
    case TokenKind::number:
      return parse_number();
    case TokenKind::op:
      if (is_op("(") || is_op("[") || is_op("{")) return parse_brackets();
      [[fallthrough]];
    default:
      fail_found("a value");
  }
}

ExprPtr ExpressionParser::parse_number() {
  const Token& token = current();
  ExprPtr node = make(ExprKind::constant, token.line);
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.kind == TokenKind::number) {
    double number = 0;
    std::from_chars(begin, end, number);
    node->value = Value(number);
  } else {
    bool is_hex = token.text.size() > 1 && (token.text[1] == 'x' || token.text[1] == 'X');
    int64_t number = 0;
    auto result = std::from_chars(begin + (is_hex ? 2 : 0), end, number, is_hex ? 16 : 10);
    if (result.ec != std::errc() || result.ptr != end)
      fail(fmt::format("'{}' is not a number this program holds", token.text));
    node->value = Value(number);
  }
  take();
  return node;
}

ExprPtr ExpressionParser::parse_brackets() {
  Level level(*this);
  Token open = take();
  if (open.text == "(") {
    ExprPtr inner = is_op(")") ? make(ExprKind::tuple, open.line) : parse_tuple();
    expect_op(")");
    return inner;
  }
  bool is_dict = open.text == "{";
  std::string_view close = is_dict ? "}" : "]";
  std::vector<ExprPtr> items;
  while (!is_op(close)) {
    if (!items.empty()) {
      expect_op(",");
      if (is_op(close)) break;
    }
    items.push_back(parse_expression());
    if (!is_dict) continue;
    expect_op(":");
    items.push_back(parse_expression());
  }
  expect_op(close);
  return with_items(make(is_dict ? ExprKind::dict : ExprKind::list, open.line), std::move(items));
}

ExprPtr ExpressionParser::parse_tuple(bool with_condition, std::initializer_list<std::string_view> ends) {
  int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  for (;;) {
    bool at_end =
        current().kind == TokenKind::block_end || current().kind == TokenKind::variable_end || is_op(")") ||
        (current().kind == TokenKind::name && std::find(ends.begin(), ends.end(), current().text) != ends.end());
    if (at_end && !items.empty()) break;
    items.push_back(parse_expression(with_condition));
    if (!skip_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) return std::move(items[0]);
  return with_items(make(ExprKind::tuple, line), std::move(items));
}

ExprPtr ExpressionParser::parse_postfix_chain(ExprPtr node) {
  for (;;) {
    if (is_op(".") || is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_op("(")) {
      int line = current().line;
      CallArguments arguments = parse_arguments();
      node = with_items(make(ExprKind::call, line), nodes(std::move(node)));
      attach(*node, std::move(arguments));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr node) {
  Token open = take();
  if (open.text == ".") {
    if (current().kind == TokenKind::name) {
      return with_items(make(ExprKind::attribute, open.line, take().text), nodes(std::move(node)));
    }
    if (current().kind != TokenKind::integer) fail_found("a name or a number after '.'");
    return with_items(make(ExprKind::item, open.line), nodes(std::move(node), parse_number()));
  }
  ExprPtr bounds[3];
  int num_colons = 0;
  if (!is_op(":")) bounds[0] = parse_tuple();
  while (num_colons < 2 && skip_op(":")) {
    ++num_colons;
    if (!is_op(":") && !is_op("]")) bounds[num_colons] = parse_expression();
  }
  expect_op("]");
  if (num_colons == 0) return with_items(make(ExprKind::item, open.line), nodes(std::move(node), std::move(bounds[0])));
  return with_items(make(ExprKind::slice, open.line),
                    nodes(std::move(node), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2])));
}

CallArguments ExpressionParser::parse_arguments() {
  Level level(*this);
  CallArguments arguments;
  expect_op("(");
  for (bool is_first = true; !is_op(")"); is_first = false) {
    if (!is_first) {
      expect_op(",");
      if (is_op(")")) break;
    }
    if (skip_op("**")) {
      arguments.dict = parse_expression();
    } else if (skip_op("*")) {
      arguments.list = parse_expression();
    } else if (current().kind == TokenKind::name && ahead(1).kind == TokenKind::op && ahead(1).text == "=") {
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty() || arguments.dict) fail("a positional argument stands after a named one");
      arguments.positional.push_back(parse_expression());
    }
  }
  expect_op(")");
  return arguments;
}

ExprPtr ExpressionParser::parse_filter_chain(ExprPtr node) {
  for (;;) {
    if (skip_op("|")) {
      node = parse_filter(std::move(node));
    } else if (skip_name("is")) {
      node = parse_test(std::move(node));
    } else if (is_op("(")) {
      node = parse_postfix_chain(std::move(node));
    } else {
      return node;
    }
  }
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect_identifier();
  while (skip_op(".")) name += "." + expect_identifier();
  return name;
}

ExprPtr ExpressionParser::parse_filter(ExprPtr node) {
  int line = current().line;
  std::string name = parse_dotted_name();
  ExprPtr filter = with_items(make(ExprKind::filter, line, std::move(name)), nodes(std::move(node)));
  if (is_op("(")) attach(*filter, parse_arguments());
  return filter;
}

ExprPtr ExpressionParser::parse_bare_filters() {
  ExprPtr node = parse_filter(nullptr);
  while (skip_op("|")) node = parse_filter(std::move(node));
  return node;
}

ExprPtr ExpressionParser::parse_test(ExprPtr node) {
  int line = current().line;
  bool is_negated = skip_name("not");
  ExprPtr test = with_items(make(ExprKind::test, line, parse_dotted_name()), nodes(std::move(node)));
  bool begins_value = current().kind == TokenKind::name || current().kind == TokenKind::string ||
                      current().kind == TokenKind::integer || current().kind == TokenKind::number || is_op("[") ||
                      is_op("{");
  if (is_op("(")) {
    attach(*test, parse_arguments());
  } else if (begins_value && !is_name("else") && !is_name("or") && !is_name("and")) {
    if (is_name("is")) fail("two tests with 'is' cannot follow each other");
    CallArguments arguments;
    arguments.positional.push_back(parse_postfix_chain(parse_primary()));
    attach(*test, std::move(arguments));
  }
  if (!is_negated) return test;
  return with_items(make(ExprKind::negate, line, "not"), nodes(std::move(test)));
}

}  // namespace sinter::tokenizer::jinja
