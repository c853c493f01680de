#include "eval/checkers/math.h"

#include <algorithm>
#include <vector>

#include "eval/checkers/latex_value.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/value.h"

namespace sinter::eval {
namespace {

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::vector<std::string> split(const std::string& text, std::string_view separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != std::string::npos; begin = at + separator.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

size_t point_bytes(const std::string& text, size_t at) {
  return tokenizer::jinja::code_point_bytes(std::string_view(text).substr(at));
}

// \sqrt3 is \sqrt{3}. False where nothing follows.
bool write_roots(std::string& text) {
  std::vector<std::string> parts = split(text, "\\sqrt");
  std::string out = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].empty()) return false;
    const size_t n = point_bytes(parts[i], 0);
    out += parts[i][0] == '{' ? "\\sqrt" + parts[i] : "\\sqrt{" + parts[i].substr(0, n) + "}" + parts[i].substr(n);
  }
  text = out;
  return true;
}

// \frac12 is \frac{1}{2}, \frac1{72} is \frac{1}{72}. False where nothing follows; a single character changes nothing.
bool write_fractions(std::string& text) {
  std::vector<std::string> parts = split(text, "\\frac");
  std::string out = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    if (part.empty()) return false;
    out += "\\frac";
    if (part[0] == '{') {
      out += part;
      continue;
    }
    const size_t n = point_bytes(part, 0);
    if (part.size() <= n) return true;
    const size_t m = point_bytes(part, n);
    const std::string a = part.substr(0, n), b = part.substr(n, m);
    out += "{" + a + "}" + (b == "{" ? b : "{" + b + "}") + part.substr(n + m);
  }
  text = out;
  return true;
}

// As Python's int(): a sign and digits of any script, single underscores between them.
bool is_integer(const std::string& text) {
  static const PythonRegex kInteger(R"([+-]?\d+(_\d+)*\Z)");
  return kInteger.search(text, nullptr, true);
}

// As Python prints the number: no plus, no zeros before it.
std::string plain_integer(std::string text) {
  const bool is_negative = text[0] == '-';
  if (text[0] == '-' || text[0] == '+') text.erase(0, 1);
  text.erase(0, std::min(text.find_first_not_of('0'), text.size() - 1));
  return is_negative && text != "0" ? "-" + text : text;
}

bool is_word(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

// Units and words that are no part of an answer.
const std::vector<std::string>& removed_words() {
  static const std::vector<std::string> kWords{"square",       "ways",
                                               "integers",     "dollars",
                                               "mph",          "inches",
                                               "ft",           "hours",
                                               "km",           "units",
                                               "\\ldots",      "sue",
                                               "points",       "feet",
                                               "minutes",      "digits",
                                               "cents",        "degrees",
                                               "cm",           "gm",
                                               "pounds",       "meters",
                                               "meals",        "edges",
                                               "students",     "childrentickets",
                                               "multiples",    "\\text{s}",
                                               "\\text{.}",    "\\text{\ns}",
                                               "\\text{}^2",   "\\text{}^3",
                                               "\\text{\n}",   "\\text{}",
                                               "\\mathrm{th}", "^\\circ",
                                               "^{\\circ}",    "\\;",
                                               ",\\!",         "{,}",
                                               "\"",           "\\dots"};
  return kWords;
}

// Removes a word outside the names of TeX commands: "ft" stays in "\left".
std::string remove_outside_commands(const std::string& text, const std::string& word) {
  static const PythonRegex kCommand(R"(\\[a-zA-Z]+)");
  std::string out;
  size_t done = 0;
  for (const RegexMatch& match : kCommand.find_all(text)) {
    out += replace_all(text.substr(done, match.begin - done), word, "");
    out += text.substr(match.begin, match.end - match.begin);
    done = match.end;
  }
  return out + replace_all(text.substr(done), word, "");
}

}  // namespace

std::optional<std::string> last_boxed(const std::string& text) {
  if (text.find("\\boxed ") != std::string::npos) {
    return "\\boxed " + split(split(text, "\\boxed ").back(), "$")[0];
  }
  size_t begin = text.rfind("\\boxed");
  if (begin == std::string::npos) begin = text.rfind("\\fbox");
  if (begin == std::string::npos) return std::nullopt;
  int depth = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    depth += text[i] == '{';
    if (text[i] == '}' && --depth == 0) return text.substr(begin, i + 1 - begin);
  }
  return std::nullopt;
}

std::optional<std::string> unbox(const std::string& boxed) {
  for (const std::string left : {"\\boxed ", "\\boxed{"}) {
    if (left.back() == ' ' && boxed.find(left) == std::string::npos) continue;
    if (!boxed.starts_with(left)) return std::nullopt;
    if (left.back() == ' ') return boxed.substr(left.size());
    if (!boxed.ends_with("}")) return std::nullopt;
    return boxed.substr(left.size(), boxed.size() - left.size() - 1);
  }
  return std::nullopt;
}

