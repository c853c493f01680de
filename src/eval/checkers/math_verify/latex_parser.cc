#include "eval/checkers/math_verify/latex_parser.h"

#include <algorithm>

#include "base/text.h"

namespace sinter::eval {
namespace {

// Of one text: enough for any answer, and an end to readings that go back and forth.
constexpr int kMaxSteps = 50'000, kMaxDepth = 150;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::string without(std::string text, std::string_view characters) {
  std::erase_if(text, [&](char c) { return characters.find(c) != std::string_view::npos; });
  return text;
}

// arcsin and arsinh are asin and asinh.
std::string short_name(const std::string& name) {
  if (name.starts_with("arc")) return "a" + name.substr(3);
  return name.starts_with("ar") ? "a" + name.substr(2) : name;
}

Math divided(const Math& above, const Math& below) {
  if (is_integer(above) && is_integer(below)) return make_rational(above->above, below->above);
  return make_math(MathKind::product, {above, make_math(MathKind::power, {below, make_rational(-1, 1)})});
}

}  // namespace

bool LatexParser::is_one_of(std::initializer_list<std::string_view> types) const {
  return std::ranges::any_of(types, [this](std::string_view type) { return is(type); });
}

bool LatexParser::take(std::string_view type) {
  if (!is(type)) return false;
  ++at_;
  return true;
}

void LatexParser::expect(std::string_view type) {
  if (!take(type)) throw MathFailure();
}

void LatexParser::count_step() {
  if (++num_steps_ > kMaxSteps) throw MathFailure();
}

std::string LatexParser::text_between(size_t begin, size_t end) const {
  std::string text;
  for (size_t i = begin; i < end; ++i) text += tokens_[i].text;
  return text;
}

Math LatexParser::sum() {
  count_step();
  if (++depth_ > kMaxDepth) throw MathFailure();
  const size_t before = at_;
  try {
    Math value = product(false);
    for (;;) {
      if (take("+")) {
        value = make_flat(MathKind::sum, value, product(false));
      } else if (take("-")) {
        value = make_flat(MathKind::sum, value, negated(product(false)));
      } else {
        --depth_;
        return value;
      }
    }
  } catch (const MathFailure&) {
    --depth_;
    at_ = before;
    throw;
  }
}

Math LatexParser::product(bool is_argument) {
  Math value = signed_factors(is_argument);
  for (;;) {
    if (take("*")) {
      value = make_flat(MathKind::product, value, signed_factors(is_argument));
    } else if (take("/")) {
      value = divided(value, signed_factors(is_argument));
    } else if (take("mod")) {
      value = make_math(MathKind::call, {value, signed_factors(is_argument)}, "mod");
    } else {
      return value;
    }
  }
}

Math LatexParser::signed_factors(bool is_argument) {
  count_step();
  if (take("+")) return signed_factors(is_argument);
  if (take("-")) return negated(signed_factors(is_argument));
  std::vector<Math> factors{postfix(false)};
  while (begins_factor(is_argument)) factors.push_back(postfix(is_argument));
  return adjacent(factors);
}

// Factors beside each other, from the right: an integer before a positive fraction is a mixed number.
Math LatexParser::adjacent(const std::vector<Math>& factors) const {
  Math value = factors.back();
  for (size_t i = factors.size() - 1; i-- > 0;) {
    const Math& whole = factors[i];
    if (is_integer(whole) && value->kind == MathKind::rational && value->above > 0) {
      const __int128 part = whole->above < 0 ? -value->above : value->above;
      value = make_rational(whole->above * value->below + part, value->below);
    } else {
      value = make_flat(MathKind::product, whole, value);
    }
  }
  return value;
}

bool LatexParser::begins_factor(bool is_argument) const {
  if (is_one_of({"(",      "{",     "[",      "\\{",    "boxed",  "phantom",  "|",      "lvert",        "vert",
                 "lfloor", "lceil", "letter", "symbol", "accent", "infinity", "number", "differential", "frac",
                 "binom",  "matrix"})) {
    return !is_inside_bars_ || (!is("|") && !is("vert"));
  }
  return !is_argument && is_one_of({"function", "operatorname", "sqrt", "e"});
}

Math LatexParser::postfix(bool is_argument) {
  Math value = power(is_argument);
  for (;;) {
    if (take("!")) {
      value = make_math(MathKind::call, {value}, "factorial");
    } else if (!take("transpose") && !take("degree")) {
      return value;
    }
  }
}

Math LatexParser::power(bool is_argument) {
  Math value = component(is_argument);
  while (take("^")) {
    value = make_math(MathKind::power, {value, exponent()});
    if (is("_")) subscript();
  }
  return value;
}

