#include "eval/checkers/math_verify/real_set.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sinter::eval {
namespace {

constexpr long double kInfinity = std::numeric_limits<long double>::infinity();

bool near(long double a, long double b) {
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= 1e-12L * std::max({1.0L, std::abs(a), std::abs(b)});
}

// Sorted, with what overlaps or touches joined.
RealSet joined(RealSet parts) {
  std::erase_if(
      parts, [](const RealInterval& x) { return !near(x.low, x.high) ? x.low > x.high : !(x.has_low && x.has_high); });
  std::ranges::sort(parts, [](const RealInterval& a, const RealInterval& b) {
    return near(a.low, b.low) ? a.has_low && !b.has_low : a.low < b.low;
  });
  RealSet result;
  for (const RealInterval& part : parts) {
    const bool touches = !result.empty() && (near(part.low, result.back().high) ? part.has_low || result.back().has_high
                                                                                : part.low < result.back().high);
    if (!touches) {
      result.push_back(part);
    } else if (near(part.high, result.back().high)) {
      result.back().has_high = result.back().has_high || part.has_high;
    } else if (part.high > result.back().high) {
      result.back().high = part.high;
      result.back().has_high = part.has_high;
    }
  }
  return result;
}

RealSet complement(const RealSet& set) {
  RealSet result;
  RealInterval gap{-kInfinity, 0, false, false};
  for (const RealInterval& part : set) {
    gap.high = part.low;
    gap.has_high = !part.has_low && std::isfinite(part.low);
    if (gap.low < gap.high || (near(gap.low, gap.high) && gap.has_low && gap.has_high)) result.push_back(gap);
    gap.low = part.high;
    gap.has_low = !part.has_high && std::isfinite(part.high);
  }
  gap.high = kInfinity;
  gap.has_high = false;
  if (gap.low < kInfinity) result.push_back(gap);
  return result;
}

RealSet united(RealSet a, const RealSet& b) {
  a.insert(a.end(), b.begin(), b.end());
  return joined(std::move(a));
}

RealSet common(const RealSet& a, const RealSet& b) { return complement(united(complement(a), complement(b))); }

std::optional<long double> real_value(const Math& x) {
  if (has_symbols(x)) return std::nullopt;
  try {
    const MathValue value = value_at(x, 1);
    if (value.imag() == 0 && !std::isnan(value.real())) return value.real();
  } catch (const MathFailure&) {
  }
  return std::nullopt;
}

std::optional<RealSet> set_of_relation(const Math& x) {
  const bool is_turned = x->parts[1]->kind == MathKind::symbol;
  const Math& other = x->parts[is_turned ? 0 : 1];
  const auto bound = real_value(other);
  if (!bound || x->parts[is_turned ? 1 : 0]->kind != MathKind::symbol) return std::nullopt;
  std::string sign = x->name;
  if (is_turned && sign != "=" && sign != "!=") sign[0] = sign[0] == '<' ? '>' : '<';
  const RealSet point{{*bound, *bound, true, true}};
  if (sign == "=") return point;
  if (sign == "!=") return complement(point);
  if (sign[0] == '<') return RealSet{{-kInfinity, *bound, false, sign == "<="}};
  return RealSet{{*bound, kInfinity, sign == ">=", false}};
}

const MathNode* only_symbol(const Math& x) {
  if (x->kind == MathKind::symbol) return x.get();
  for (const Math& part : x->parts) {
    if (const MathNode* found = only_symbol(part)) return found;
  }
  return nullptr;
}

std::optional<RealSet> set_of_conjunction(const Math& x) {
  RealSet result{{-kInfinity, kInfinity, false, false}};
  const MathNode* symbol = nullptr;
  for (const Math& relation : x->parts) {
    const auto one = set_of_relation(relation);
    const MathNode* own = only_symbol(relation);
    if (!one || (symbol && own && own->name != symbol->name)) return std::nullopt;
    symbol = own;
    result = common(result, *one);
  }
  return result;
}

}  // namespace

bool RealInterval::operator==(const RealInterval& other) const {
  return near(low, other.low) && near(high, other.high) && has_low == other.has_low && has_high == other.has_high;
}

std::optional<RealSet> real_set_of(const Math& x) {
  if (x->kind == MathKind::relation) return set_of_relation(x);
  if (x->kind == MathKind::conjunction) return set_of_conjunction(x);
  if (x->kind == MathKind::named_set && x->name == "R") return RealSet{{-kInfinity, kInfinity, false, false}};
  if (x->kind == MathKind::interval) {
    const auto low = real_value(x->parts[0]), high = real_value(x->parts[1]);
    if (!low || !high) return std::nullopt;
    return joined({{*low, *high, !x->is_left_open, !x->is_right_open}});
  }
  if (x->kind == MathKind::finite_set) {
    RealSet points;
    for (const Math& part : x->parts) {
      const auto value = real_value(part);
      if (!value) return std::nullopt;
      points.push_back({*value, *value, true, true});
    }
    return joined(std::move(points));
  }
  if (x->kind != MathKind::union_of && x->kind != MathKind::intersection && x->kind != MathKind::complement) {
    return std::nullopt;
  }
  const auto a = real_set_of(x->parts[0]), b = real_set_of(x->parts[1]);
  if (!a || !b) return std::nullopt;
  if (x->kind == MathKind::union_of) return united(*a, *b);
  return x->kind == MathKind::intersection ? common(*a, *b) : common(*a, complement(*b));
}

}  // namespace sinter::eval
