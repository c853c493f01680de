#include "eval/checkers/math_verify/expression.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/hash.h"
#include "eval/checkers/math_verify/functions.h"

namespace sinter::eval {
namespace {

constexpr uint64_t kPoints = 6;
constexpr long double kEqual = 1e-13L;

__int128 greatest_divisor(__int128 a, __int128 b) {
  while (b != 0) a = std::exchange(b, a % b);
  return a < 0 ? -a : a;
}

bool is_sign(const Math& x, int value) { return x->kind == MathKind::rational && x->above == value && x->below == 1; }

// Every symbol has a value of its own at every point, of either sign; complex ones lie around zero.
MathValue symbol_value(const Math& x, uint64_t point) {
  const uint64_t hash = base::hash_text(x->is_complex ? x->name + "~" : x->name, point);
  auto share = [](uint64_t bits) { return static_cast<long double>(bits & 0xffffff) / 0x1000000; };
  const long double size = 0.6L + share(hash);
  if (x->is_complex) return std::polar(size, 2 * std::acos(-1.0L) * share(hash >> 24));
  return (hash >> 60) % 2 == 0 ? size : -size;
}

// A function that is nowhere defined: some value that depends on its name and arguments.
MathValue unknown_function(const std::string& name, const std::vector<MathValue>& arguments, uint64_t point) {
  MathValue value = 0.5L;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const uint64_t hash = base::hash_text(name + "/" + std::to_string(i), point);
    value += std::sin(arguments[i] * (0.7L + static_cast<long double>(hash & 0xffff) / 0x10000)) *
             (0.4L + static_cast<long double>(hash >> 48) / 0x10000);
  }
  return value;
}

MathValue raise(const MathValue& base, const MathValue& exponent) {
  const bool is_whole = exponent.imag() == 0 && exponent.real() == std::floor(exponent.real());
  if (is_whole && std::abs(exponent.real()) <= 4096) {
    MathValue result = 1;
    for (long n = 0; n < std::labs(static_cast<long>(exponent.real())); ++n) result *= base;
    return exponent.real() < 0 ? MathValue(1) / result : result;
  }
  if (base.imag() == 0 && base.real() >= 0 && exponent.imag() == 0) return std::pow(base.real(), exponent.real());
  return std::pow(base, exponent);
}

MathValue constant_value(const std::string& name) {
  if (name == "pi") return std::acos(-1.0L);
  if (name == "e") return std::exp(1.0L);
  return {0, 1};
}

bool is_finite(const MathValue& x) { return std::isfinite(x.real()) && std::isfinite(x.imag()); }

bool close(const MathValue& a, const MathValue& b) {
  return std::abs(a - b) <= kEqual * std::max({1.0L, std::abs(a), std::abs(b)});
}

struct MatrixValue {
  size_t rows = 0, columns = 0;
  std::vector<MathValue> cells;
};

bool has_matrix(const Math& x) {
  return x->kind == MathKind::matrix || std::any_of(x->parts.begin(), x->parts.end(), has_matrix);
}

MatrixValue multiply(const MatrixValue& a, const MatrixValue& b) {
  const bool is_scaled = a.rows * a.columns == 1 || b.rows * b.columns == 1;
  if (is_scaled) {
    const bool is_first = a.rows * a.columns == 1;
    MatrixValue result = is_first ? b : a;
    for (MathValue& cell : result.cells) cell *= is_first ? a.cells[0] : b.cells[0];
    return result;
  }
  if (a.columns != b.rows) throw MathFailure();
  MatrixValue result{a.rows, b.columns, std::vector<MathValue>(a.rows * b.columns)};
  for (size_t i = 0; i < a.rows; ++i) {
    for (size_t k = 0; k < a.columns; ++k) {
      for (size_t j = 0; j < b.columns; ++j) {
        result.cells[i * b.columns + j] += a.cells[i * a.columns + k] * b.cells[k * b.columns + j];
      }
    }
  }
  return result;
}

MatrixValue matrix_at(const Math& x, uint64_t point) {
  if (!has_matrix(x)) return {1, 1, {value_at(x, point)}};
  if (x->kind == MathKind::matrix) {
    const auto columns = static_cast<size_t>(x->num_columns);
    MatrixValue result{x->parts.size() / columns, columns, {}};
    for (const Math& part : x->parts) result.cells.push_back(value_at(part, point));
    return result;
  }
  if (x->kind != MathKind::sum && x->kind != MathKind::product) throw MathFailure();
  MatrixValue result = matrix_at(x->parts[0], point);
  for (size_t i = 1; i < x->parts.size(); ++i) {
    const MatrixValue next = matrix_at(x->parts[i], point);
    if (x->kind == MathKind::product) {
      result = multiply(result, next);
      continue;
    }
    if (next.rows != result.rows || next.columns != result.columns) throw MathFailure();
    for (size_t c = 0; c < next.cells.size(); ++c) result.cells[c] += next.cells[c];
  }
  return result;
}

bool equal_matrices(const Math& a, const Math& b) {
  for (uint64_t point = 1; point <= kPoints; ++point) {
    const MatrixValue x = matrix_at(a, point), y = matrix_at(b, point);
    if (x.rows != y.rows || x.columns != y.columns) return false;
    for (size_t i = 0; i < x.cells.size(); ++i) {
      if (!is_finite(x.cells[i]) || !close(x.cells[i], y.cells[i])) return false;
    }
  }
  return true;
}

bool same_unordered(const std::vector<Math>& a, const std::vector<Math>& b) {
  return a.size() == b.size() && std::ranges::all_of(a, [&](const Math& x) {
           return std::ranges::any_of(b, [&](const Math& y) { return same_math(x, y); });
         });
}

}  // namespace

