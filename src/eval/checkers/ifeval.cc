#include "eval/checkers/ifeval.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/language/detect.h"
#include "eval/language/letter_case.h"
#include "eval/language/sentences.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/runtime.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;
constexpr PythonRegex::Flags kNoCase{.ignore_case = true};
constexpr PythonRegex::Flags kLines{.multiline = true};

std::string trim(std::string_view text) { return std::string(jinja::strip(text, nullptr, true, true)); }
std::string lower(std::string_view text) { return to_lower(text); }

std::vector<std::string> split(const std::string& text, std::string_view separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t at; (at = text.find(separator, begin)) != std::string::npos; begin = at + separator.size()) {
    parts.push_back(text.substr(begin, at - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// The arguments of one instruction; those that are 0, empty or null count as not given.
struct Arguments {
  const Value& values;
  const Value* find(const char* key) const {
    const Value* value = find_field(values, key);
    return value && jinja::is_true(*value) ? value : nullptr;
  }
  int64_t integer(const char* key) const {
    const Value* value = find(key);
    return value && value->is_number() ? static_cast<int64_t>(value->number()) : 0;
  }
  std::string text(const char* key) const {
    const Value* value = find(key);
    return value ? value_text(*value) : "";
  }
  std::vector<std::string> texts(const char* key) const {
    const Value* value = find(key);
    return value ? text_list(*value) : std::vector<std::string>{};
  }
  // "less than" or "at least"
  bool compare(int64_t count, const char* threshold, const char* relation = "relation") const {
    return text(relation) == "less than" ? count < integer(threshold) : count >= integer(threshold);
  }
};

bool check_paragraphs(const Arguments& a, const std::string& text) {
  static const PythonRegex kDivider(R"(\s?\*\*\*\s?)");
  const std::vector<std::string> parts = kDivider.split(text);
  auto count = static_cast<int64_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!trim(parts[i]).empty()) continue;
    if (i != 0 && i + 1 != parts.size()) return false;
    --count;
  }
  return count == a.integer("num_paragraphs");
}

bool check_nth_paragraph(const Arguments& a, const std::string& text) {
  const std::vector<std::string> parts = split(text, "\n\n");
  auto count = static_cast<int64_t>(parts.size());
  for (const std::string& part : parts) count -= trim(part).empty();
  const int64_t nth = a.integer("nth_paragraph");
  if (nth > count || nth < 1) return false;
  const std::string paragraph = trim(parts[static_cast<size_t>(nth - 1)]);
  if (paragraph.empty()) return false;
  static const PythonRegex kBlank(R"(\s+)");
  std::string word = kBlank.split(paragraph)[0], first;
  const std::string single = "'", quote = "\"";
  word = std::string(jinja::strip(word, &single, true, false));
  word = std::string(jinja::strip(word, &quote, true, false));
  for (char c : word) {
    if (std::string_view(".,?!'\"").find(c) != std::string_view::npos) break;
    first += c;
  }
  return count == a.integer("num_paragraphs") && lower(first) == lower(a.text("first_word"));
}

bool check_highlights(const Arguments& a, const std::string& text) {
  static const PythonRegex kSingle(R"(\*[^\n\*]*\*)"), kDouble(R"(\*\*[^\n\*]*\*\*)");
  const std::string star = "*";
  int64_t count = 0;
  for (const RegexMatch& m : kSingle.find_all(text)) {
    count += !trim(jinja::strip(std::string_view(text).substr(m.begin, m.end - m.begin), &star, true, true)).empty();
  }
  for (const RegexMatch& m : kDouble.find_all(text))
    count += !trim(text.substr(m.begin + 2, m.end - m.begin - 4)).empty();
  return count >= a.integer("num_highlights");
}

bool check_postscript(const Arguments& a, const std::string& text) {
  const std::string marker = trim(a.text("postscript_marker"));
  const std::string pattern = marker == "P.P.S"  ? R"(\s*p\.\s?p\.\s?s.*$)"
                              : marker == "P.S." ? R"(\s*p\.\s?s\..*$)"
                                                 : R"(\s*)" + lower(marker) + ".*$";
  return PythonRegex(pattern, kLines).search(lower(text));
}

// Python's json.loads also takes NaN and infinities.
bool check_json(const std::string& answer) {
  std::string text = trim(answer);
  for (const std::string fence : {"```json", "```Json", "```JSON", "```"}) {
    if (text.starts_with(fence)) text.erase(0, fence.size());
  }
  if (text.ends_with("```")) text.resize(text.size() - 3);
  text = trim(text);
  if (text.starts_with("\xef\xbb\xbf")) return false;  // Python takes no byte order mark
  std::string plain;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (is_quoted && text[i] == '\\' && i + 1 < text.size()) {
      plain += text[i++];
      plain += text[i];
      continue;
    }
    bool is_special = false;
    for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
      if (is_quoted || is_special || !std::string_view(text).substr(i).starts_with(word)) continue;
      plain += "null";  // which no sign or digit may precede either
      i += word.size() - 1;
      is_special = true;
    }
    if (!is_special) plain += text[i];
  }
  return nlohmann::json::accept(plain);
}

