#include <algorithm>
#include <cmath>
#include <map>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/rng.h"
#include "data/rank/fasttext_format.h"

namespace sinter::data {
namespace {

// Words by falling count, then labels by falling count; ties in order of appearance.
Dictionary make_dictionary(const std::vector<std::string>& lines, const FastTextTraining& training) {
  std::unordered_map<std::string, size_t, StringHash, std::equal_to<>> index;
  std::vector<Dictionary::Entry> found;
  Dictionary dictionary;
  for (const std::string& line : lines) {
    fasttext_tokens(line, [&](std::string_view token) {
      ++dictionary.num_tokens;
      const auto at = index.find(token);
      if (at != index.end()) {
        ++found[at->second].count;
        return;
      }
      index.emplace(token, found.size());
      found.push_back({std::string(token), 1, token.starts_with(kLabelPrefix)});
    });
  }
  std::erase_if(found, [&](const auto& e) { return !e.is_label && e.count < training.min_count; });
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.is_label != b.is_label ? b.is_label : a.count > b.count;
  });
  dictionary.entries = std::move(found);
  for (const Dictionary::Entry& entry : dictionary.entries) {
    dictionary.index.emplace(entry.text, static_cast<int32_t>(dictionary.index.size()));
    (entry.is_label ? dictionary.num_labels : dictionary.num_words) += 1;
  }
  return dictionary;
}

struct Example {
  std::vector<int32_t> rows, labels;
};

class Writer {
 public:
  explicit Writer(const std::string& path) : file_(path) {}
  template <class T>
  void put(const T& value) {
    file_.append(std::as_bytes(std::span(&value, 1)));
  }
  void put_text(const std::string& text) { file_.append(std::as_bytes(std::span(text.c_str(), text.size() + 1))); }
  void put_matrix(int64_t rows, int64_t columns, const std::vector<float>& values) {
    put(rows);
    put(columns);
    file_.append(std::as_bytes(std::span(values)));
  }
  void commit() { file_.commit(); }

 private:
  base::AtomicFile file_;
};

void write_model(const std::string& path, const FastTextArgs& args, const Dictionary& dictionary,
                 const std::vector<float>& input, const std::vector<float>& output) {
  Writer out(path);
  for (int32_t value :
       {kFastTextMagic, kFastTextVersion, args.dim, args.window, args.epoch, args.min_count, args.negatives,
        args.word_ngrams, args.loss, args.model, args.bucket, args.min_n, args.max_n, args.lr_update_rate})
    out.put(value);
  out.put(args.sampling);
  out.put(static_cast<int32_t>(dictionary.entries.size()));
  out.put(dictionary.num_words);
  out.put(dictionary.num_labels);
  out.put(dictionary.num_tokens);
  out.put(int64_t{-1});
  for (const Dictionary::Entry& entry : dictionary.entries) {
    out.put_text(entry.text);
    out.put(entry.count);
    out.put(static_cast<int8_t>(entry.is_label));
  }
  out.put(uint8_t{0});
  out.put_matrix(static_cast<int64_t>(input.size()) / args.dim, args.dim, input);
  out.put(uint8_t{0});
  out.put_matrix(dictionary.num_labels, args.dim, output);
  out.commit();
}

// One step of gradient descent on softmax cross-entropy.
void step(const Example& example, int32_t label, float lr, size_t dim, std::vector<float>& input,
          std::vector<float>& output) {
  static thread_local std::vector<float> h, gradient, p;
  h.assign(dim, 0);
  gradient.assign(dim, 0);
  for (int32_t row : example.rows) {
    const float* from = input.data() + static_cast<size_t>(row) * dim;
    for (size_t j = 0; j < dim; ++j) h[j] += from[j];
  }
  const float share = 1.0f / static_cast<float>(example.rows.size());
  for (float& v : h) v *= share;
  const size_t num_labels = output.size() / dim;
  p.assign(num_labels, 0);
  float top = -1e30f, sum = 0;
  for (size_t i = 0; i < num_labels; ++i) {
    for (size_t j = 0; j < dim; ++j) p[i] += output[i * dim + j] * h[j];
    top = std::max(top, p[i]);
  }
  for (float& v : p) sum += v = std::exp(v - top);
  for (size_t i = 0; i < num_labels; ++i) {
    const float alpha = lr * (static_cast<float>(static_cast<int32_t>(i) == label) - p[i] / sum);
    for (size_t j = 0; j < dim; ++j) {
      gradient[j] += alpha * output[i * dim + j];
      output[i * dim + j] += alpha * h[j];
    }
  }
  for (float& v : gradient) v *= share;
  for (int32_t row : example.rows) {
    float* to = input.data() + static_cast<size_t>(row) * dim;
    for (size_t j = 0; j < dim; ++j) to[j] += gradient[j];
  }
}

}  // namespace

void train_fasttext(const std::vector<std::string>& lines, const FastTextTraining& training,
                    const std::string& output_path) {
  FastTextArgs args;
  args.dim = training.dim;
  args.epoch = training.epoch;
  args.min_count = training.min_count;
  args.word_ngrams = training.word_ngrams;
  args.bucket = training.word_ngrams > 1 ? training.bucket : 0;
  SINTER_CHECK(training.dim > 0 && training.epoch > 0 && training.word_ngrams > 0 && training.lr > 0,
               "training needs a dim, epoch, word_ngrams and lr above 0");
  const Dictionary dictionary = make_dictionary(lines, training);
  SINTER_CHECK(dictionary.num_labels >= 2, "the training lines have {} labels; expected at least two kinds of {}...",
               dictionary.num_labels, kLabelPrefix);
  std::vector<Example> examples;
  for (const std::string& line : lines) {
    Example example;
    dictionary.line_rows(line, args, example.rows);
    fasttext_tokens(line, [&](std::string_view token) {
      const auto at = dictionary.index.find(token);
      if (at != dictionary.index.end() && at->second >= dictionary.num_words)
        example.labels.push_back(at->second - dictionary.num_words);
    });
    if (!example.labels.empty() && !example.rows.empty()) examples.push_back(std::move(example));
  }
  const auto dim = static_cast<size_t>(args.dim);
  std::vector<float> input((static_cast<size_t>(dictionary.num_words) + static_cast<size_t>(args.bucket)) * dim);
  const base::CounterRng rng{training.seed, 0};
  for (size_t i = 0; i < input.size(); ++i) input[i] = (rng.uniform(i) * 2 - 1) / static_cast<float>(args.dim);
  std::vector<float> output(static_cast<size_t>(dictionary.num_labels) * dim, 0.0f);
  const base::CounterRng order{training.seed, 1};
  const uint64_t steps = static_cast<uint64_t>(args.epoch) * examples.size();
  std::vector<uint32_t> shuffled(examples.size());
  for (uint64_t done = 0; done < steps; ++done) {
    const size_t at = done % examples.size();
    if (at == 0) {  // a new order every epoch
      for (uint32_t i = 0; i < shuffled.size(); ++i) shuffled[i] = i;
      for (size_t i = shuffled.size(); i > 1; --i) std::swap(shuffled[i - 1], shuffled[order.bits64(done + i) % i]);
    }
    const Example& example = examples[shuffled[at]];
    const auto progress = static_cast<double>(done) / static_cast<double>(steps);
    const int32_t label = example.labels[order.bits64(~done) % example.labels.size()];
    step(example, label, static_cast<float>(training.lr * (1 - progress)), dim, input, output);
  }
  write_model(output_path, args, dictionary, input, output);
}

}  // namespace sinter::data
