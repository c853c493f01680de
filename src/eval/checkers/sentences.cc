// English words and sentences for IFEval.
#include <algorithm>
#include <set>

#include "eval/checkers/ifeval.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;

std::vector<std::string> split_blanks(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  jinja::each_code_point(text, [&](std::string_view point) {
    const bool is_blank = jinja::is_space(point);
    if (!is_blank) {
      if (!in_word) words.emplace_back();
      words.back() += point;
    }
    in_word = !is_blank;
  });
  return words;
}

// Words after which a period ends no sentence.
bool is_abbreviation(const std::string& word) {
  static const std::set<std::string> kKnown{
      "mr",  "mrs",  "ms",   "dr",   "prof", "st",  "jr",  "sr",  "inc", "ltd", "co",  "corp", "vs",  "i.e",
      "etc", "u.s",  "u.k",  "p.m",  "a.m",  "gen", "sen", "rep", "gov", "rev", "hon", "no",   "vol", "fig", "jan",
      "feb", "mar",  "apr",  "aug",  "sept", "sep", "oct", "nov", "dec", "mt",  "ave", "blvd", "dept", "est", "cf"};
  static const PythonRegex kLetters(R"(([a-z]\.){2,}[a-z]\Z)");  // U.S.A.
  return kKnown.contains(word) || kLetters.search(word, nullptr, true);
}

bool is_lower(const std::string& text) {
  const std::string first = text.substr(0, jinja::code_point_bytes(text));
  return tokenizer::lowercase_unicode(first) == first && first[0] != '"' && first[0] != '\'' &&
         std::isalpha(static_cast<unsigned char>(first[0]));
}

// Words that usually begin a sentence: before them even an abbreviation's period ends one.
bool is_starter(const std::string& word) {
  static const std::set<std::string> kKnown{"The",  "He",   "She",  "It",   "They", "We",   "You",  "This", "That", "These",
                                            "Those", "In",  "But",  "And",  "However", "If", "When", "There", "Then", "At"};
  return kKnown.contains(word);
}

// Whether a piece ends a sentence before the next one.
bool ends_sentence(const std::string& piece, const std::string& next) {
  static const PythonRegex kEnd(R"([.?!][)\]}"'”’*]*\Z)");
  RegexMatch match;
  if (!kEnd.search(piece, &match)) return false;
  if (piece[match.begin] != '.') return true;
  std::string word = tokenizer::lowercase_unicode(piece.substr(0, match.begin));
  word.erase(0, std::min(word.find_first_not_of("(\"'["), word.size()));
  if (word.ends_with(".")) return !is_lower(next);  // an ellipsis
  if (is_abbreviation(word)) return is_starter(next);
  const bool is_initial = word.size() == 1 && std::isalpha(static_cast<unsigned char>(word[0]));
  if (is_initial) return word == "a" || word == "i";  // those are words as well
  return true;
}

}  // namespace

std::vector<std::string> split_sentences(const std::string& text) {
  std::vector<std::pair<size_t, size_t>> pieces;  // bytes of what stands between white space
  bool in_word = false;
  size_t at = 0;
  jinja::each_code_point(text, [&](std::string_view point) {
    const bool is_blank = jinja::is_space(point);
    if (!is_blank && !in_word) pieces.emplace_back(at, at);
    in_word = !is_blank;
    at += point.size();
    if (in_word) pieces.back().second = at;
  });
  auto piece = [&](size_t i) { return text.substr(pieces[i].first, pieces[i].second - pieces[i].first); };
  std::vector<std::string> sentences;
  for (size_t i = 0, first = 0; i < pieces.size(); ++i) {
    if (i + 1 < pieces.size() && !ends_sentence(piece(i), piece(i + 1))) continue;
    sentences.push_back(text.substr(pieces[first].first, pieces[i].second - pieces[first].first));
    first = i + 1;
  }
  return sentences;
}

std::vector<std::string> tokenize_words(const std::string& text) {
  static const std::vector<std::pair<PythonRegex, std::string>> kRules = [] {
    std::vector<std::pair<PythonRegex, std::string>> rules;
    for (const auto& [pattern, with] : std::vector<std::pair<const char*, const char*>>{
             {R"re(([«“‘„]|[`]+))re", R"( \1 )"},
             {R"re(^\")re", "``"},
             {R"re((``))re", R"( \1 )"},
             {R"re(([ \(\[{<])(\"|\'{2}))re", R"(\1 `` )"},
             {R"re((?i)(\')(?!re|ve|ll|m|t|s|d|n)(\w)\b)re", R"(\1 \2)"},
             {R"re(([^\.])(\.)([\]\)}>\"\'»”’ ]*)\s*$)re", R"(\1 \2 \3 )"},
             {R"re(([:,])([^\d]))re", R"( \1 \2)"},
             {R"re(([:,])$)re", R"( \1 )"},
             {R"re((\.{2,}))re", R"( \1 )"},
             {R"re(([;@#$%&]))re", R"( \1 )"},
             {R"re(([?!]))re", R"( \1 )"},
             {R"re(([^'])' )re", R"(\1 ' )"},
             {R"re(([*]))re", R"( \1 )"},
             {R"re(([\]\[\(\)\{\}\<\>]))re", R"( \1 )"},
             {R"re((--))re", R"( \1 )"},
             {R"re(([»”’]))re", R"( \1 )"},
             {R"re((''|\"))re", R"( '' )"},
             {R"re(([^' ])('[sS]|'[mM]|'[dD]|') )re", R"(\1 \2 )"},
             {R"re(([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) )re", R"(\1 \2 )"},
             {R"re((?i)\b(can)(not)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(gim|lem)(me)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(gon|wan)(na)\b)re", R"( \1 \2 )"},
             {R"re((?i)\b(got)(ta)\b)re", R"( \1 \2 )"}}) {
      rules.emplace_back(PythonRegex(pattern), with);
    }
    return rules;
  }();
  std::vector<std::string> words;
  for (std::string sentence : split_sentences(text)) {
    bool is_padded = false;
    for (size_t r = 0; r < kRules.size(); ++r) {
      if (r == 16 && !is_padded) {  // the rules for endings look at a blank behind the word
        sentence = " " + sentence + " ";
        is_padded = true;
      }
      sentence = kRules[r].first.replace(sentence, kRules[r].second);
    }
    for (std::string& word : split_blanks(sentence)) words.push_back(std::move(word));
  }
  return words;
}

}  // namespace sinter::eval
