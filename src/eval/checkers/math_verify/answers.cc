#include "eval/checkers/math_verify/answers.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/error.h"
#include "eval/checkers/math_verify/latex_reader.h"
#include "eval/checkers/math_verify/normalize.h"
#include "eval/tasks/python_regex.h"

namespace sinter::eval {
namespace {

constexpr int kMaxFormulas = 6;  // beside each other, with commas, "and", "or"

std::string join(const std::vector<std::string>& parts, std::string_view between) {
  std::string all;
  for (const std::string& part : parts) all += std::string(all.empty() ? "" : between) + part;
  return all;
}

// Where formulas stand, with one group for each kind of surroundings and one for a percentage behind it.
struct FormulaPattern {
  std::string pattern;
  size_t num_groups = 0;
};

FormulaPattern formula_pattern(bool is_boxed) {
  // What is between $$ $$, \[ \], $ $, \( \) and [ ]: one character of it.
  static constexpr std::string_view kInside[] = {R"((?:[^$]|\$(?!\$)))", R"((?:[^\\]|\\(?!\])))", R"((?:\\[$]|[^\n$]))",
                                                 R"((?:[^\\\n]|\\(?!\))))", R"([^\n\]\[])"};
  static constexpr std::pair<std::string_view, std::string_view> kAround[] = {{R"((?<!\\)\$\$)", R"((?<!\\)\$\$)"},
                                                                              {R"((?<!\\)\\\[)", R"((?<!\\)\\\])"},
                                                                              {R"((?<!\\|\d)\$)", R"((?<!\\)\$)"},
                                                                              {R"((?<!\\)\\\()", R"((?<!\\)\\\))"},
                                                                              {R"(\s\[)", R"(\]\s)"}};
  std::vector<std::string> places;
  for (size_t i = 0; i < std::size(kInside); ++i) {
    const std::string one(kInside[i]);
    const std::string inside = is_boxed ? one + R"(*?\\boxed\{)" + one + R"(+?\})" + one + "*?" : one + "+?";
    places.push_back(std::string(kAround[i].first) + "(" + inside + ")" + std::string(kAround[i].second));
  }
  const std::string number = R"(-?\d+(?:[.,]\d+)?)";
  if (!is_boxed) places.push_back(R"((-?\\frac\{)" + number + R"(\}\{)" + number + R"(\}))");
  return {"(?:(?:" + join(places, "|") + R"()\s*((?:\\?%|[Pp]ercent|[Pp]ercentage|[Pp]ct))?))", places.size() + 1};
}

enum class PlaceKind { formulas, boxed, expression };

struct Place {
  PythonRegex pattern;
  int priority;
  PlaceKind kind;
  size_t groups_of_formula;  // of `formulas`
};

void add_formula_places(std::vector<Place>& places) {
  const PythonRegex::Flags lines{.ignore_case = false, .multiline = false, .dot_all = true};
  auto row_of = [](const FormulaPattern& one, const std::string& blank) {
    std::string row = one.pattern;
    for (int i = 1; i < kMaxFormulas; ++i) row += "(?:" + blank + R"(\s*(?:,?and|,?or|,)\s*)" + one.pattern + ")?";
    return row;
  };
  const FormulaPattern one = formula_pattern(false);
  const std::string row = "(?:" + row_of(one, "") + ")";
  for (const auto& [before, behind, priority] :
       std::vector<std::tuple<std::string, std::string, int>>{{R"((?i:final answer is)\:?\s*)", R"(\.?\s?I hope)", 0},
                                                              {R"((?i:final answer.{0,100}?)\s+is\:?\s*)", "", 50},
                                                              {"(?i:answer):.{0,50}?", "", 100},
                                                              {"(?i:answer).{0,50}?", "", 200},
                                                              {"", "", 300}}) {
    places.push_back({PythonRegex(before + row + behind, lines), priority, PlaceKind::formulas, one.num_groups});
  }
  const FormulaPattern boxed = formula_pattern(true);
  std::string boxed_row = boxed.pattern;
  for (int i = 1; i < kMaxFormulas; ++i) {
    boxed_row += R"(\s*(?:\s*(?:,?and|,?or|,)\s*)" + boxed.pattern + ")?";
  }
  places.push_back({PythonRegex(boxed_row, lines), 50, PlaceKind::formulas, boxed.num_groups});
  places.push_back({PythonRegex(R"((\\boxed\{.+\}))", lines), 50, PlaceKind::boxed, 0});
}

void add_expression_places(std::vector<Place>& places) {
  const std::string number = R"((?<!\d)(?:(-?[1-9]\d{0,2}(?:[ ,]\d{3})+)(\.\d+)?|(-?\d+)([.,]\d+)|(\.\d+)|(-?\d+)))"
                             R"((\s*(?:%|[Pp]ercent|\s*[Pp]ercentage|\s*[Pp]ct))?)";
  const std::string signs = R"(\+\-\*\×\/\^\(\)\÷)";
  const std::string characters = R"([\d\.\s)" + signs + "]";
  const std::string expression = R"((-?\(?-?\d)" + characters + "*[" + signs + "]" + characters + R"(+\)?))";
  const std::string before = R"((?:^|\s|\=)(?:\*\*)?)", behind = R"((?:\*\*)?(?:\.|,|:|\s|\)|\$|$))";
  const std::string money =
      "[$€£¥₹₽₪₩₫฿₡₢₣₤₥₦₧₨₭₮₯₰₱₲₳₴₵₶₷₸₺₻₼₾₿]?";
  const std::string anchored_expression = "(?:" + before + expression + behind + ")";
  const std::string anchored_number = "(?:" + before + money + number + ")";
  const std::string either = "(?:" + anchored_expression + "|" + anchored_number + ")";
  const std::string no_expression = "(?:(?!)())?";  // keeps the groups in place where there is no expression
  for (const auto& [pattern, priority] : std::vector<std::pair<std::string, int>>{
           {R"((?i:final answer is)\:?\s*)" + either + R"(\.?\s?I hope)", 0},
           {R"((?i:final answer.{0,100}?)\s+is\:?)" + either, 50},
           {R"((?i:answer):(?:.{0,100}=\s*|.{0,50}?))" + either + R"((?!\s*=))", 100},
           {R"((?i:answer)(?:.{0,100}=\s*|.{0,50}?))" + either + R"((?!\s*=))", 200},
           {anchored_expression, 300},
           {no_expression + anchored_number, 300}}) {
    places.push_back({PythonRegex(pattern), priority, PlaceKind::expression, 0});
  }
}

const std::vector<Place>& all_places() {
  static const std::vector<Place> kPlaces = [] {
    std::vector<Place> places;
    add_formula_places(places);
    add_expression_places(places);
    std::ranges::stable_sort(places, {}, &Place::priority);
    return places;
  }();
  return kPlaces;
}

bool treats_as_complex(const std::string& latex) {
  static const PythonRegex kComplex(
      R"(\\mathbb\{C\}|\\i\b|\bi\b|\\text\{i\}|\\mathrm\{i\}|\\imath\b|\\det|\\operatorname\{(?:tr|rank|Re|Im)\}|\\text\{rank\}|\\arg\{|\\Re\{|\\Im\{|\\text\{(?:Re|Im)\})");
  return kComplex.search(latex);
}

std::optional<Math> try_latex(const std::string& latex) {
  try {
    return read_latex(latex, treats_as_complex(latex));
  } catch (const MathFailure&) {
    return std::nullopt;
  }
}

// As it stands, or what is behind the last sign of equality of several.
std::optional<Math> read_formula(const std::string& latex) {
  if (const auto whole = try_latex(latex)) return whole;
  if (latex.find_first_of(",;") != std::string::npos) return std::nullopt;
  static const PythonRegex kEquals(R"((?<![\\<!>])=)");
  const std::vector<std::string> sides = kEquals.split(latex);
  return sides.size() > 2 ? try_latex(sides.back()) : std::nullopt;
}

MathAnswer read_formulas(const Place& place, const RegexMatch& match) {
  std::vector<Math> values;
  std::vector<std::string> texts;
  bool are_all_read = true;
  const size_t step = place.kind == PlaceKind::boxed ? 1 : place.groups_of_formula;
  for (size_t first = 0; first + step <= match.groups.size(); first += step) {
    std::string inside;
    for (size_t i = first; i < first + std::max<size_t>(step - 1, 1); ++i) {
      if (inside.empty()) inside = match.groups[i];
    }
    if (inside.empty()) continue;
    const bool is_percentage = step > 1 && !match.groups[first + step - 1].empty();
    texts.push_back(normalize_latex(inside, place.kind == PlaceKind::boxed ? Boxes::last : Boxes::all));
    const auto value = read_formula(texts.back());
    are_all_read = are_all_read && value;
    values.push_back(!value ? nullptr : is_percentage ? make_percentage(*value) : *value);
  }
  if (values.empty()) return {};
  if (values.size() == 1 || !are_all_read) return {values[0], texts[0]};
  std::vector<Math> elements;
  for (const Math& value : values) {
    if (value->kind == MathKind::finite_set) {
      elements.insert(elements.end(), value->parts.begin(), value->parts.end());
    } else {
      elements.push_back(value);
    }
  }
  return {make_finite_set(std::move(elements)), join(texts, " and ")};
}

// The groups are: expression, then whole and part with separators, whole and part, part alone, whole alone, percent.
MathAnswer read_expression(const RegexMatch& match) {
  auto group = [&](size_t i) { return i < match.groups.size() ? match.groups[i] : std::string(); };
  std::string whole, part;
  for (const size_t i : {1, 3, 6}) whole = whole.empty() ? group(i) : whole;
  for (const size_t i : {2, 4, 5}) part = part.empty() ? group(i) : part;
  try {
    if (whole.empty() && part.empty()) {
      std::string text = group(0);
      if (text.empty()) return {};
      const std::string shown = text;
      std::ranges::replace(text, '\n', ' ');
      try {
        return {read_arithmetic(text), shown};
      } catch (const MathFailure&) {
        return {nullptr, shown};
      }
    }
    std::erase_if(whole, [](char c) { return c == ',' || c == ' '; });
    whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
    std::ranges::replace(part, ',', '.');
    const std::string digits = (whole.empty() ? "0" : whole) + part;
    const Math number = make_number(digits);
    return {group(7).empty() ? number : make_percentage(number), digits};
  } catch (const MathFailure&) {
    return {nullptr, whole + part};
  }
}

struct Found {
  const Place* place;
  RegexMatch match;
};

// The matches of the places of one priority, those that end last first.
std::vector<Found> find_matches(const std::string& text, int priority) {
  std::vector<Found> all;
  for (const Place& place : all_places()) {
    if (place.priority != priority) continue;
    try {
      for (RegexMatch& match : place.pattern.find_all(text)) all.push_back({&place, std::move(match)});
    } catch (const base::Error&) {
      // A text with which the engine gives up: the other places are looked at.
    }
  }
  std::ranges::stable_sort(all, [](const Found& a, const Found& b) {
    return a.match.end != b.match.end ? a.match.end > b.match.end : a.match.begin < b.match.begin;
  });
  return all;
}

}  // namespace

MathAnswer find_math_answer(const std::string& text) {
  MathAnswer answer;
  for (const int priority : {0, 50, 100, 200, 300}) {
    for (const Found& found : find_matches(text, priority)) {
      const MathAnswer read = found.place->kind == PlaceKind::expression ? read_expression(found.match)
                                                                         : read_formulas(*found.place, found.match);
      if (answer.text.empty()) answer.text = read.text;
      answer.value = read.value;
      if (answer.value) return answer;
    }
  }
  return answer;
}

}  // namespace sinter::eval