Math make_math(MathKind kind, std::vector<Math> parts, std::string name) {
  auto node = std::make_shared<MathNode>();
  node->kind = kind;
  node->parts = std::move(parts);
  node->name = std::move(name);
  return node;
}

Math make_rational(__int128 above, __int128 below) {
  if (below == 0) throw MathFailure();
  const __int128 divisor = greatest_divisor(above, below) * (below < 0 ? -1 : 1);
  auto node = std::make_shared<MathNode>();
  node->kind = MathKind::rational;
  node->above = above / divisor;
  node->below = below / divisor;
  node->value = static_cast<long double>(node->above) / static_cast<long double>(node->below);
  return node;
}

Math make_number(const std::string& digits) {
  const bool is_whole = std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) || c == '-'; });
  if (is_whole) {
    if (digits.size() > 37) throw MathFailure();
    __int128 value = 0;
    for (const char c : digits) {
      if (c != '-') value = value * 10 + (c - '0');
    }
    return make_rational(digits[0] == '-' ? -value : value, 1);
  }
  auto node = std::make_shared<MathNode>();
  node->kind = MathKind::decimal;
  node->value = std::strtold(digits.c_str(), nullptr);
  return node;
}

Math make_symbol(std::string name, bool is_complex) {
  auto node = std::make_shared<MathNode>();
  node->kind = MathKind::symbol;
  node->name = std::move(name);
  node->is_complex = is_complex;
  return node;
}

Math make_percentage(const Math& number) {
  return make_math(MathKind::product, {number, make_math(MathKind::hundredth)});
}

Math make_finite_set(std::vector<Math> parts) {
  std::vector<Math> unique;
  for (Math& part : parts) {
    if (std::ranges::none_of(unique, [&](const Math& x) { return same_math(x, part); }))
      unique.push_back(std::move(part));
  }
  return make_math(MathKind::finite_set, std::move(unique));
}

Math make_interval(const Math& left, const Math& right, bool is_left_open, bool is_right_open) {
  if (!has_symbols(left) && !has_symbols(right)) {
    const long double a = value_at(left, 1).real(), b = value_at(right, 1).real();
    const bool is_point = same_math(left, right) || a == b;
    if (b < a || (is_point && (is_left_open || is_right_open))) return make_finite_set({});
    if (is_point) return make_finite_set({left});
    is_left_open = is_left_open || std::isinf(a);
    is_right_open = is_right_open || std::isinf(b);
  }
  auto node = std::make_shared<MathNode>(*make_math(MathKind::interval, {left, right}));
  node->is_left_open = is_left_open;
  node->is_right_open = is_right_open;
  return node;
}

