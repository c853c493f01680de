#include "eval/language/sentences.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <unordered_map>

#include "eval/language/data.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/runtime.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;

// How a word was seen in the text that the model is from: at the beginning or in the middle of a sentence or one does
// not know where, with a capital or without.
constexpr int kMiddleUpper = 4, kBeginLower = 16;
constexpr int kUpper = 2 + 4 + 8, kLower = 16 + 32 + 64;
constexpr const char* kNumber = "##number##";
// \w and [^\W\d] as NLTK's engine (the Python package regex) reads them: marks are in.
constexpr const char* kWordLetter = R"([\p{L}\p{M}\p{Nl}\p{Pc}\x{200c}\x{200d}])";
constexpr const char* kWordCharacter = R"([\p{L}\p{M}\p{Nl}\p{Nd}\p{Pc}\x{200c}\x{200d}])";

struct Model {
  std::set<std::string, std::less<>> abbreviations, starters;
  std::set<std::pair<std::string, std::string>> collocations;
  std::unordered_map<std::string, int> words;

  Model() {
    read_language_data(LanguageData::punkt, [this](const std::vector<std::string_view>& cells) {
      const std::string kind(cells[0]), first(cells[1]);
      if (kind == "abbreviation") abbreviations.insert(first);
      if (kind == "starter") starters.insert(first);
      if (kind == "collocation") collocations.emplace(first, cells[2]);
      if (kind == "word") words[first] = std::stoi(std::string(cells[2]));
    });
  }
  int seen(const std::string& type) const {
    const auto at = words.find(type);
    return at == words.end() ? 0 : at->second;
  }
};

const Model& model() {
  static const Model kModel;
  return kModel;
}

struct Token {
  std::string text, type;  // type: lower case, numbers as one
  bool ends_sentence = false, is_abbreviation = false, is_ellipsis = false;

  explicit Token(std::string t) : text(std::move(t)), type(jinja::to_lower(text)) {
    static const PythonRegex kNumeric(R"(^-?[\.,]?\d[\d,\.-]*\.?$)");
    if (kNumeric.search(type)) type = kNumber;
  }
  std::string type_without_period() const {
    return type.size() > 1 && type.back() == '.' ? type.substr(0, type.size() - 1) : type;
  }
  std::string type_in_sentence() const { return ends_sentence ? type_without_period() : type; }
  bool is_initial() const {
    static const PythonRegex kInitial(kWordLetter + std::string(R"(\.$)"));
    return kInitial.search(text, nullptr, true);
  }
  // Of the first character.
  bool has_case(bool upper) const {
    const std::string first = text.substr(0, jinja::code_point_bytes(text));
    const std::string up = jinja::to_upper(first), low = jinja::to_lower(first);
    return upper ? first == up && first != low : first == low && first != up;
  }
};

constexpr const char* kNonWord = R"re((?:[)";}\]*:@'({\[‘’“”«»?!]))re";
constexpr const char* kRepeated = R"re((?:\-{2,}|\.{2,}|(?:\.\s){2,}\.))re";

