// How much two texts have in common, per sentence.
#pragma once
#include <string>

namespace sinter::eval {

// SQuAD's F1: words in lower case without punctuation and articles, harmonic mean of precision and recall, 0 to 1.
double token_f1(const std::string& answer, const std::string& target);
// BLEU with the tokenization "13a" and exponential smoothing, as sacrebleu's sentence_bleu, 0 to 100.
double sentence_bleu(const std::string& answer, const std::string& target);
// chrF2: character n-grams up to 6, recall counted twice, as sacrebleu's sentence_chrf, 0 to 100.
double sentence_chrf(const std::string& answer, const std::string& target);

}  // namespace sinter::eval