Math LatexParser::exponent() { return is("{") ? group("{", "}") : atom(); }

Math LatexParser::group(std::string_view open, std::string_view close) {
  expect(open);
  const bool was_inside = std::exchange(is_inside_bars_, open == "|" || open == "vert");
  try {
    Math value = sum();
    expect(close);
    is_inside_bars_ = was_inside;
    return value;
  } catch (const MathFailure&) {
    is_inside_bars_ = was_inside;
    throw;
  }
}

Math LatexParser::component(bool is_argument) {
  if (is("{")) {  // {n \choose k}
    const size_t before = at_;
    take("{");
    Math value = sum();
    if (take("choose")) value = make_math(MathKind::call, {value, sum()}, "binomial");
    if (take("}")) return value;
    at_ = before;
    throw MathFailure();
  }
  for (const auto& [open, close] : {std::pair{"(", ")"}, {"[", "]"}, {"\\{", "\\}"}}) {
    if (is(open)) return group(open, close);
  }
  if (take("boxed") || take("phantom")) return group("{", "}");
  for (const auto& [open, close] : {std::pair{"|", "|"}, {"lvert", "rvert"}, {"vert", "vert"}}) {
    if (is(open)) return make_math(MathKind::call, {group(open, close)}, "abs");
  }
  if (is("lfloor")) return make_math(MathKind::call, {group("lfloor", "rfloor")}, "floor");
  if (is("lceil")) return make_math(MathKind::call, {group("lceil", "rceil")}, "ceil");
  if (!is_argument) {
    if (is("function") || is("operatorname")) return function();
    if (is("sqrt")) return root();
    if (take("e")) {
      const Math e = make_math(MathKind::constant, {}, "e");
      return take("^") ? make_math(MathKind::power, {e, exponent()}) : e;
    }
    if (is_one_of({"letter", "symbol", "accent"})) {
      const size_t before = at_;
      try {
        return made_up_function();
      } catch (const MathFailure&) {
        at_ = before;
      }
    }
  }
  if (is("frac")) return fraction();
  if (take("binom")) {
    const Math n = group("{", "}");
    return make_math(MathKind::call, {n, group("{", "}")}, "binomial");
  }
  return is("matrix") ? matrix() : atom();
}

Math LatexParser::atom() {
  count_step();
  const MathToken token = tokens_[at_];
  if (take("number")) {
    if (is("_")) subscript();  // a base, which is not read
    return make_number(token.text);
  }
  if (take("infinity")) {
    auto node = std::make_shared<MathNode>();
    node->kind = MathKind::infinity;
    node->value = std::numeric_limits<long double>::infinity();
    return node;
  }
  if (take("differential")) return make_symbol(token.text, is_complex_);
  return symbol_factor();
}

Math LatexParser::named(const std::string& name) const {
  const std::string own = lower(name);
  if (own == "pi") return make_math(MathKind::constant, {}, own);
  return make_symbol(own, is_complex_);
}

// \text{word} is the symbol "word"; \bar{x}, \vec{x} and others are symbols of their own.
Math LatexParser::accent(const std::string& text, const std::string& subscript_text) const {
  const size_t brace = text.find('{');
  const std::string command(without(text.substr(1, brace - 1), " \t\n"));
  std::string inner = without(text.substr(brace + 1, text.size() - brace - 2), " ");
  if (command.find("text") != std::string::npos || command == "mbox") {
    inner = without(inner, "()");
    if (inner.starts_with("\\")) inner.erase(0, 1);
    return named(inner + subscript_text);
  }
  std::string kind = command.starts_with("math") ? "math" : command;
  if (kind == "overline") kind = "bar";
  if (kind == "overrightarrow") kind = "vec";
  if (kind == "widetilde") kind = "tilde";
  return named(kind + "{" + inner + "}" + subscript_text);
}

std::string LatexParser::subscript() {
  expect("_");
  const size_t begin = at_;
  std::string text;
  if (take("{")) {
    do {
      sum();
    } while (take(","));
    text = text_between(begin + 1, at_);
    expect("}");
  } else {
    atom();
    text = text_between(begin, at_);
  }
  return text.size() > 1 ? "_{" + text + "}" : "_" + text;
}

Math LatexParser::symbol_factor() {
  const MathToken token = tokens_[at_];
  if (!take("letter") && !take("symbol") && !take("accent")) throw MathFailure();
  if (token.text == "gamma" || token.text == "Gamma") throw MathFailure();  // Euler's function, which has no place here
  std::string below;
  Math above;
  for (int i = 0; i < 2; ++i) {
    if (below.empty() && is("_")) below = subscript();
    if (!above && take("^")) above = exponent();
  }
  if (token.type == "letter" && token.text == "I") return make_math(MathKind::constant, {}, "i");
  const Math symbol = token.type == "accent" ? accent(token.text, below) : named(token.text + below);
  return above ? make_math(MathKind::power, {symbol, above}) : symbol;
}