bool check_two_answers(const std::string& text) {
  std::vector<std::string> valid;
  const std::vector<std::string> parts = split(text, "******");
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = trim(parts[i]);
    if (!part.empty()) {
      valid.push_back(part);
    } else if (i != 0 && i + 1 != parts.size()) {
      return false;
    }
  }
  return valid.size() == 2 && valid[0] != valid[1];
}

int64_t count_matches(const char* pattern, const std::string& text, PythonRegex::Flags flags = {}) {
  return static_cast<int64_t>(PythonRegex(pattern, flags).find_all(text).size());
}

using Check = std::function<bool(const Arguments&, const std::string&)>;

bool check_keywords(const Arguments& a, const std::string& text) {
  for (const std::string& word : a.texts("keywords")) {
    if (!PythonRegex(word, kNoCase).search(text)) return false;
  }
  return true;
}

bool check_forbidden(const Arguments& a, const std::string& text) {
  for (const std::string& word : a.texts("forbidden_words")) {
    if (PythonRegex("\\b" + word + "\\b", kNoCase).search(text)) return false;
  }
  return true;
}

bool check_letters(const Arguments& a, const std::string& text) {
  // For what is no letter of a to z ("!", "#") lm-eval draws a letter at random; this is its first draw with seed 0.
  const std::string given = a.text("letter"), small = lower(given);
  const std::string letter = jinja::num_code_points(given) == 1 && small >= "a" && small <= "z" ? small : "y";
  int64_t count = 0;
  jinja::each_code_point(lower(text), [&](std::string_view point) { count += point == letter; });
  return a.compare(count, "let_frequency", "let_relation");
}

bool check_title(const Arguments&, const std::string& text) {
  static const PythonRegex kTitle(R"(<<[^\n]+>>)");
  const std::string open = "<", close = ">";
  for (const RegexMatch& m : kTitle.find_all(text)) {
    const std::string inner(jinja::strip(std::string_view(text).substr(m.begin, m.end - m.begin), &open, true, false));
    if (!trim(jinja::strip(inner, &close, false, true)).empty()) return true;
  }
  return false;
}

bool check_capital_words(const Arguments& a, const std::string& text) {
  const std::vector<std::string> words = tokenize_words(text);
  const auto count = std::count_if(words.begin(), words.end(), [](const std::string& w) { return is_upper(w); });
  return a.compare(count, "capital_frequency", "capital_relation");
}

bool check_end(const Arguments& a, const std::string& text) {
  const std::string quote = "\"", plain = trim(text);
  return lower(jinja::strip(plain, &quote, true, true)).ends_with(lower(trim(a.text("end_phrase"))));
}

bool check_quotation(const Arguments&, const std::string& text) {
  const std::string t = trim(text);
  return t.size() > 1 && t.front() == '"' && t.back() == '"';
}

