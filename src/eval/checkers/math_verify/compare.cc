#include "eval/checkers/math_verify/compare.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "eval/checkers/math_verify/answers.h"
#include "eval/checkers/math_verify/real_set.h"
#include "tokenizer/jinja/value.h"

namespace sinter::eval {
namespace {

bool is_equation(const Math& x) {
  if (x->kind == MathKind::conjunction) return std::ranges::all_of(x->parts, is_equation);
  return x->kind == MathKind::relation && x->name == "=";
}
bool is_relation(const Math& x) { return x->kind == MathKind::relation || x->kind == MathKind::conjunction; }
const Math& first_relation(const Math& x) { return x->kind == MathKind::conjunction ? x->parts.front() : x; }
const Math& last_relation(const Math& x) { return x->kind == MathKind::conjunction ? x->parts.back() : x; }

// x = 5, or (x, y) = (1, 2): a name on the left.
bool is_assignment(const Math& x) { return is_equation(x) && is_only_symbols(first_relation(x)->parts[0]); }

Math without_percent(const Math& x) {
  const bool is_percentage =
      x->kind == MathKind::product && x->parts.size() == 2 && x->parts[1]->kind == MathKind::hundredth;
  return is_percentage ? x->parts[0] : x;
}

long double rounded(long double x) { return std::nearbyint(x * 1e6L); }

bool same_numbers(const Math& a, const Math& b) {
  const Math x = without_percent(a), y = without_percent(b);
  if (!is_number(x) && !is_number(y)) return false;
  if (x->kind == MathKind::decimal || y->kind == MathKind::decimal) {
    if (has_symbols(a) || has_symbols(b)) return false;
    const MathValue v = value_at(a, 1), w = value_at(b, 1);
    return rounded(v.real()) == rounded(w.real()) && rounded(v.imag()) == rounded(w.imag());
  }
  return is_integer(x) && is_integer(y) && same_math(x, y);  // also 5% and 5
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// a b c beside each other as a word; nullopt for what is no product of symbols.
std::optional<std::string> word_of(const Math& x) {
  if (x->kind != MathKind::product) return std::nullopt;
  std::string word;
  for (const Math& part : x->parts) {
    const bool is_e = part->kind == MathKind::constant && part->name == "e";
    if (!is_e && part->kind != MathKind::symbol) return std::nullopt;
    word += part->name;
  }
  return lower(word);
}

bool same_symbols(const Math& a, const Math& b) {
  auto is_e = [](const Math& x) { return x->kind == MathKind::constant && x->name == "e"; };
  if (a->kind == MathKind::symbol && b->kind == MathKind::symbol) return lower(a->name) == lower(b->name);
  const Math& symbol = a->kind == MathKind::symbol ? a : b;
  const Math& other = a->kind == MathKind::symbol ? b : a;
  if (is_e(other)) return lower(symbol->name) == "e";
  const auto word = word_of(other);
  return word && lower(symbol->name) == *word;
}

// Every part of one has a part of its own in the other.
bool same_parts_in_any_order(const std::vector<Math>& wanted, std::vector<Math> given) {
  for (const Math& part : wanted) {
    const auto found = std::ranges::find_if(given, [&](const Math& x) { return same_answer(part, x); });
    if (found == given.end()) return false;
    given.erase(found);
  }
  return given.empty();
}

bool same_parts_in_order(const std::vector<Math>& wanted, const std::vector<Math>& given) {
  return std::ranges::equal(wanted, given, same_answer);
}

bool is_list(const Math& x) { return x->kind == MathKind::finite_set || x->kind == MathKind::tuple; }

bool is_open_interval(const Math& x) { return x->kind == MathKind::interval && x->is_left_open && x->is_right_open; }

bool same_sets(const Math& wanted, const Math& given) {
  const Math a = wanted->is_set() || wanted->kind == MathKind::tuple ? wanted : make_finite_set({wanted});
  const Math b = given->is_set() || given->kind == MathKind::tuple ? given : make_finite_set({given});
  if (a->kind == MathKind::interval && b->kind == MathKind::interval) {
    return a->is_left_open == b->is_left_open && a->is_right_open == b->is_right_open &&
           same_parts_in_order(a->parts, b->parts);
  }
  if (same_math(a, b)) return true;
  const auto x = real_set_of(a), y = real_set_of(b);
  if (x && y && *x == *y) return true;
  // (1, 2) may be a pair as well as an interval.
  const bool is_pair_left = is_open_interval(a) && is_list(b), is_pair_right = is_open_interval(b) && is_list(a);
  if (!(is_list(a) || is_pair_left) || !(is_list(b) || is_pair_right)) return false;
  return a->kind == MathKind::finite_set ? same_parts_in_any_order(a->parts, b->parts)
                                         : same_parts_in_order(a->parts, b->parts);
}

std::string turned(const std::string& sign) {
  static const std::map<std::string, std::string> kTurned{
      {"<", ">"}, {">", "<"}, {"<=", ">="}, {">=", "<="}, {"=", "="}};
  const auto found = kTurned.find(sign);
  return found == kTurned.end() ? "" : found->second;
}

void add_symbols(const Math& x, std::set<std::string>& names) {
  if (x->kind == MathKind::symbol) names.insert(x->name);
  for (const Math& part : x->parts) add_symbols(part, names);
}

size_t num_symbols(const Math& x) {
  std::set<std::string> names;
  add_symbols(x, names);
  return names.size();
}

// Equations in several unknowns also where one is a multiple of the other.
bool same_relations(const Math& a, const Math& b) {
  if (a->kind == MathKind::conjunction && b->kind == MathKind::conjunction) {
    return std::ranges::equal(a->parts, b->parts, same_relations);
  }
  if (a->kind != MathKind::relation || b->kind != MathKind::relation) return false;
  const bool has_sets = std::ranges::any_of(std::vector<Math>{a->parts[0], a->parts[1], b->parts[0], b->parts[1]},
                                            [](const Math& x) { return x->is_set() || x->kind == MathKind::tuple; });
  if (has_sets) {
    return a->name == b->name && same_answer(a->parts[0], b->parts[0]) && same_answer(a->parts[1], b->parts[1]);
  }
  const Math x = difference(a->parts[0], a->parts[1]), y = difference(b->parts[0], b->parts[1]);
  if (a->name == b->name && equal_everywhere(x, y)) return true;
  if (turned(a->name) == b->name && equal_everywhere(x, negated(y))) return true;
  return a->name == "=" && b->name == "=" && num_symbols(x) > 1 && num_symbols(y) > 1 && common_factor(x, y) != 0;
}

}  // namespace

bool same_answer(const Math& wanted, const Math& given) {
  Math a = wanted, b = given;
  // A chain of equations is its beginning and its end.
  for (Math* x : {&a, &b}) {
    if (!is_assignment(*x)) continue;
    *x = make_math(MathKind::relation, {first_relation(*x)->parts[0], last_relation(*x)->parts[1]}, "=");
  }
  if (is_equation(b) && !is_equation(a)) {
    b = last_relation(b)->parts[1];
  } else if (is_assignment(a) && !is_equation(b)) {
    a = last_relation(a)->parts[1];
  }
  if (is_relation(a) && b->is_set()) {
    const auto x = real_set_of(a), y = real_set_of(b);
    if (x && y && *x == *y) return true;
  }
  if (same_math(a, b)) return true;
  try {
    if (is_relation(a) && is_relation(b)) return same_relations(a, b);
    const auto is_many = [](const Math& x) { return x->is_set() || x->kind == MathKind::tuple; };
    if (is_many(a) || is_many(b)) return same_sets(a, b);
    if (is_relation(a) || is_relation(b)) return false;
    if (a->kind == MathKind::symbol || b->kind == MathKind::symbol) return same_symbols(a, b);
    if (a->kind == MathKind::rational && b->kind == MathKind::rational) return false;  // they are not the same
    return same_numbers(a, b) || equal_everywhere(a, b);
  } catch (const MathFailure&) {
    return false;
  }
}

bool math_verified(const std::string& solution, const std::string& answer) {
  const MathAnswer wanted = find_math_answer(solution), given = find_math_answer(answer);
  if (wanted.value && given.value && same_answer(wanted.value, given.value)) return true;
  using tokenizer::jinja::strip;
  const auto a = strip(wanted.text, nullptr, true, true), b = strip(given.text, nullptr, true, true);
  return !a.empty() && a == b;
}

}  // namespace sinter::eval
