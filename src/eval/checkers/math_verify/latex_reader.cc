#include "eval/checkers/math_verify/latex_reader.h"

#include <algorithm>
#include <functional>

#include "eval/checkers/math_verify/latex_parser.h"
#include "eval/tasks/python_regex.h"

namespace sinter::eval {
namespace {

using Groups = std::vector<std::vector<Math>>;  // elements beside commas, groups of them beside semicolons

Math make_relation(const std::string& sign, const Math& left, const Math& right) {
  return make_math(MathKind::relation, {left, right}, sign);
}

// a < b, then < c: the relations a < b and b < c in a row.
Math extend_relation(const std::string& sign, const Math& left, const Math& right) {
  if (left->kind != MathKind::relation && left->kind != MathKind::conjunction) {
    return make_relation(sign, left, right);
  }
  std::vector<Math> row = left->kind == MathKind::conjunction ? left->parts : std::vector<Math>{left};
  row.push_back(make_relation(sign, row.back()->parts[1], right));
  return make_math(MathKind::conjunction, std::move(row));
}

Math collect(const Groups& groups) {
  if (groups.size() == 1) return groups[0].size() == 1 ? groups[0][0] : make_finite_set(groups[0]);
  std::vector<Math> parts;
  const bool are_single = std::ranges::all_of(groups, [](const auto& group) { return group.size() == 1; });
  for (const auto& group : groups) parts.push_back(are_single ? group[0] : make_math(MathKind::tuple, group));
  return make_finite_set(std::move(parts));
}

std::vector<Math> flat(const Groups& groups) {
  std::vector<Math> parts;
  for (const auto& group : groups) parts.insert(parts.end(), group.begin(), group.end());
  return parts;
}

// Ends that leave no interval are a pair.
Math interval_or_pair(const Math& left, const Math& right, bool is_left_open, bool is_right_open) {
  if (is_left_open == is_right_open) {
    bool is_pair = is_left_open && same_math(left, right);
    if (!has_symbols(left) && !has_symbols(right)) {
      const MathValue a = value_at(left, 1), b = value_at(right, 1);
      is_pair = a.imag() == 0 && b.imag() == 0 && (is_left_open ? b.real() <= a.real() : b.real() < a.real());
    }
    if (is_pair) return make_math(MathKind::tuple, {left, right});
  }
  return make_interval(left, right, is_left_open, is_right_open);
}

// Lists, relations and sets, around the formulas of LatexParser. Where several readings are possible the first one that
// goes to the end counts.
class AnswerParser {
 public:
  AnswerParser(const std::string& latex, bool is_complex) : latex_(latex), formulas_(read_tokens(latex), is_complex) {}

  Math run() {
    std::function<Math()> readings[] = {[this] { return named_elements(); }, [this] { return all_elements(); },
                                        [this] { return set_relation(); }};
    for (const auto& reading : readings) {
      formulas_.go_back(0);
      try {
        Math value = reading();
        if (formulas_.is("end")) return value;
      } catch (const MathFailure&) {
      }
    }
    throw MathFailure();
  }

