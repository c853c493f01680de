#include "eval/checkers/math_verify/functions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace sinter::eval {
namespace {

using V = const MathValue&;

constexpr long double kNone = std::numeric_limits<long double>::quiet_NaN();

MathValue factorial(V n) { return n.imag() == 0 ? std::tgamma(n.real() + 1) : MathValue(kNone); }

const std::map<std::string, MathValue (*)(V)>& functions_of_one() {
  static const std::map<std::string, MathValue (*)(V)> kFunctions{
      {"sin", [](V x) { return std::sin(x); }},
      {"cos", [](V x) { return std::cos(x); }},
      {"tan", [](V x) { return std::tan(x); }},
      {"cot", [](V x) { return MathValue(1) / std::tan(x); }},
      {"sec", [](V x) { return MathValue(1) / std::cos(x); }},
      {"csc", [](V x) { return MathValue(1) / std::sin(x); }},
      {"asin", [](V x) { return std::asin(x); }},
      {"acos", [](V x) { return std::acos(x); }},
      {"atan", [](V x) { return std::atan(x); }},
      {"acot", [](V x) { return std::atan(MathValue(1) / x); }},
      {"asec", [](V x) { return std::acos(MathValue(1) / x); }},
      {"acsc", [](V x) { return std::asin(MathValue(1) / x); }},
      {"sinh", [](V x) { return std::sinh(x); }},
      {"cosh", [](V x) { return std::cosh(x); }},
      {"tanh", [](V x) { return std::tanh(x); }},
      {"asinh", [](V x) { return std::asinh(x); }},
      {"acosh", [](V x) { return std::acosh(x); }},
      {"atanh", [](V x) { return std::atanh(x); }},
      {"exp", [](V x) { return std::exp(x); }},
      {"abs", [](V x) { return MathValue(std::abs(x)); }},
      {"floor", [](V x) { return MathValue(std::floor(x.real()), std::floor(x.imag())); }},
      {"ceil", [](V x) { return MathValue(std::ceil(x.real()), std::ceil(x.imag())); }},
      {"factorial", factorial}};
  return kFunctions;
}

// gcd, lcm, max and min of any number of real arguments.
std::optional<MathValue> function_of_many(const std::string& name, const std::vector<MathValue>& arguments) {
  std::vector<long double> values;
  for (V x : arguments) values.push_back(x.real());
  if (name == "max") return std::ranges::max(values);
  if (name == "min") return std::ranges::min(values);
  if (name != "gcd" && name != "lcm") return std::nullopt;
  long long result = name == "gcd" ? 0 : 1;
  for (const long double x : values) {
    if (x != std::floor(x) || std::abs(x) > 1e15L) return kNone;
    const auto n = static_cast<long long>(x);
    result = name == "gcd" ? std::gcd(result, n) : std::lcm(result, n);
  }
  return static_cast<long double>(result);
}

}  // namespace

std::optional<MathValue> known_function(const std::string& name, const std::vector<MathValue>& arguments) {
  if (arguments.size() == 1) {
    const auto found = functions_of_one().find(name);
    if (found != functions_of_one().end()) return found->second(arguments[0]);
  }
  if (arguments.size() == 2) {
    V a = arguments[0], b = arguments[1];
    if (name == "log") return std::log(a) / std::log(b);
    if (name == "mod") return a.real() - b.real() * std::floor(a.real() / b.real());
    if (name == "binomial") return factorial(a) / (factorial(b) * factorial(a - b));
  }
  return arguments.empty() ? std::nullopt : function_of_many(name, arguments);
}

}  // namespace sinter::eval