Math make_flat(MathKind kind, const Math& left, const Math& right) {
  std::vector<Math> parts;
  for (const Math& side : {left, right}) {
    if (side->kind == kind) {
      parts.insert(parts.end(), side->parts.begin(), side->parts.end());
    } else {
      parts.push_back(side);
    }
  }
  return make_math(kind, std::move(parts));
}

Math negated(const Math& x) {
  if (x->kind == MathKind::rational) return make_rational(-x->above, x->below);
  if (x->kind == MathKind::decimal || x->kind == MathKind::infinity) {
    auto node = std::make_shared<MathNode>(*x);
    node->value = -x->value;
    return node;
  }
  return make_flat(MathKind::product, make_rational(-1, 1), x);
}

Math difference(const Math& a, const Math& b) { return make_math(MathKind::sum, {a, negated(b)}); }

bool is_integer(const Math& x) { return x->kind == MathKind::rational && x->below == 1; }

bool is_number(const Math& x) {
  return x->kind == MathKind::rational || x->kind == MathKind::decimal || x->kind == MathKind::infinity;
}

bool is_only_symbols(const Math& x) {
  if (x->kind == MathKind::symbol) return true;
  if (x->kind == MathKind::power && is_sign(x->parts[1], -1)) return is_only_symbols(x->parts[0]);
  return !x->parts.empty() && std::ranges::all_of(x->parts, is_only_symbols);
}

bool has_symbols(const Math& x) { return x->kind == MathKind::symbol || std::ranges::any_of(x->parts, has_symbols); }

bool same_math(const Math& a, const Math& b) {
  if (a->kind != b->kind || a->name != b->name || a->is_complex != b->is_complex) return false;
  if (a->above != b->above || a->below != b->below || a->value != b->value) return false;
  if (a->is_left_open != b->is_left_open || a->is_right_open != b->is_right_open) return false;
  if (a->num_columns != b->num_columns || a->parts.size() != b->parts.size()) return false;
  if (a->kind == MathKind::finite_set || a->kind == MathKind::conjunction) return same_unordered(a->parts, b->parts);
  return std::ranges::equal(a->parts, b->parts, same_math);
}

MathValue value_at(const Math& x, uint64_t point) {
  auto part = [&](size_t i) { return value_at(x->parts[i], point); };
  switch (x->kind) {
    case MathKind::rational:
    case MathKind::decimal:
    case MathKind::infinity:
      return x->value;
    case MathKind::constant:
      return constant_value(x->name);
    case MathKind::symbol:
      return symbol_value(x, point);
    case MathKind::hundredth:
      return 0.01L;
    case MathKind::sum:
    case MathKind::product: {
      MathValue value = part(0);
      for (size_t i = 1; i < x->parts.size(); ++i) value = x->kind == MathKind::sum ? value + part(i) : value * part(i);
      return value;
    }
    case MathKind::power:
      return raise(part(0), part(1));
    case MathKind::call: {
      std::vector<MathValue> arguments;
      for (size_t i = 0; i < x->parts.size(); ++i) arguments.push_back(part(i));
      const std::optional<MathValue> known = known_function(x->name, arguments);
      return known ? *known : unknown_function(x->name, arguments, point);
    }
    default:
      throw MathFailure();
  }
}

bool equal_everywhere(const Math& a, const Math& b) {
  if (has_matrix(a) || has_matrix(b)) return has_matrix(a) == has_matrix(b) && equal_matrices(a, b);
  int num_compared = 0;
  for (uint64_t point = 1; point <= kPoints; ++point) {
    const MathValue x = value_at(a, point), y = value_at(b, point);
    if (!is_finite(x) && !is_finite(y)) continue;
    if (!is_finite(x) || !is_finite(y) || !close(x, y)) return false;
    ++num_compared;
  }
  return num_compared > 0;
}

long double common_factor(const Math& a, const Math& b) {
  std::optional<MathValue> factor;
  for (uint64_t point = 1; point <= kPoints; ++point) {
    const MathValue x = value_at(a, point), y = value_at(b, point);
    if (!is_finite(x) || !is_finite(y) || std::abs(y) < 1e-12L) return 0;
    if (factor && !close(x, *factor * y)) return 0;
    if (!factor) factor = x / y;
  }
  return std::abs(factor->imag()) < kEqual ? factor->real() : 0;
}

}  // namespace sinter::eval