 private:
  Math try_or(const std::function<Math()>& first, const std::function<Math()>& second) {
    const size_t before = formulas_.place();
    try {
      return first();
    } catch (const MathFailure&) {
      formulas_.go_back(before);
      return second();
    }
  }
  // x, or (x, y)
  Math names() {
    if (!formulas_.take("(")) return formulas_.symbol_factor();
    std::vector<Math> parts;
    do {
      parts.push_back(formulas_.symbol_factor());
    } while (formulas_.take(","));
    formulas_.expect(")");
    return parts.size() == 1 ? parts[0] : make_math(MathKind::tuple, std::move(parts));
  }
  // x = 1, 2; x \in \{1, 2\}
  Math named_elements() {
    const Math left = names();
    if (!formulas_.take("in")) formulas_.expect("=");
    return make_relation("=", left, collect(groups(false)));
  }
  Math all_elements() {
    const Groups all = groups(true);
    static const PythonRegex kThousands(R"(\s*-?\d{1,3}(,\d{3})+(\.\d+)?\s*\Z)");
    return kThousands.search(latex_, nullptr, true) ? whole_number() : collect(all);
  }
  // 12,345 is a number and no set.
  Math whole_number() const {
    std::string digits;
    const bool is_decimal = latex_.starts_with("0");  // 0,125
    for (const char c : latex_) {
      if (c == ',' && is_decimal) digits += '.';
      if (c != ',' && c != ' ') digits += c;
    }
    return make_number(digits);
  }
  Groups groups(bool with_relations) {
    Groups all;
    do {
      all.emplace_back();
      do {
        for (Math& part : element(with_relations)) all.back().push_back(std::move(part));
      } while (formulas_.take(","));
    } while (formulas_.take(";"));
    return all;
  }
  void expect_end_of_element() const {
    if (!formulas_.is_one_of({",", ";", "end", ")", "\\)", "]", "}", "\\}"})) throw MathFailure();
  }
  // One part, or two: \pm x, a \pm b.
  std::vector<Math> element(bool with_relations) {
    if (formulas_.take("+-")) {
      const Math x = formulas_.sum();
      expect_end_of_element();
      return {negated(x), x};
    }
    Math second;
    const Math first = try_or(
        [&] {
          Math set = set_atom();
          expect_end_of_element();
          return set;
        },
        [&] {
          Math left = formulas_.sum();
          if (formulas_.take("+-")) {
            const Math right = formulas_.sum();
            second = make_flat(MathKind::sum, left, negated(right));
            left = make_flat(MathKind::sum, left, right);
          } else if (with_relations) {
            left = relations_from(left);
          }
          expect_end_of_element();
          return left;
        });
    return second ? std::vector<Math>{first, second} : std::vector<Math>{first};
  }
  Math relations_from(Math left) {
    for (;;) {
      std::string sign;
      for (const char* known : {"=", "<", "<=", ">", ">=", "!="}) {
        if (formulas_.take(known)) sign = known;
        if (!sign.empty()) break;
      }
      if (!sign.empty()) {
        left = extend_relation(sign, left, formulas_.sum());
      } else if (formulas_.take("approx")) {
        const Math right = formulas_.sum();
        if (is_only_symbols(left)) left = right;
      } else {
        return left;
      }
    }
  }

  Math set_relation() {
    return try_or(
        [this] {
          const Math left = names();
          const bool is_outside = formulas_.take("notin");
          if (!is_outside && !formulas_.take("in")) formulas_.expect("=");
          const Math right = set_relation();
          return make_relation(is_outside ? "!=" : "=", left, right);
        },
        [this] { return set_difference(); });
  }
  Math set_difference() {
    Math value = set_union();
    while (formulas_.take("setminus")) value = make_math(MathKind::complement, {value, set_union()});
    return value;
  }
  static Math as_set(const Math& x) { return x->kind == MathKind::tuple ? make_finite_set(x->parts) : x; }
  Math set_union() {
    Math value = set_intersection();
    while (formulas_.take("union")) value = make_math(MathKind::union_of, {as_set(value), as_set(set_intersection())});
    return value;
  }
  Math set_intersection() {
    Math value = set_group();
    while (formulas_.take("intersection")) {
      value = make_math(MathKind::intersection, {as_set(value), as_set(set_group())});
    }
    return value;
  }
  Math set_group() {
    return try_or(
        [this] {
          formulas_.expect("(");
          const Math inner = set_difference();
          formulas_.expect(")");
          return inner;
        },
        [this] { return set_atom(); });
  }
  Math set_atom() {
    if (formulas_.is("set")) {
      const std::string name = formulas_.take_text();
      return name == "empty" ? make_finite_set({}) : make_math(MathKind::named_set, {}, name);
    }
    if (formulas_.is_one_of({"(", "\\(", "["})) {
      return try_or([this] { return interval(); }, [this] { return ordered(); });
    }
    const bool is_boxed = formulas_.take("boxed");
    const bool is_plain = formulas_.take("{");
    if (!is_plain && (is_boxed || !formulas_.take("\\{"))) throw MathFailure();
    if (is_plain && !is_boxed && formulas_.take("}")) return make_finite_set({});
    const Groups parts = groups(true);
    formulas_.expect(is_plain ? "}" : "\\}");
    return is_boxed ? collect(parts) : make_finite_set(flat(parts));
  }
  Math interval() {
    const bool is_left_open = !formulas_.is("[");
    formulas_.skip();
    const Math left = formulas_.sum();
    formulas_.expect(",");
    const Math right = formulas_.sum();
    const bool is_right_open = !formulas_.is("]");
    if (!formulas_.is_one_of({"]", ")", "\\)"})) throw MathFailure();
    formulas_.skip();
    return interval_or_pair(left, right, is_left_open, is_right_open);
  }
  // A tuple, or the one thing in parentheses.
  Math ordered() {
    const std::string close = formulas_.is("(") ? ")" : formulas_.is("[") ? "]" : "\\)";
    formulas_.skip();
    const std::vector<Math> parts = flat(groups(true));
    formulas_.expect(close);
    return parts.size() == 1 ? parts[0] : make_math(MathKind::tuple, parts);
  }