// f(x), f(x, y) and a(2) are functions that the answer makes up; x(x + 1) is a product.
Math LatexParser::made_up_function() {
  const size_t begin = at_++;
  if (is("_")) subscript();
  const std::string name = text_between(begin, at_) + "()";
  Math above;
  if (take("^")) above = exponent();
  const bool has_brace = is("{") && (tokens_[at_ + 1].type == "(" || tokens_[at_ + 1].type == "[");
  if (has_brace) ++at_;
  const bool is_round = is("(");
  if (!take("(") && !take("[")) throw MathFailure();
  std::vector<Math> arguments;
  const size_t first = at_;
  try {
    arguments.push_back(atom());
    if (!is(is_round ? ")" : "]")) throw MathFailure();
  } catch (const MathFailure&) {
    at_ = first;
    arguments.assign(1, sum());
    if (!is(",")) throw;
    while (take(",")) {
      if (!is(is_round ? ")" : "]")) arguments.push_back(sum());
    }
  }
  expect(is_round ? ")" : "]");
  if (has_brace) expect("}");
  const Math call = make_math(MathKind::call, std::move(arguments), name);
  return above ? make_math(MathKind::power, {call, above}) : call;
}

Math LatexParser::function() {
  std::string name = tokens_[at_].text;
  if (take("operatorname")) {
    expect("{");
    name = tokens_[at_].text;
    expect("word");
    expect("}");
    static constexpr std::string_view kNames[] = {"gcd",     "lcm",    "floor",   "ceil",   "arsinh",
                                                  "arcsinh", "arcosh", "arccosh", "artanh", "arctanh"};
    if (std::ranges::find(kNames, name) == std::end(kNames)) throw MathFailure();
  } else {
    ++at_;
  }
  Math base, above;
  for (int i = 0; i < 2; ++i) {
    if (!base && take("_")) base = exponent();
    if (!above && take("^")) above = exponent();
  }
  std::vector<Math> arguments;
  if (name == "gcd" || name == "lcm" || name == "max" || name == "min") {
    expect("(");
    do {
      arguments.push_back(sum());
    } while (take(","));
    expect(")");
  } else if (is("(")) {
    arguments = {group("(", ")")};
  } else {
    arguments = {product(true)};
  }
  if (name == "log" || name == "ln") {
    arguments.push_back(base ? base : name == "log" ? make_rational(10, 1) : make_math(MathKind::constant, {}, "e"));
    name = "log";
  }
  const bool is_inverse = above && above->kind == MathKind::rational && above->value == -1 &&
                          (name.size() == 3 || name.ends_with('h')) && name != "log" && name != "exp";
  if (is_inverse) {
    name = "a" + name;
    above = nullptr;
  }
  const Math call = make_math(MathKind::call, std::move(arguments), short_name(name));
  return above ? make_math(MathKind::power, {call, above}) : call;
}

Math LatexParser::fraction() {
  expect("frac");
  const bool is_derivative = is("{") && tokens_[at_ + 1].text.starts_with("d") &&
                             (tokens_[at_ + 1].type == "differential" || tokens_[at_ + 2].type == "}");
  const Math above = group("{", "}");
  if (is_derivative && is("{") && tokens_[at_ + 1].type == "differential" && tokens_[at_ + 2].type == "}") {
    throw MathFailure();
  }
  return divided(above, group("{", "}"));
}

Math LatexParser::root() {
  expect("sqrt");
  Math degree;
  if (is("[")) degree = group("[", "]");
  const Math base = group("{", "}");
  return make_math(MathKind::power, {base, degree ? divided(make_rational(1, 1), degree) : make_rational(1, 2)});
}

Math LatexParser::matrix() {
  const std::string kind = tokens_[at_].text;
  expect("matrix");
  std::vector<Math> cells;
  size_t num_columns = 0;
  do {
    if (is("endmatrix")) break;
    const size_t before = cells.size();
    do {
      cells.push_back(sum());
    } while (take("&"));
    if (num_columns != 0 && cells.size() - before != num_columns) throw MathFailure();
    num_columns = cells.size() - before;
  } while (take("\\\\"));
  if (tokens_[at_].text == "array" ? kind != "array" : kind == "array") throw MathFailure();
  expect("endmatrix");
  if (cells.empty()) throw MathFailure();
  auto node = std::make_shared<MathNode>(*make_math(MathKind::matrix, std::move(cells)));
  node->num_columns = static_cast<int>(num_columns);
  return node;
}

}  // namespace sinter::eval
