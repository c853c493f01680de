// English sentences and words as NLTK cuts them: the punkt algorithm (Kiss and Strunk 2006) with NLTK's model of
// English, and word_tokenize's rules. IFEval counts with them.
#pragma once
#include <string>
#include <vector>

namespace sinter::eval {

// nltk.sent_tokenize
std::vector<std::string> split_sentences(const std::string& text);
// nltk.word_tokenize
std::vector<std::string> tokenize_words(const std::string& text);

}  // namespace sinter::eval
