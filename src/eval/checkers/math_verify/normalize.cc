#include "eval/checkers/math_verify/normalize.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "eval/checkers/math.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/value.h"

namespace sinter::eval {
namespace {

struct Rule {
  const char *pattern, *with;
};

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string strip(const std::string& text) { return std::string(tokenizer::jinja::strip(text, nullptr, true, true)); }

// Names of units as they end answers, in the order in which they are tried; a point stands for any character.
constexpr const char* kUnits =
    "integerpoint|feet|sue|digit|pound|meal|edge|student|children ticket|multiple|east|degree|mph|kmph|ft|m square"
    "| m east|sq m|deg|mile|q .|monkey|prime|ratio|profit of rs|rd|o|gm|p . m|lb|tile|per|dm|lt|gain|ab|way|west"
    "|a .|b .|c .|d .|e .|f .|g .|h .|t|h|no change|men|soldier|pie|bc|excess|st|inches|noon|cent|by|gal|kmh|c|acre"
    "|rise|a . m|th|π r 2|sq|mark|l|toy|coin|sq . m|gallon|° f|profit|minw|yr|women|am|pm|hr|cu cm|square"
    "|v â € ™|are|rupee|rounds|cubic|cc|mtr|s|ohm|number|kmph|day|hour|minute|min|second|man|woman|sec|cube|mt"
    "|sq inch|mp|∏ cm ³|hectare|more|sec|unit|cu . m|cm 2|rs .|rs|kg|g|month|km|m|cm|mm|apple|liter|loss|yard|pure"
    "|year|increase|decrease|d|less|Surface|litre|pi sq m|s .|metre|meter|inch";

// All of these at once, from left to right, the first that fits at a place.
constexpr Rule kSpellings[] = {{R"(\\math(?:rm|it|bf))", "\\text"},
                               {R"(\\text(?:normal|bf|it|rm))", "\\text"},
                               {R"(\\(?:d|t|c)frac)", "\\frac"},
                               {R"(\s\.)", " 0."},
                               {R"(\{\.)", "{0."},
                               {R"(~=)", "\\approx"},
                               {R"(\s*\{\s*,\s*\})", ","},
                               {R"((?<![a-zA-Z]),?\s*(?:and|or)(?![a-zA-Z]))", ","},
                               {R"(,?\s*\\text\{\s*(?:and|or)\s*\})", ","},
                               {R"((?<!\\)\\\s)", " "},
                               {R"(infinity)", "\\infty"},
                               {R"(,?\\ldots)", " "},
                               {R"(\s*\bpercentage\b)", "\\%"},
                               {R"(\\text\{percentage\})", "%"},
                               {R"(\s*\bpercent\b)", "\\%"},
                               {R"(\\text\{percent\})", "%"},
                               {R"(\s*\bpct\b)", "\\%"},
                               {R"(\\text\{pct\})", "%"},
                               {R"((?<!\\)inf(?!inity))", "\\infty"},
                               {R"( sqrt)", "\\sqrt"}};

std::string one_spelling(const std::string& text) {
  static const PythonRegex kAny = [] {
    std::string pattern;
    for (const Rule& rule : kSpellings) pattern += std::string(pattern.empty() ? "" : "|") + "(" + rule.pattern + ")";
    return PythonRegex(pattern);
  }();
  std::string out;
  size_t done = 0;
  for (const RegexMatch& match : kAny.find_all(text)) {
    out += text.substr(done, match.begin - done);
    for (size_t i = 0; i < match.groups.size(); ++i) {
      if (!match.groups[i].empty()) out += kSpellings[i].with;
    }
    done = match.end;
  }
  return out + text.substr(done);
}

std::string replace_rules(std::string text, const std::vector<std::pair<PythonRegex, const char*>>& rules) {
  for (const auto& [pattern, with] : rules) text = pattern.replace(text, with);
  return text;
}

template <size_t N>
std::vector<std::pair<PythonRegex, const char*>> compile(const Rule (&rules)[N]) {
  std::vector<std::pair<PythonRegex, const char*>> compiled;
  for (const Rule& rule : rules) compiled.emplace_back(PythonRegex(rule.pattern), rule.with);
  return compiled;
}

std::string plain_commands(std::string text) {
  static constexpr Rule kFirst[] = {
      // \left( is (, \right\} is \}
      {R"(\\m?left(\\\{|\{|\\\||\||\[|\(|\\rbracl|\\lgroup|\\lbrace|\\lbrack|\\vert|\\lvert|\\lceil|\\lfloor|\\langle|\\llcorner|\\ulcorner))",
       R"(\1)"},
      {R"(\\m?right(\\\}|\}|\\\||\||\]|\)|\\rbrack|\\rgroup|\\rbrace|\\vert|\\rvert|\\rceil|\\rfloor|\\rangle|\\lrcorner|\\urcorner))",
       R"(\1)"},
      // (n)_{k}, a falling factorial
      {R"(\(([a-zA-Z0-9+\-*/\\ ]+?)\)_\{([a-zA-Z0-9+\-*/\\ ]+?)\})", R"(\\frac{(\1)!}{((\1)-(\2))!})"},
      {R"(\\mathrm\{th\}|\\!\s*|\\text\s*\{\s*\}|\\\$|\$|(?<!\\)["']|\\displaystyle)", ""}};
  static const auto kRules = compile(kFirst);
  text = replace_all(replace_all(std::move(text), "\\mathrm{T}", "T"), "\\mathrm{d}", "d");
  text = replace_all(replace_all(std::move(text), "{\\rm d}", "d"), "\\left[\\begin{matrix}", "\\begin{bmatrix}");
  text = replace_all(std::move(text), "\\end{matrix}\\right]", "\\end{bmatrix}");
  text = one_spelling(replace_rules(std::move(text), kRules));
  std::ranges::replace(text, '\n', ' ');
  std::ranges::replace(text, '\t', ' ');
  static const PythonRegex kDoubled(R"(\\\\(?=[a-zA-Z]))");
  return text.find("matrix") == std::string::npos ? kDoubled.replace(text, R"(\\)") : text;
}

std::string without_units(std::string text) {
  static const PythonRegex kText(R"((\\(?:text|mbox)\{.*?\})(\^\d|\{\^\d\})?$)");
  static const PythonRegex kUnit("(\\d|\\}|\\s)\\s*(?:(?:" + std::string(kUnits) + ")(?:s|es)?)\\s*$");
  if (const std::string rest = strip(kText.replace(text, "")); !rest.empty()) text = rest;
  for (int i = 0; i < 2; ++i) {
    if (const std::string rest = kUnit.replace(text, R"(\1)"); !rest.empty()) text = rest;
  }
  return text;
}

// \sqrt3 is \sqrt{3}; a blank may stand between.
std::string braced_roots(const std::string& text) {
  static const PythonRegex kRoot(R"(\\sqrt\s*(?!\\sqrt)([^\s{\[]))"), kBlank(R"(\\sqrt\s+)");
  return kBlank.replace(kRoot.replace(text, R"(\\sqrt{\1})"), R"(\\sqrt)");
}

// \frac12 is \frac{1}{2}, \frac1{72} is \frac{1}{72}; nothing where one has less than two characters.
std::string braced_fractions(const std::string& text) {
  using tokenizer::jinja::code_point_bytes;
  constexpr std::string_view kFraction = "\\frac";
  std::string out;
  size_t at = 0;
  for (size_t next; (next = text.find(kFraction, at)) != std::string::npos;) {
    out += text.substr(at, next - at);
    out += kFraction;
    at = next + kFraction.size();
    while (at < text.size() && std::isspace(static_cast<unsigned char>(text[at]))) ++at;
    if (at < text.size() && text[at] == '{') continue;
    const std::string_view rest = std::string_view(text).substr(at, text.find(kFraction, at) - at);
    const size_t a = rest.empty() ? 0 : code_point_bytes(rest);
    if (rest.size() <= a) return text;
    const size_t b = code_point_bytes(rest.substr(a));
    out += "{" + std::string(rest.substr(0, a)) + "}";
    const std::string below(rest.substr(a, b));
    out += below == "{" ? below : "{" + below + "}";
    at += a + b;
  }
  return out + text.substr(at);
}

std::string braced_operators(std::string text) {
  static constexpr Rule kForms[] = {{R"(\^\s?\((.*?)\))", R"(^{\1})"},
                                    {R"(sqrt\s?\((.*?)\))", R"(\\sqrt{\1})"},
                                    {R"(\\frac\s?(\d)\s?(\d+))", R"(\\frac{\1}{\2})"},
                                    {R"(\\log_\s?(\d)\s?(\d+))", R"(\\log_{\1}{\2})"},
                                    {R"(\\frac\s?\{(.*?)\}\s?(\d))", R"(\\frac{\1}{\2})"},
                                    {R"(\\frac\s?(\d)\s?\{(.*?)\})", R"(\\frac{\1}{\2})"},
                                    {R"(\\sqrt\s?(\d))", R"(\\sqrt{\1})"}};
  static const auto kRules = compile(kForms);
  text = replace_all(replace_rules(std::move(text), kRules), " sqrt", "\\sqrt");
  text = braced_fractions(braced_roots(text));
  static const PythonRegex kQuotient(R"((0|-?[1-9]\d*)/(0|-?[1-9]\d*)\Z)");
  RegexMatch match;
  if (!kQuotient.search(text, &match, true)) return text;
  return "\\frac{" + match.groups[0] + "}{" + match.groups[1] + "}";
}

// Whether the box before belongs to the same answer: right before the other, or not far with "and", "or" or a comma.
bool belongs_to_next(const std::string& between, const std::string& content, const std::string& next) {
  static const PythonRegex kSeparator(R"(\b(and|or)\b|,|;)");
  const auto length = tokenizer::jinja::num_code_points(between);
  return length < 10 || (next != content && length < 70 && kSeparator.search(between));
}

size_t closing_brace(const std::string& text, size_t open, size_t end) {
  int depth = 0;
  for (size_t i = open; i < end; ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) return i;
  }
  return std::string::npos;
}

}  // namespace

std::string boxed_content(const std::string& text, Boxes boxes) {
  std::vector<std::string> found;  // from the last one on
  size_t end = text.size();
  for (bool is_first = true;; is_first = false) {
    const std::string before = text.substr(0, end);
    const size_t boxed = before.rfind("\\boxed"), framed = before.rfind("\\fbox");
    if (boxed == std::string::npos && framed == std::string::npos) break;
    const bool is_boxed = framed == std::string::npos || (boxed != std::string::npos && boxed > framed);
    const size_t begin = is_boxed ? boxed : framed;
    size_t open = begin + (is_boxed ? 6 : 5);
    while (open < end && std::isspace(static_cast<unsigned char>(text[open]))) ++open;
    if (open >= end) break;
    const size_t close = text[open] == '{' ? closing_brace(text, open, end) : std::string::npos;
    if (close == std::string::npos) {
      if (found.empty()) found.push_back(text.substr(open));
      break;
    }
    const std::string content = strip(text.substr(open + 1, close - open - 1));
    if (boxes == Boxes::last && !is_first &&
        !belongs_to_next(text.substr(close + 1, end - close - 1), content, found.back())) {
      break;
    }
    if (found.empty() || found.back() != content) found.push_back(content);
    end = begin;
  }
  if (found.empty()) return text;
  std::string joined;
  for (auto content = found.rbegin(); content != found.rend(); ++content) {
    joined += (joined.empty() && content == found.rbegin() ? "" : ",") + *content;
  }
  return joined;
}

std::string normalize_latex(std::string latex, Boxes boxes) {
  latex = without_units(plain_commands(boxed_content(latex, boxes)));
  if (latex.starts_with(".")) latex.insert(0, "0");
  if (latex == "0.5") latex = "\\frac{1}{2}";
  return strip(braced_operators(std::move(latex)));
}

}  // namespace sinter::eval
