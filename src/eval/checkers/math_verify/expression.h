// Mathematical answers as trees: numbers, formulas, tuples, sets, equations, matrices; their values at a point.
#pragma once
#include <complex>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sinter::eval {

struct MathNode;
using Math = std::shared_ptr<const MathNode>;

enum class MathKind {
  rational,  // above / below
  decimal,   // written with a point: compared to six places
  infinity,
  constant,   // name: pi, e, i
  symbol,     // name
  hundredth,  // what a percentage is a multiple of
  sum,
  product,
  power,
  call,         // name: a known function or one that the answer makes up
  matrix,       // num_columns
  relation,     // name: = < <= > >= !=
  conjunction,  // relations in a row: a < b < c
  tuple,
  finite_set,  // parts in the order written, equal ones once
  interval,    // parts: both ends
  union_of,
  intersection,
  complement,
  named_set  // name: R, Z, ...
};

struct MathNode {
  MathKind kind;
  std::string name;
  std::vector<Math> parts;
  __int128 above = 0, below = 1;
  long double value = 0;
  int num_columns = 0;
  bool is_left_open = false, is_right_open = false;
  bool is_complex = false;  // of symbols: not known to be real

  bool is_set() const { return kind >= MathKind::finite_set; }
};

// What cannot be read as an answer.
struct MathFailure {};

Math make_math(MathKind kind, std::vector<Math> parts = {}, std::string name = "");
// In lowest terms. Throws MathFailure for a denominator of 0 and for numbers beyond 37 digits.
Math make_rational(__int128 above, __int128 below);
Math make_number(const std::string& digits);  // "12", "0.5", "1E-3"
Math make_symbol(std::string name, bool is_complex);
Math make_percentage(const Math& number);
Math make_finite_set(std::vector<Math> parts);
// As sympy's: empty where the ends leave nothing, open at infinity.
Math make_interval(const Math& left, const Math& right, bool is_left_open, bool is_right_open);
// Sums and products of sums and products are one.
Math make_flat(MathKind kind, const Math& left, const Math& right);
// -x, a number where x is one.
Math negated(const Math& x);
Math difference(const Math& a, const Math& b);

bool is_integer(const Math& x);
bool is_number(const Math& x);  // rational, decimal or infinity
// Symbols and what is made of symbols alone.
bool is_only_symbols(const Math& x);
bool has_symbols(const Math& x);

// Whether both are written the same way; sets whatever their order.
bool same_math(const Math& a, const Math& b);

using MathValue = std::complex<long double>;
// The value where symbols have the values of the point of that number. NaN where there is none. Throws MathFailure for
// what has no value (sets, relations, matrices).
MathValue value_at(const Math& x, uint64_t point);

// Whether both have the same values wherever both have one; matrices by their entries.
bool equal_everywhere(const Math& a, const Math& b);
// The factor by which a is a multiple of b at every point; 0 for none.
long double common_factor(const Math& a, const Math& b);

}  // namespace sinter::eval