const std::map<std::string, Check>& checks() {
  static const std::map<std::string, Check> kChecks{
      {"keywords:existence", check_keywords},
      {"keywords:frequency",
       [](const Arguments& a, const std::string& t) {
         return a.compare(count_matches(trim(a.text("keyword")).c_str(), t, kNoCase), "frequency");
       }},
      {"keywords:forbidden_words", check_forbidden},
      {"keywords:letter_frequency", check_letters},
      {"language:response_language",
       [](const Arguments& a, const std::string& t) { return is_in_language(t, a.text("language")); }},
      {"length_constraints:number_sentences",
       [](const Arguments& a, const std::string& t) {
         return a.compare(static_cast<int64_t>(split_sentences(t).size()), "num_sentences");
       }},
      {"length_constraints:number_paragraphs", check_paragraphs},
      {"length_constraints:number_words",
       [](const Arguments& a, const std::string& t) { return a.compare(count_matches(R"(\w+)", t), "num_words"); }},
      {"length_constraints:nth_paragraph_first_word", check_nth_paragraph},
      {"detectable_content:number_placeholders",
       [](const Arguments& a, const std::string& t) {
         return count_matches(R"(\[.*?\])", t) >= a.integer("num_placeholders");
       }},
      {"detectable_content:postscript", check_postscript},
      {"detectable_format:number_bullet_lists",
       [](const Arguments& a, const std::string& t) {
         return count_matches(R"(^\s*\*[^\*].*$)", t, kLines) + count_matches(R"(^\s*-.*$)", t, kLines) ==
                a.integer("num_bullets");
       }},
      {"detectable_format:constrained_response",
       [](const Arguments&, const std::string& t) {
         return t.find("My answer is yes.") != std::string::npos || t.find("My answer is no.") != std::string::npos ||
                t.find("My answer is maybe.") != std::string::npos;
       }},
      {"detectable_format:number_highlighted_sections", check_highlights},
      {"detectable_format:multiple_sections",
       [](const Arguments& a, const std::string& t) {
         const std::string pattern = R"(\s?)" + trim(a.text("section_spliter")) + R"(\s?\d+\s?)";
         return count_matches(pattern.c_str(), t) >= a.integer("num_sections");
       }},
      {"detectable_format:json_format", [](const Arguments&, const std::string& t) { return check_json(t); }},
      {"detectable_format:title", check_title},
      {"combination:two_responses", [](const Arguments&, const std::string& t) { return check_two_answers(t); }},
      {"combination:repeat_prompt",
       [](const Arguments& a, const std::string& t) {
         return lower(trim(t)).starts_with(lower(trim(a.text("prompt_to_repeat"))));
       }},
      {"startend:end_checker", check_end},
      {"startend:quotation", check_quotation},
      {"change_case:capital_word_frequency", check_capital_words},
      {"change_case:english_capital",
       [](const Arguments&, const std::string& t) { return is_upper(t) && is_in_language(t, "en"); }},
      {"change_case:english_lowercase",
       [](const Arguments&, const std::string& t) { return is_lower(t) && is_in_language(t, "en"); }},
      {"punctuation:no_comma",
       [](const Arguments&, const std::string& t) { return t.find(',') == std::string::npos; }}};
  return kChecks;
}

}  // namespace

bool follows_instruction(const std::string& id, const Value& arguments, const std::string& answer) {
  auto found = checks().find(id);
  SINTER_CHECK(found != checks().end(), "there is no instruction '{}'", id);
  if (trim(answer).empty()) return false;
  return found->second(Arguments{arguments}, answer);
}

bool follows_loosely(const std::string& id, const Value& arguments, const std::string& answer) {
  std::vector<std::string> lines = split(answer, "\n");
  auto joined = [&](size_t begin, size_t end) {
    std::string text;
    for (size_t i = begin; i < end && i < lines.size(); ++i) text += (i > begin ? "\n" : "") + lines[i];
    return trim(text);
  };
  const size_t n = lines.size();
  std::vector<std::string> forms{answer, joined(1, n), joined(0, n - 1), joined(1, n - 1)};
  for (size_t i = 0; i < 4; ++i) {
    forms.push_back(forms[i]);
    std::erase(forms.back(), '*');
  }
  return std::any_of(forms.begin(), forms.end(),
                     [&](const std::string& form) { return follows_instruction(id, arguments, form); });
}

SampleMetrics ifeval_metrics(const TaskDocument& document, const std::string& answer) {
  const Value *ids = find_field(document, "instruction_id_list"), *arguments = find_field(document, "kwargs");
  SINTER_CHECK(ids && arguments, "'instruction_id_list' or 'kwargs' is undefined");
  const std::vector<std::string> names = text_list(*ids);
  SampleMetrics metrics;
  for (const bool is_loose : {false, true}) {
    const std::string kind = is_loose ? "loose" : "strict";
    bool all = true;
    SampleMetrics each;
    for (size_t i = 0; i < names.size(); ++i) {
      const Value& own = arguments->list()->items.at(i);
      const bool follows =
          is_loose ? follows_loosely(names[i], own, answer) : follows_instruction(names[i], own, answer);
      all = all && follows;
      each.push_back({"inst_level_" + kind + "_acc", follows ? 1.0 : 0.0, 1});
    }
    metrics.push_back({"prompt_level_" + kind + "_acc", all ? 1.0 : 0.0, 1});
    metrics.insert(metrics.end(), each.begin(), each.end());
  }
  return metrics;
}

}  // namespace sinter::eval
