// fastText models (.bin, .ftz): read from the file format and run as fastText runs them, and trained.
//
// Every supervised model is understood: softmax, hierarchical softmax, negative sampling, one-vs-all; sub-words, word
// n-grams, pruned vocabularies, quantized input and output matrices.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace sinter::data {

struct FastTextArgs {
  int32_t dim = 100, window = 5, epoch = 5, min_count = 1, negatives = 5, word_ngrams = 1, loss = 3, model = 3;
  int32_t bucket = 2000000, min_n = 0, max_n = 0, lr_update_rate = 100;
  double sampling = 1e-4;
};

struct Prediction {
  std::string label;  // with the model's prefix, __label__
  float probability = 0;
};

class FastText {
 public:
  // Throws base::Error naming the file and what is wrong with it.
  static FastText load(const std::string& path);
  static FastText from_bytes(std::string_view bytes, const std::string& origin);
  FastText(FastText&&) noexcept;
  FastText& operator=(FastText&&) noexcept;
  ~FastText();

  // The k most probable labels of a text, most probable first (k < 0: all that fastText would list). A line feed counts
  // as white space. Thread-safe.
  std::vector<Prediction> predict(std::string_view text, int k = 1) const;
  // The probability of one label; 0 when the model has no such label.
  double probability(std::string_view text, std::string_view label) const;

  const FastTextArgs& args() const;
  std::vector<std::string> labels() const;
  int64_t num_words() const;
  // Rows of the input matrix that a word stands for: its own first, then those of its sub-words.
  std::vector<int32_t> word_rows(std::string_view word) const;
  std::vector<float> input_row(int64_t row) const;

 private:
  struct Parts;
  explicit FastText(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

struct FastTextTraining {
  int32_t dim = 100, epoch = 5, word_ngrams = 2, min_count = 1, bucket = 2000000;
  double lr = 0.1;
  uint64_t seed = 1;
};
// Trains a softmax classifier on labelled lines ("__label__x text ...") and writes it as a .bin that fastText reads.
// One thread and a fixed order: the same lines and settings give the same bytes. Throws base::Error without two labels.
void train_fasttext(const std::vector<std::string>& lines, const FastTextTraining& training, const std::string& output);

}  // namespace sinter::data
