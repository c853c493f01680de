#include "eval/checkers/latex_value.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <initializer_list>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace sinter::eval {
namespace {

using Number = std::complex<double>;

struct Wrong {};  // not an expression that can be computed

constexpr int kMaxDepth = 200, kPoints = 8;
constexpr double kEqual = 1e-12;

// Gamma of z + 1 by Lanczos.
Number factorial(Number z) {
  if (z.imag() == 0 && z.real() >= 0) return std::tgamma(z.real() + 1);
  static constexpr double kTerms[] = {676.5203681218851,     -1259.1392167224028,  771.32342877765313,
                                      -176.61502916214059,   12.507343278686905,   -0.13857109526572012,
                                      9.9843695780195716e-6, 1.5056327351493116e-7};
  if (z.real() < -0.5) return M_PI / (std::sin(M_PI * (z + 1.0)) * factorial(-z - 1.0));
  Number sum = 0.99999999999980993;
  for (int i = 0; i < 8; ++i) sum += kTerms[i] / (z + double(i + 1));
  const Number t = z + 7.5;
  return std::sqrt(2 * M_PI) * std::pow(t, z + 0.5) * std::exp(-t) * sum;
}

struct Function {
  const char* name;
  Number (*compute)(const Number&);
  Number (*inverse)(const Number&);  // with the exponent -1
};

const std::vector<Function>& functions() {
  using N = const Number&;
  static const std::vector<Function> kFunctions{
      {"sin", [](N x) { return std::sin(x); }, [](N x) { return std::asin(x); }},
      {"cos", [](N x) { return std::cos(x); }, [](N x) { return std::acos(x); }},
      {"tan", [](N x) { return std::tan(x); }, [](N x) { return std::atan(x); }},
      {"cot", [](N x) { return 1.0 / std::tan(x); }, [](N x) { return std::atan(1.0 / x); }},
      {"sec", [](N x) { return 1.0 / std::cos(x); }, [](N x) { return std::acos(1.0 / x); }},
      {"csc", [](N x) { return 1.0 / std::sin(x); }, [](N x) { return std::asin(1.0 / x); }},
      {"arcsin", [](N x) { return std::asin(x); }, nullptr},
      {"arccos", [](N x) { return std::acos(x); }, nullptr},
      {"arctan", [](N x) { return std::atan(x); }, nullptr},
      {"sinh", [](N x) { return std::sinh(x); }, [](N x) { return std::asinh(x); }},
      {"cosh", [](N x) { return std::cosh(x); }, [](N x) { return std::acosh(x); }},
      {"tanh", [](N x) { return std::tanh(x); }, [](N x) { return std::atanh(x); }},
      {"exp", [](N x) { return std::exp(x); }, nullptr},
      {"ln", [](N x) { return std::log(x); }, nullptr},
      {"log", [](N x) { return std::log(x); }, nullptr},
      {"lg", [](N x) { return std::log(x) / std::log(10.0); }, nullptr}};
  return kFunctions;
}

// Reads and computes in one go, by the grammar of sympy's parse_latex: factors beside each other bind tighter than "/",
// every letter and unknown command is a variable, also \pi, e and i, a letter before a parenthesis is a function, \log
// is the natural one. What does not continue the expression ("5,6", "a+") is left out, as there.
class Parser {
 public:
  Parser(std::string text, uint64_t point) : text_(std::move(text)), point_(point) {}

  Number run() {
    check_characters();
    const Number value = sum();
    if (at_ < text_.size() && std::string_view("=<>").find(text_[at_]) != std::string_view::npos) throw Wrong();
    return value;
  }