std::optional<std::string> strip_answer(std::string text) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"\n", ""},
                                                                                 {"\\!", ""},
                                                                                 {"\\\\", "\\"},
                                                                                 {"tfrac", "frac"},
                                                                                 {"dfrac", "frac"},
                                                                                 {"\\left", ""},
                                                                                 {"\\right", ""},
                                                                                 {"^{\\circ}", ""},
                                                                                 {"^\\circ", ""},
                                                                                 {"\\$", ""}}) {
    text = replace_all(std::move(text), from, to);
  }
  if (const std::vector<std::string> units = split(text, "\\text{ "); units.size() > 1) {
    if (units.size() != 2) return std::nullopt;
    text = units[0];
  }
  text = replace_all(replace_all(replace_all(std::move(text), "\\%", ""), " .", " 0."), "{.", "{0.");
  if (text.empty()) return text;
  if (text[0] == '.') text.insert(0, "0");
  if (const std::vector<std::string> sides = split(text, "="); sides.size() == 2) {
    if (tokenizer::jinja::num_code_points(sides[0]) <= 2) text = sides[1];
  }
  if (!write_roots(text)) return std::nullopt;
  text = replace_all(std::move(text), " ", "");
  if (!write_fractions(text)) return std::nullopt;
  if (text == "0.5") text = "\\frac{1}{2}";
  const std::vector<std::string> parts = split(text, "/");
  if (parts.size() != 2) return text;
  if (!is_integer(parts[0]) || !is_integer(parts[1])) return std::nullopt;
  if (text.find_first_not_of("0123456789+-/") != std::string::npos) return text;
  const std::string a = plain_integer(parts[0]), b = plain_integer(parts[1]);
  return text == a + "/" + b ? "\\frac{" + a + "}{" + b + "}" : text;
}

bool hendrycks_equal(const std::string& a, const std::string& b) {
  const auto x = strip_answer(a), y = strip_answer(b);
  return x && y ? *x == *y : a == b;
}

std::string hendrycks_answer(const std::string& text) {
  const size_t first = text.find('$'), last = text.rfind('$');
  return first == last ? text : text.substr(first + 1, last - first - 1);
}

std::string minerva_answer(const std::string& text) {
  static const PythonRegex kAnswer("Final Answer: The final answer is(.*?). I hope it is correct.");
  RegexMatch match;
  if (!kAnswer.search(text + "I hope it is correct.", &match)) return "[invalidanswer]";
  return std::string(tokenizer::jinja::strip(match.groups[0], nullptr, true, true));
}

std::string minerva_normalize(std::string text) {
  text = split(text, "=").back();
  for (const std::string& word : removed_words()) {
    if (is_word(word)) text = PythonRegex("(?<!\\\\)\\b" + word + "\\b").replace(text, "");
  }
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"an ", ""},
                                                                                 {"a ", ""},
                                                                                 {".$", "$"},
                                                                                 {"\\$", ""},
                                                                                 {"\\ ", ""},
                                                                                 {" ", ""},
                                                                                 {"mbox", "text"},
                                                                                 {",\\text{and}", ","},
                                                                                 {"\\text{and}", ","},
                                                                                 {"\\text{m}", "\\text{}"}}) {
    text = replace_all(std::move(text), from, to);
  }
  for (const std::string& word : removed_words()) {
    text = is_word(word) ? remove_outside_commands(text, word) : replace_all(std::move(text), word, "");
  }
  for (const auto& [pattern, with] :
       std::vector<std::pair<std::string, std::string>>{{R"((.*?)(\$)(.*?)(\$)(.*))", R"($\3$)"},
                                                        {R"((\\text\{)(.*?)(\}))", R"(\2)"},
                                                        {R"((\\textbf\{)(.*?)(\}))", R"(\2)"},
                                                        {R"((\\overline\{)(.*?)(\}))", R"(\2)"},
                                                        {R"((\\boxed\{)(.*)(\}))", R"(\2)"},
                                                        {R"((frac)([^{])(.))", R"(frac{\2}{\3})"},
                                                        {R"((sqrt)(\[[^\]]*\])(\w))", R"(\1\2{\3})"},
                                                        {R"((sqrt)(?!\[)([^{]))", R"(sqrt{\2})"}}) {
    text = PythonRegex(pattern).replace(text, with);
  }
  text = replace_all(std::move(text), "$", "");
  static const PythonRegex kThousands(R"(-?\d{1,3}(,\d{3})+\Z)");  // 1,000 but no pair such as 0,1
  return kThousands.search(text, nullptr, true) ? replace_all(std::move(text), ",", "") : text;
}

bool minerva_equal(const std::string& a, const std::string& b) {
  if (!a.empty() && a == b) return true;
  return latex_values_equal(a, b);
}

}  // namespace sinter::eval