std::vector<Token> split_tokens(const std::string& text) {
  static const PythonRegex kWord(fmt::format(
      R"re({1}|(?=[^("`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{0}|{1}|,(?=$|\s|{0}|{1}))|\S)re", kNonWord, kRepeated));
  std::vector<Token> tokens;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    for (const RegexMatch& m : kWord.find_all(line)) tokens.emplace_back(line.substr(m.begin, m.end - m.begin));
    begin = end + 1;
  }
  return tokens;
}

// By the word alone.
void judge_word(Token& token) {
  static const PythonRegex kEllipsis(R"(\.\.+$)");
  const std::string& text = token.text;
  if (text == "." || text == "?" || text == "!") {
    token.ends_sentence = true;
  } else if (kEllipsis.search(text, nullptr, true)) {
    token.is_ellipsis = true;
  } else if (text.ends_with('.') && !text.ends_with("..")) {
    const std::string word = jinja::to_lower(text.substr(0, text.size() - 1));
    const std::string part = word.substr(word.rfind('-') + 1);
    const auto& known = model().abbreviations;
    (known.contains(word) || known.contains(part) ? token.is_abbreviation : token.ends_sentence) = true;
  }
}

// Whether spelling says that a token begins a sentence; nullopt where it says nothing.
std::optional<bool> begins_by_spelling(const Token& token) {
  if (token.text.size() == 1 && std::string_view(";:,.!?").find(token.text[0]) != std::string_view::npos) return false;
  const int seen = model().seen(token.type_in_sentence());
  if (token.has_case(true) && (seen & kLower) && !(seen & kMiddleUpper)) return true;
  if (token.has_case(false) && ((seen & kUpper) || !(seen & kBeginLower))) return false;
  return std::nullopt;
}

// By the word behind it.
void judge_pair(Token& token, const Token& next) {
  if (!token.text.ends_with('.')) return;
  const std::string type = token.type_without_period(), next_type = next.type_in_sentence();
  const bool is_initial = token.is_initial();
  auto mark_abbreviation = [&] {
    token.ends_sentence = false;
    token.is_abbreviation = true;
  };
  if (model().collocations.contains({type, next_type})) return mark_abbreviation();
  if ((token.is_abbreviation || token.is_ellipsis) && !is_initial) {
    if (begins_by_spelling(next) == true || (next.has_case(true) && model().starters.contains(next_type))) {
      token.ends_sentence = true;
      return;
    }
  }
  if (!is_initial && type != kNumber) return;
  const std::optional<bool> begins = begins_by_spelling(next);
  const bool is_name = !begins && is_initial && next.has_case(true) && !(model().seen(next_type) & kLower);
  if (begins == false || is_name) mark_abbreviation();
}

// A sentence ends in the text before its last token.
bool holds_sentence_end(const std::string& text) {
  std::vector<Token> tokens = split_tokens(text);
  for (Token& token : tokens) judge_word(token);
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    judge_pair(tokens[i], tokens[i + 1]);
    if (tokens[i].ends_sentence) return true;
  }
  return false;
}

struct Slice {
  size_t begin, end;
};

// A final mark that may end a sentence, with the word before it.
struct Candidate {
  Slice word{0, 0};
  RegexMatch mark;
};

std::vector<Candidate> find_candidates(const std::string& text) {
  static const PythonRegex kMark(fmt::format(R"re([.?!](?=({0}|\s+(\S+))))re", kNonWord));
  std::vector<Candidate> candidates;
  Candidate last;
  bool has_last = false;
  for (const RegexMatch& mark : kMark.find_all(text)) {
    const std::string_view before = std::string_view(text).substr(last.word.end, mark.begin - last.word.end);
    const size_t blank = before.find_last_of(" \t\n\r\v\f");
    const size_t begin = blank == std::string_view::npos || blank == 0 ? last.word.begin : last.word.end + blank + 1;
    if (has_last && last.word.end <= begin) candidates.push_back(last);
    last = {{begin, mark.begin}, mark};
    has_last = true;
  }
  if (has_last) candidates.push_back(last);
  return candidates;
}

std::vector<Slice> cut(const std::string& text) {
  std::vector<Slice> slices;
  size_t begin = 0;
  for (const Candidate& c : find_candidates(text)) {
    const std::string &behind = c.mark.groups[0], &next = c.mark.groups[1];
    const std::string context = text.substr(c.word.begin, c.mark.end - c.word.begin) + behind;
    if (!holds_sentence_end(context)) continue;
    slices.push_back({begin, c.mark.end});
    begin = next.empty() ? c.mark.end : c.mark.end + behind.size() - next.size();
  }
  slices.push_back({begin, std::max(begin, jinja::strip(text, nullptr, false, true).size())});
  return slices;
}

}  // namespace

// Closing marks that stand behind a sentence's end are the sentence's.
std::vector<std::string> split_sentences(const std::string& text) {
  static const PythonRegex kClosing(R"re(["')\]}‘’“”«»]+?(?:\s+|(?=--)|$))re", {.multiline = true});
  const std::vector<Slice> slices = cut(text);
  std::vector<std::string> sentences;
  size_t moved = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const size_t begin = std::min(slices[i].begin + moved, slices[i].end);
    size_t end = slices[i].end;
    if (i + 1 < slices.size()) {
      const std::string next = text.substr(slices[i + 1].begin, slices[i + 1].end - slices[i + 1].begin);
      RegexMatch match;
      moved = 0;
      if (kClosing.search(next, &match, true)) {
        moved = match.end;
        end = slices[i + 1].begin +
              jinja::strip(std::string_view(next).substr(0, match.end), nullptr, false, true).size();
        sentences.push_back(text.substr(begin, end - begin));
        continue;
      }
    }
    if (end > begin) sentences.push_back(text.substr(begin, end - begin));
  }
  return sentences;
}

std::vector<std::string> tokenize_words(const std::string& text) {
  struct Rule {
    PythonRegex pattern;
    std::string with;
  };
  static const std::vector<Rule> kFirst = [] {
    std::vector<Rule> rules;
    const std::string clitic =
        fmt::format(R"re((?i)(?<!{0})(\')(?!(?:re|ve|ll|m|t|s|d|n)(?!{0}))(?={0}))re", kWordCharacter);
    for (const auto& [pattern, with] :
         std::vector<std::pair<std::string, const char*>>{{R"re(([«“‘„]|[`]+))re", R"( \1 )"},
                                                          {R"re(^\")re", "``"},
                                                          {R"re((``))re", R"( \1 )"},
                                                          {R"re(([ \(\[{<])(\"|\'{2}))re", R"(\1 `` )"},
                                                          {clitic, R"(\1 )"},
                                                          {R"re(([^\.])(\.)([\]\)}>"\'»”’ ]*+)\s*$)re", R"(\1 \2 \3 )"},
                                                          {R"re(([:,])([^\d]))re", R"( \1 \2)"},
                                                          {R"re(([:,])$)re", R"( \1 )"},
                                                          {R"re((\.{2,}))re", R"( \1 )"},
                                                          {R"re(([;@#$%&]))re", R"( \1 )"},
                                                          {R"re(([\x{2012}-\x{2015}]))re", R"( \1 )"},
                                                          {R"re(([^\.])(\.)([\]\)}>"\']*)\s*$)re", R"(\1 \2\3 )"},
                                                          {R"re(([?!]))re", R"( \1 )"},
                                                          {R"re(([^'])' )re", R"(\1 ' )"},
                                                          {R"re(([*]))re", R"( \1 )"},
                                                          {R"re(([\]\[\(\)\{\}\<\>]))re", R"( \1 )"},
                                                          {R"re((--))re", R"( \1 )"}}) {
      rules.push_back({PythonRegex(pattern), with});
    }
    return rules;
  }();
  static const std::vector<Rule> kEndings = [] {  // they look at a blank behind the word
    std::vector<Rule> rules;
    for (const auto& [pattern, with] : std::vector<std::pair<const char*, const char*>>{
             {R"re(([»”’]))re", R"( \1 )"},
             {R"re('')re", " '' "},
             {R"re(")re", " '' "},
             {R"re(\s+)re", " "},
             {R"re(([^' ])('[sS]|'[mM]|'[dD]|') )re", R"(\1 \2 )"},
             {R"re(([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) )re", R"(\1 \2 )"},
             {R"re((?i)\b(can)(not)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(d)('ye)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(gim)(me)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(gon)(na)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(got)(ta)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(lem)(me)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(more)('n)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(wan)(na)(?=\s))re", R"( \1 \2 )"},
             {R"re((?i) ('t)(is)\b)re", R"( \1 \2 )"},
             {R"re((?i) ('t)(was)\b)re", R"( \1 \2 )"}}) {
      rules.push_back({PythonRegex(pattern), with});
    }
    return rules;
  }();
  std::vector<std::string> words;
  for (std::string sentence : split_sentences(text)) {
    for (const Rule& rule : kFirst) sentence = rule.pattern.replace(sentence, rule.with);
    sentence = " " + sentence + " ";
    for (const Rule& rule : kEndings) sentence = rule.pattern.replace(sentence, rule.with);
    bool in_word = false;
    jinja::each_code_point(sentence, [&](std::string_view point) {
      const bool is_blank = jinja::is_space(point);
      if (!is_blank && !in_word) words.emplace_back();
      if (!is_blank) words.back() += point;
      in_word = !is_blank;
    });
  }
  return words;
}

}  // namespace sinter::eval