 private:
  // sympy knows no others; a number needs digits on both sides of its point.
  void check_characters() const {
    for (size_t i = 0; i < text_.size(); ++i) {
      const char c = text_[i];
      const bool is_digit_behind = i + 1 < text_.size() && std::isdigit(static_cast<unsigned char>(text_[i + 1]));
      const bool is_digit_before = i > 0 && std::isdigit(static_cast<unsigned char>(text_[i - 1]));
      if (c == '.' && !(is_digit_behind && is_digit_before)) throw Wrong();
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '\\') continue;
      if (std::string_view(" \n\t+-*/()[]{}|!^_:=<>',").find(c) == std::string_view::npos) throw Wrong();
    }
  }
  // The command at the place, without its backslash; "" for none.
  std::string command() {
    skip();
    if (at_ >= text_.size() || text_[at_] != '\\') return "";
    size_t end = at_ + 1;
    while (end < text_.size() && std::isalpha(static_cast<unsigned char>(text_[end]))) ++end;
    return text_.substr(at_ + 1, end - at_ - 1);
  }
  bool take(std::string_view word) {
    skip();
    if (word.size() > 1 && word[0] == '\\' && std::isalpha(static_cast<unsigned char>(word[1]))) {
      if (command() != word.substr(1)) return false;
    } else if (!std::string_view(text_).substr(at_).starts_with(word)) {
      return false;
    }
    at_ += word.size();
    return true;
  }
  void skip() {
    static constexpr std::string_view kBlank[] = {"\\,", "\\!", "\\;", "\\:", "\\left", "\\right", "\\quad", "\\qquad"};
    for (bool moved = true; moved;) {
      moved = false;
      while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
      for (const std::string_view word : kBlank) {
        const size_t end = at_ + word.size();
        if (!std::string_view(text_).substr(at_).starts_with(word)) continue;
        if (std::isalpha(static_cast<unsigned char>(word[1])) && end < text_.size() &&
            std::isalpha(static_cast<unsigned char>(text_[end]))) {
          continue;  // \leftarrow
        }
        at_ = end;
        moved = true;
      }
    }
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(std::string_view word) {
    if (!take(word)) throw Wrong();
  }
  // An operator, where something it can be applied to follows.
  bool take_operator(std::initializer_list<std::string_view> names) {
    const size_t before = at_;
    for (const std::string_view name : names) {
      if (!take(name)) continue;
      const size_t behind = at_;
      while (peek() == '-' || peek() == '+') ++at_;
      const bool follows = begins_factor();
      at_ = follows ? behind : before;
      return follows;
    }
    return false;
  }

  Number sum() {
    if (++depth_ > kMaxDepth) throw Wrong();
    Number value = product(false);
    for (;;) {
      if (take_operator({"+"})) {
        value += product(false);
      } else if (take_operator({"-"})) {
        value -= product(false);
      } else {
        --depth_;
        return value;
      }
    }
  }
  // In a function's argument without parentheses a further function ends it.
  Number product(bool is_argument) {
    Number value = signed_factors(is_argument);
    for (;;) {
      if (take_operator({"*", "\\cdot", "\\times"})) {
        value *= signed_factors(is_argument);
      } else if (take_operator({"/", "\\div", ":"})) {
        value /= signed_factors(is_argument);
      } else {
        return value;
      }
    }
  }
  Number signed_factors(bool is_argument) {
    if (take("-")) return -signed_factors(is_argument);
    if (take("+")) return signed_factors(is_argument);
    Number value = power();
    while (begins_factor() && !(is_argument && find_function())) value *= power();
    return value;
  }
  const Function* find_function() {
    const std::string name = command();
    for (const Function& f : functions()) {
      if (name == f.name) return &f;
    }
    return nullptr;
  }
  bool begins_factor() {
    static const std::set<std::string> kOperators{"cdot", "times", "div", "to",  "rightarrow", "ge",
                                                  "geq",  "le",    "leq", "neq", "rfloor",     "rceil",
                                                  "sum",  "prod",  "int", "lim"};
    const char c = peek();
    if (c == '|') return num_bars_ == 0;
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '(' || c == '{' || c == '[') return true;
    const std::string name = command();
    return (!name.empty() && !kOperators.contains(name)) || std::string_view(text_).substr(at_).starts_with("\\{");
  }
  Number power() {
    if (++depth_ > kMaxDepth) throw Wrong();
    Number value = atom();
    for (;;) {
      if (take("!")) {
        value = factorial(value);
        continue;
      }
      const size_t before = at_;
      if (take("^")) {
        if (begins_factor()) {
          value = raise(value, argument());
          continue;
        }
        at_ = before;
      }
      --depth_;
      return value;
    }
  }
  static Number raise(Number base, Number exponent) {
    if (exponent.imag() == 0 && exponent.real() == std::floor(exponent.real()) && std::abs(exponent.real()) < 1000) {
      Number result = 1;
      for (int i = 0; i < std::abs(exponent.real()); ++i) result *= base;
      return exponent.real() < 0 ? 1.0 / result : result;
    }
    return std::pow(base, exponent);
  }
  // {...}, or an atom: of a number all its digits.
  Number argument() {
    if (!take("{")) return atom();
    const Number value = sum();
    expect("}");
    return value;
  }
  Number in_braces() {
    if (peek() != '{') throw Wrong();
    return argument();
  }
  // {...} or one digit.
  Number part_of_fraction() {
    if (peek() == '{') return argument();
    if (!std::isdigit(static_cast<unsigned char>(peek()))) throw Wrong();
    return text_[at_++] - '0';
  }
  Number letter(std::string_view name) {
    const uint64_t hash = base::hash_text(name, point_);
    auto share = [](uint64_t bits) { return static_cast<double>(bits & 0xffffff) / 0x1000000; };
    return std::polar(0.6 + share(hash), 2 * M_PI * share(hash >> 24));
  }
  // Digits, blanks between them left out, and commas before three of them.
  Number number() {
    std::string digits;
    auto is_digit = [this](size_t i) { return i < text_.size() && std::isdigit(static_cast<unsigned char>(text_[i])); };
    for (;;) {
      const size_t end = at_;
      skip();
      const bool is_comma = peek() == ',' && is_digit(at_ + 1) && is_digit(at_ + 2) && is_digit(at_ + 3);
      const bool is_point = peek() == '.' && digits.find('.') == std::string::npos;
      if (!is_digit(at_) && !is_comma && !is_point) {
        at_ = end;
        break;
      }
      if (!is_comma) digits += text_[at_];
      ++at_;
    }
    const bool is_whole = digits.find('.') == std::string::npos;
    const double value = std::strtod(digits.c_str(), nullptr);
    if (is_whole && digits.size() > 1 && digits[0] == '0' && value != 0) throw Wrong();
    return value;
  }
  // A base in digits. The last one is the argument where nothing else can be: \log_28 is 3.
  Number base_digits() {
    size_t end = at_;
    while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end]))) ++end;
    const size_t begin = std::exchange(at_, end);
    if (end - begin > 1 && !begins_factor()) --end;
    at_ = end;
    return std::strtod(text_.substr(begin, end - begin).c_str(), nullptr);
  }
  Number function(const Function& f) {
    at_ += 1 + std::string_view(f.name).size();
    std::optional<Number> base, exponent;
    for (int i = 0; i < 2; ++i) {
      if (!base && take("_")) base = std::isdigit(static_cast<unsigned char>(peek())) ? base_digits() : argument();
      if (!exponent && take("^")) exponent = peek() == '{' ? argument() : atom();
    }
    Number argument_value;
    if (take("(")) {
      argument_value = sum();
      expect(")");
    } else {
      argument_value = product(true);
    }
    if (exponent == -1.0 && f.inverse) return f.inverse(argument_value);
    Number value = f.compute(argument_value);
    if (base) value /= std::log(*base);
    return exponent ? raise(value, *exponent) : value;
  }
  Number atom() {
    if (peek() == '|') {
      ++at_;
      ++num_bars_;
      const Number value = sum();
      --num_bars_;
      expect("|");
      return std::abs(value);
    }
    for (const auto& [open, close] : {std::pair{"(", ")"}, {"{", "}"}, {"[", "]"}, {"\\{", "\\}"}}) {
      if (!take(open)) continue;
      const int bars = std::exchange(num_bars_, 0);
      const Number value = sum();
      num_bars_ = bars;
      expect(close);
      return value;
    }
    if (std::isdigit(static_cast<unsigned char>(peek()))) return number();
    return peek() == '\\' ? command_value() : variable();
  }
  Number command_value() {
    if (const Function* f = find_function()) return function(*f);
    if (take("\\frac") || take("\\dfrac") || take("\\tfrac")) {
      const Number above = part_of_fraction();
      return above / part_of_fraction();
    }
    if (take("\\binom") || take("\\dbinom") || take("\\tbinom")) {
      const Number n = in_braces(), k = in_braces();
      return factorial(n) / (factorial(k) * factorial(n - k));
    }
    if (take("\\sqrt")) {
      Number root = 2;
      if (take("[")) {
        root = sum();
        expect("]");
      }
      const Number value = in_braces();
      return root == 2.0 ? std::sqrt(value) : std::pow(value, 1.0 / root);
    }
    if (take("\\overline")) return std::conj(in_braces());
    for (const bool is_floor : {true, false}) {
      if (!take(is_floor ? "\\lfloor" : "\\lceil")) continue;
      const Number value = sum();
      expect(is_floor ? "\\rfloor" : "\\rceil");
      auto whole = [&](double x) { return is_floor ? std::floor(x) : std::ceil(x); };
      return {whole(value.real()), whole(value.imag())};
    }
    if (command().empty() || command() == "infty" || !begins_factor()) throw Wrong();
    return variable();
  }
  // A letter or a command with its index and primes; with arguments in parentheses an unknown function of them.
  Number variable() {
    std::string name = command();
    if (name.empty()) {
      const char c = peek();
      if (!std::isalpha(static_cast<unsigned char>(c))) throw Wrong();
      name = c;
      ++at_;
      if (c == 'd' && at_ < text_.size() && std::isalpha(static_cast<unsigned char>(text_[at_]))) name += text_[at_++];
    } else {
      at_ += 1 + name.size();
    }
    if (take("_")) {
      skip();
      const size_t begin = at_;
      argument();
      name += '_';
      for (char c : text_.substr(begin, at_ - begin)) {
        if (c != '{' && c != '}' && c != ' ') name += c;
      }
    }
    while (take("'")) name += '\'';
    if (name.size() == 2 && name[0] == 'd') return letter(name);
    if (!take("(")) return letter(name);
    Number value = letter(name + "()");
    for (int place = 0;; ++place) {
      value += std::sin(sum() * letter(name + "()" + std::to_string(place)));
      if (!take(",")) break;
    }
    expect(")");
    return value;
  }

  std::string text_;
  uint64_t point_;
  size_t at_ = 0;
  int depth_ = 0, num_bars_ = 0;
};

std::optional<Number> compute(const std::string& text, uint64_t point) {
  try {
    const Number value = Parser(text, point).run();
    if (!std::isfinite(value.real()) || !std::isfinite(value.imag())) return std::nullopt;
    return value;
  } catch (const Wrong&) {
    return std::nullopt;
  }
}

}  // namespace

bool latex_values_equal(const std::string& a, const std::string& b) {
  for (uint64_t point = 1; point <= kPoints; ++point) {
    const auto x = compute(a, point), y = compute(b, point);
    if (!x || !y || std::abs(*x - *y) > kEqual * std::max({1.0, std::abs(*x), std::abs(*y)})) return false;
  }
  return true;
}

}  // namespace sinter::eval
