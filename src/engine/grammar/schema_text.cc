#include "engine/grammar/schema_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/grammar/regex.h"

namespace sinter::engine::grammar {
namespace {

// A bound as digits: 12.5 is {"12", "5"}; its sign apart.
struct Decimal {
  std::string whole = "0", fraction;
  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

Decimal decimal_of(double value) {
  char text[800];
  const auto end = std::to_chars(text, text + sizeof text, std::fabs(value), std::chars_format::fixed).ptr;
  std::string digits(text, end);
  Decimal d;
  const size_t point = digits.find('.');
  d.whole = digits.substr(0, point);
  if (point != std::string::npos) d.fraction = digits.substr(point + 1);
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  return d;
}

std::string repeat(const std::string& what, size_t least, size_t most) {
  return fmt::format("{}{{{},{}}}", what, least, most);
}

constexpr size_t kDigits = 18, kFraction = 15;  // most digits that are written

// Regex of digit strings of the same length as `bound`, above it or below it (not equal).
std::string digits_beyond(const std::string& bound, bool is_above, bool is_whole) {
  std::string out;
  for (size_t i = 0; i < bound.size(); ++i) {
    char first = is_above ? static_cast<char>(bound[i] + 1) : '0',
         last = is_above ? '9' : static_cast<char>(bound[i] - 1);
    if (is_whole && i == 0 && bound.size() > 1) first = std::max(first, '1');  // no leading zeros
    if (first > last) continue;
    const size_t rest = bound.size() - i - 1;
    if (!out.empty()) out += '|';
    out += fmt::format("{}[{}-{}]", bound.substr(0, i), first, last) + repeat("[0-9]", rest, rest);
  }
  return out;
}

const std::string kAnyFraction = fmt::format("(\\.[0-9]{{1,{}}})?", kFraction);

// Magnitudes (no sign) at or above the bound, or at or below it.
std::string magnitudes(const Decimal& bound, bool is_above, bool is_exclusive, bool is_integer) {
  const std::string fraction = is_integer ? "" : kAnyFraction;
  std::vector<std::string> ways;
  auto add = [&](const std::string& whole, const std::string& rest) {
    if (!whole.empty()) ways.push_back("(" + whole + ")" + rest);
  };
  add(digits_beyond(bound.whole, is_above, true), fraction);
  const size_t length = bound.whole.size();
  if (is_above && length < kDigits) add("[1-9]" + repeat("[0-9]", length, kDigits - 1), fraction);
  if (!is_above && length > 1) add("0|[1-9]" + repeat("[0-9]", 0, length - 2), fraction);
  // The same whole part: the fraction decides.
  const std::string& f = bound.fraction;
  std::string equal;  // what may stand behind the equal whole part
  if (is_integer) {
    const bool fits = is_above ? f.empty() && !is_exclusive : !f.empty() || !is_exclusive;
    if (fits) ways.push_back(bound.whole);
  } else if (f.empty()) {
    if (is_above) {
      ways.push_back(bound.whole + (is_exclusive ? fmt::format("\\.[0-9]{{0,{}}}[1-9]", kFraction - 1) : kAnyFraction));
    } else if (!is_exclusive) {
      ways.push_back(bound.whole + fmt::format("(\\.0{{1,{}}})?", kFraction));
    }
  } else {
    const std::string beyond = digits_beyond(f, is_above, false);
    const size_t more = kFraction > f.size() ? kFraction - f.size() : 0;
    if (!beyond.empty()) ways.push_back(bound.whole + "\\.(" + beyond + ")" + repeat("[0-9]", 0, more));
    if (is_above) {
      if (!is_exclusive) ways.push_back(bound.whole + "\\." + f + repeat("[0-9]", 0, more));
      if (is_exclusive && more > 0)
        ways.push_back(bound.whole + "\\." + f + fmt::format("[0-9]{{0,{}}}[1-9]", more - 1));
    } else {
      ways.push_back(bound.whole);
      if (!is_exclusive) ways.push_back(bound.whole + "\\." + f + repeat("0", 0, more));
      for (size_t i = 1; i < f.size(); ++i) {  // shorter fractions that are below, digit by digit
        std::string head = f.substr(0, i);
        ways.push_back(bound.whole + "\\." + head);
        if (head.back() > '0')
          ways.push_back(bound.whole + "\\." + head.substr(0, i - 1) +
                         fmt::format("[0-{}]", static_cast<char>(head.back() - 1)));
      }
    }
  }
  if (is_above && !is_integer && !f.empty()) {  // shorter fractions that are above
    for (size_t i = 1; i < f.size(); ++i) {
      if (f[i - 1] < '9')
        ways.push_back(bound.whole + "\\." + f.substr(0, i - 1) +
                       fmt::format("[{}-9]", static_cast<char>(f[i - 1] + 1)));
    }
  }
  std::string out;
  for (const std::string& way : ways) out += (out.empty() ? "" : "|") + way;
  return out;
}

// Multiples of a whole number, by remainders of the digits read so far.
CharNfa multiples_of(int64_t step) {
  CharNfa nfa;
  nfa.states.resize(static_cast<size_t>(step) + 1);  // 0: nothing read; 1 + r: remainder r
  for (int64_t state = 0; state <= step; ++state) {
    auto& s = nfa.states[static_cast<size_t>(state)];
    s.accepts = state == 1;
    for (uint32_t d = 0; d < 10; ++d) {
      const int64_t remainder = ((state == 0 ? 0 : state - 1) * 10 + d) % step;
      s.edges.push_back({CharSet{{'0' + d, '0' + d}}, static_cast<int32_t>(1 + remainder)});
    }
  }
  return nfa;
}

CharNfa with_minus(const CharNfa& nfa) {
  CharNfa out;
  out.states[0].edges.push_back({CharSet{{'-', '-'}}, 1});
  for (const auto& state : nfa.states) {
    out.states.push_back(state);
    for (auto& e : out.states.back().edges) e.to += 1;
  }
  return trimmed(out);
}

}  // namespace

CharNfa number_texts(const SchemaRange& given, Budget& budget) {
  SchemaRange range = given;
  size_t max_fraction = kFraction;
  int64_t step = 0;
  if (range.multiple_of) {
    const double m = *range.multiple_of;
    SINTER_CHECK(m > 0, "multipleOf: {} is not above 0", m);
    if (m == std::floor(m)) {
      SINTER_CHECK(m <= 2000, "multipleOf: {} cannot be honoured (whole numbers up to 2000 can)", m);
      step = static_cast<int64_t>(m);
      range.is_integer = true;
    } else {
      const Decimal d = decimal_of(m);
      const bool is_power =
          d.whole == "0" && d.fraction.find_first_not_of('0') == d.fraction.size() - 1 && d.fraction.back() == '1';
      SINTER_CHECK(is_power, "multipleOf: {} cannot be honoured (whole numbers and 0.1, 0.01, ... can)", m);
      max_fraction = d.fraction.size();
    }
  }
  auto regex = [&](const std::string& pattern) {
    return pattern.empty() ? CharNfa{} : compile_regex(pattern, RegexMode::whole, budget);
  };
  const bool is_bounded = range.least || range.most;
  const std::string whole = fmt::format("(0|[1-9][0-9]{{0,{}}})", kDigits - 1);
  if (!is_bounded && step == 0) {
    if (range.is_integer) return regex("-?" + whole);
    const std::string fraction = fmt::format("(\\.[0-9]{{1,{}}})?", max_fraction);
    return regex("-?" + whole + fraction + (max_fraction < kFraction ? "" : "([eE][+-]?[0-9]{1,2})?"));
  }
  // Magnitudes from `low` to `high`, for one sign.
  struct Bound {
    double value;
    bool is_exclusive;
  };
  auto between = [&](std::optional<Bound> low, std::optional<Bound> high) {
    CharNfa nfa = regex(range.is_integer ? whole : whole + fmt::format("(\\.[0-9]{{1,{}}})?", max_fraction));
    if (low)
      nfa = intersected(nfa, regex(magnitudes(decimal_of(low->value), true, low->is_exclusive, range.is_integer)),
                        budget);
    if (high)
      nfa = intersected(nfa, regex(magnitudes(decimal_of(high->value), false, high->is_exclusive, range.is_integer)),
                        budget);
    if (step > 1) nfa = intersected(nfa, multiples_of(step), budget);
    return nfa;
  };
  std::optional<Bound> least, most;
  if (range.least) least = {*range.least, range.excludes_least};
  if (range.most) most = {*range.most, range.excludes_most};
  CharNfa out;
  if (!most || most->value >= 0) out = between(least && least->value >= 0 ? least : std::nullopt, most);
  if (!least || least->value < 0) {
    std::optional<Bound> low, high = least;
    if (most && most->value < 0) low = most;
    if (!low) low = Bound{0, true};  // -0 is not written
    const CharNfa negative = with_minus(between(low, high));
    out = out.is_empty() ? negative : united(out, negative);
  }
  return out;
}

std::string format_regex(const std::string& format) {
  const std::string date =
      "[1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2["
      "0-8]))";
  const std::string time =
      "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
  const std::string label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?";
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  if (format == "date") return date;
  if (format == "time") return time;
  if (format == "date-time") return date + "T" + time;
  if (format == "duration")
    return "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}[HMS])?|T[0-9]{1,4}[HMS]|[0-9]{1,4}Y([0-9]{1,2}M)?|[0-9]{1,4}M)";
  if (format == "email")
    return "[a-zA-Z0-9_+-]{1,32}(\\.[a-zA-Z0-9_+-]{1,32}){0,3}@" + label + "(\\." + label + "){1,3}";
  if (format == "hostname") return label + "(\\." + label + "){0,4}";
  if (format == "ipv4") return byte + "(\\." + byte + "){3}";
  if (format == "ipv6") return "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}";
  if (format == "uri")
    return "(https?|ftp)://" + label + "(\\." + label + "){0,4}(:[1-9][0-9]{0,3})?(/[a-zA-Z0-9._~-]{0,64}){0,8}";
  if (format == "uuid") return "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
  return "";
}

}  // namespace sinter::engine::grammar