  const std::string& latex_;
  LatexParser formulas_;
};

// Digits, signs and parentheses as Python reads them.
class ArithmeticParser {
 public:
  explicit ArithmeticParser(const std::string& text) : text_(text) {}

  Math run() {
    Math value = sum();
    skip();
    if (at_ != text_.size()) throw MathFailure();
    return value;
  }

 private:
  bool take(std::string_view sign) {
    skip();
    if (!std::string_view(text_).substr(at_).starts_with(sign)) return false;
    at_ += sign.size();
    return true;
  }
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  Math sum() {
    if (++depth_ > 100) throw MathFailure();
    Math value = product();
    for (;;) {
      if (take("+")) {
        value = make_math(MathKind::sum, {value, product()});
      } else if (take("-")) {
        value = make_math(MathKind::sum, {value, negated(product())});
      } else {
        --depth_;
        return value;
      }
    }
  }
  Math product() {
    Math value = factor();
    for (;;) {
      skip();
      const bool is_power = std::string_view(text_).substr(at_).starts_with("**");
      if (!is_power && take("*")) {
        value = make_math(MathKind::product, {value, factor()});
      } else if (take("/")) {
        value = make_math(MathKind::product, {value, make_math(MathKind::power, {factor(), make_rational(-1, 1)})});
      } else {
        return value;
      }
    }
  }
  Math factor() {
    if (++depth_ > 100) throw MathFailure();
    Math value;
    if (take("-")) {
      value = negated(factor());
    } else if (take("+")) {
      value = factor();
    } else {
      value = atom();
      if (take("^") || take("**")) value = make_math(MathKind::power, {value, factor()});
    }
    --depth_;
    return value;
  }
  Math atom() {
    if (take("(")) {
      const Math value = sum();
      if (!take(")")) throw MathFailure();
      return value;
    }
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isdigit(static_cast<unsigned char>(text_[at_])) || text_[at_] == '.')) ++at_;
    const std::string digits = text_.substr(begin, at_ - begin);
    const bool is_whole = digits.find('.') == std::string::npos;
    const bool has_zeros =
        is_whole && digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != digits.npos;
    if (digits.empty() || digits == "." || has_zeros || std::ranges::count(digits, '.') > 1) throw MathFailure();
    return make_number(digits);
  }

  const std::string& text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

Math read_latex(const std::string& latex, bool is_complex) { return AnswerParser(latex, is_complex).run(); }

Math read_arithmetic(const std::string& text) { return ArithmeticParser(text).run(); }

}  // namespace sinter::eval
