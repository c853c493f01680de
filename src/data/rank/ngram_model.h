// Back-off n-gram models in ARPA format (KenLM's text form): their training, log probabilities and perplexities of
// tokenized lines, and the unigram table that ranks a text by its mean word probability.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sinter::data {

class NgramModel {
 public:
  // A .arpa file, or .arpa.gz. Throws base::Error naming the file and line.
  static NgramModel load(const std::string& path);
  static NgramModel from_text(std::string_view text, const std::string& origin);

  struct Step {
    float log10 = 0;     // of the word given those before it
    int32_t length = 0;  // words of the n-gram that was found
    bool is_unknown = false;
  };
  // Words between white space, and </s> at the end where `with_end`; <s> stands before them where `with_begin`.
  std::vector<Step> steps(std::string_view line, bool with_begin = true, bool with_end = true) const;
  // Sum of the log10 probabilities, in single precision as KenLM adds them.
  double score(std::string_view line, bool with_begin = true, bool with_end = true) const;
  // 10^(-score / (words + 1)).
  double perplexity(std::string_view line) const;
  int32_t order() const { return order_; }

  // CCNet's perplexity of a document: all its lines together.
  double perplexity(const std::vector<std::string>& lines) const;

 private:
  struct Entry {
    float log10 = 0, backoff = 0;
  };
  int32_t order_ = 0;
  std::unordered_map<std::string, int32_t> words_;
  std::vector<std::unordered_map<uint64_t, Entry>> grams_;  // by length - 1; keys are hashes of word ids
};

struct NgramTraining {
  int64_t order = 5;                  // words of the longest n-gram, 1 to 8
  std::vector<int64_t> prune;         // by length: n-grams seen as often or less are left out; the last one goes on
  bool interpolates_unigrams = true;  // false: all that the words leave goes to <unk>
};
// Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998) as KenLM's lmplz --discount_fallback does it, in
// memory: about 40 bytes for every word of the lines, and 100 for every different n-gram. Words stand between white
// space. `sink` is given the ARPA text piece by piece. Throws base::Error where there is nothing to train on.
void train_ngrams(const std::vector<std::string>& lines, const NgramTraining& training,
                  const std::function<void(std::string_view)>& sink);
// The words of a line, as KenLM splits it.
std::vector<std::string_view> ngram_words(std::string_view line);

// Mean natural log of the words' frequencies, as datatrove's UnigramLogProbFilter takes it.
class UnigramModel {
 public:
  // CSV with a header and lines `word,count`.
  static UnigramModel load(const std::string& path);
  double mean_log_probability(std::string_view text) const;

 private:
  std::unordered_map<std::string, double> frequency_;
};

}  // namespace sinter::data
