#include "eval/checkers/latex_value.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <optional>
#include <vector>

#include "base/hash.h"

namespace sinter::eval {
namespace {

using Number = std::complex<double>;

struct Wrong {};  // not an expression that can be computed

constexpr int kMaxDepth = 200;

// Reads and computes in one go: a sum of products of powers.
class Parser {
 public:
  Parser(std::string text, uint64_t point) : text_(std::move(text)), point_(point) {}

  Number run() {
    const Number value = sum();
    if (at_ != text_.size()) throw Wrong();
    return value;
  }

 private:
  bool has(std::string_view word) {
    skip();
    return std::string_view(text_).substr(at_).starts_with(word);
  }
  bool take(std::string_view word) {
    if (!has(word)) return false;
    // \in is not the beginning of \infty
    const size_t end = at_ + word.size();
    if (word.size() > 1 && word[0] == '\\' && std::isalpha(static_cast<unsigned char>(word[1])) && end < text_.size() &&
        std::isalpha(static_cast<unsigned char>(text_[end]))) {
      return false;
    }
    at_ = end;
    return true;
  }
  void skip() {
    for (;;) {
      while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
      bool moved = false;
      for (const std::string_view word : {"\\,", "\\!", "\\;", "\\left", "\\right"}) {
        const std::string_view rest = std::string_view(text_).substr(at_);
        if (rest.starts_with(word) && !rest.starts_with("\\rightarrow") && !rest.starts_with("\\leftarrow")) {
          at_ += word.size();
          moved = true;
        }
      }
      if (!moved) return;
    }
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  void expect(std::string_view word) {
    if (!take(word)) throw Wrong();
  }

  Number sum() {
    if (++depth_ > kMaxDepth) throw Wrong();
    Number value = product();
    for (;;) {
      if (take("+")) {
        value += product();
      } else if (take("-")) {
        value -= product();
      } else {
        --depth_;
        return value;
      }
    }
  }
  Number product() {
    Number value = signed_factor();
    for (;;) {
      if (take("*") || take("\\cdot") || take("\\times")) {
        value *= signed_factor();
      } else if (take("/") || take("\\div")) {
        value /= signed_factor();
      } else if (begins_factor()) {
        value *= power();
      } else {
        return value;
      }
    }
  }
  bool begins_factor() {
    const char c = peek();
    if (std::isalnum(static_cast<unsigned char>(c)) || c == '(' || c == '{' || c == '[' || c == '.') return true;
    if (c != '\\') return false;
    for (const std::string_view word : {"\\frac", "\\sqrt", "\\pi", "\\sin", "\\cos", "\\tan", "\\log", "\\ln", "\\exp",
                                        "\\cot", "\\sec", "\\csc", "\\theta", "\\alpha", "\\beta", "\\lambda"}) {
      if (has(word)) return true;
    }
    return false;
  }
  Number signed_factor() {
    if (take("-")) return -signed_factor();
    if (take("+")) return signed_factor();
    return power();
  }
  Number power() {
    if (++depth_ > kMaxDepth) throw Wrong();
    Number value = atom();
    for (;;) {
      if (take("!")) {
        value = std::tgamma(value.real() + 1);
      } else if (take("\\%")) {
        value /= 100;
      } else if (take("^")) {
        value = raise(value, argument());
      } else {
        --depth_;
        return value;
      }
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
  // {...} or one character.
  Number argument() {
    if (take("{")) {
      const Number value = sum();
      expect("}");
      return value;
    }
    if (take("-")) return -argument();
    const char c = peek();
    if (std::isdigit(static_cast<unsigned char>(c))) {
      ++at_;
      return c - '0';
    }
    return atom();
  }
  Number letter(std::string_view name) {
    const uint64_t hash = base::hash_text(name, point_);
    auto share = [](uint64_t bits) { return static_cast<double>(bits & 0xffffff) / 0x1000000; };
    return {0.6 + share(hash), 0.2 + share(hash >> 24)};
  }
  Number number() {
    size_t end = at_;
    while (end < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[end])) || text_[end] == '.')) ++end;
    const std::string digits = text_.substr(at_, end - at_);
    if (digits == "." || std::count(digits.begin(), digits.end(), '.') > 1) throw Wrong();
    at_ = end;
    if (take("_")) argument();  // a base is not read
    return std::strtod(digits.c_str(), nullptr);
  }
  Number function(Number (*compute)(const Number&)) {
    Number exponent = 1;
    if (take("^")) exponent = argument();
    return raise(compute(function_argument()), exponent);
  }
  Number function_argument() { return has("{") || has("(") ? power() : product_without_sums(); }
  Number product_without_sums() {
    Number value = power();
    while (begins_factor() && !has("\\sin") && !has("\\cos") && !has("\\tan")) value *= power();
    return value;
  }
  Number atom() {
    for (const auto& [open, close] : {std::pair{"(", ")"}, {"{", "}"}, {"[", "]"}}) {
      if (!take(open)) continue;
      const Number value = sum();
      expect(close);
      return value;
    }
    if (take("\\frac")) {
      const Number above = argument();
      return above / argument();
    }
    if (take("\\sqrt")) {
      Number root = 2;
      if (take("[")) {
        root = sum();
        expect("]");
      }
      const Number value = argument();
      return root == 2.0 ? std::sqrt(value) : std::pow(value, 1.0 / root);
    }
    if (take("\\pi")) return M_PI;
    if (take("\\sin")) return function([](const Number& x) { return std::sin(x); });
    if (take("\\cos")) return function([](const Number& x) { return std::cos(x); });
    if (take("\\tan")) return function([](const Number& x) { return std::tan(x); });
    if (take("\\exp")) return function([](const Number& x) { return std::exp(x); });
    if (take("\\ln")) return function([](const Number& x) { return std::log(x); });
    if (take("\\log")) {
      Number base = 10;
      if (take("_")) base = argument();
      return std::log(function_argument()) / std::log(base);
    }
    for (const std::string_view name : {"\\theta", "\\alpha", "\\beta", "\\lambda"}) {
      if (take(name)) return letter(name);
    }
    const char c = peek();
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') return number();
    if (!std::isalpha(static_cast<unsigned char>(c))) throw Wrong();
    std::string name(1, c);
    ++at_;
    if (at_ < text_.size() && text_[at_] == '_') {  // x_1 is another letter than x
      ++at_;
      const size_t begin = at_;
      argument();
      name += text_.substr(begin, at_ - begin);
    }
    return letter(name);
  }

  std::string text_;
  uint64_t point_;
  size_t at_ = 0;
  int depth_ = 0;
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
  for (uint64_t point = 1; point <= 4; ++point) {
    const auto x = compute(a, point), y = compute(b, point);
    if (!x || !y || std::abs(*x - *y) > 1e-9 * std::max({1.0, std::abs(*x), std::abs(*y)})) return false;
  }
  return true;
}

}  // namespace sinter::eval
