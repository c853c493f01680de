// The language a text is written in, as langdetect tells it: naive Bayes over n-grams of up to three characters, drawn
// at random, seven times over. The draws are Python's with seed 0 (langdetect.DetectorFactory.seed = 0), so that a text
// always gets the same answer.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::eval {

struct LanguageGuess {
  std::string name;  // "en", "zh-cn", ...
  double probability;
};

// Languages of more than a tenth, the most likely one first; nullopt where the text has no letters to tell it by.
std::optional<std::vector<LanguageGuess>> guess_languages(std::string_view text);
// Whether langdetect.detect(text) == name; a text without letters passes, as in IFEval.
bool is_in_language(std::string_view text, std::string_view name);

}  // namespace sinter::eval
