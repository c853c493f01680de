#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"
#include "data/rank/ngram_model.h"

namespace sinter::data {
namespace {

constexpr uint32_t kUnknown = 0, kBegin = 1, kEnd = 2;

// All n-grams of one length, in the order of their words read backwards.
struct Gram {
  uint32_t last = 0;   // where its last word stands in the text
  uint64_t count = 0;  // adjusted: of an n-gram that begins with <s> or has the full length its occurrences, of any
                       // other the different words before it
  bool is_pruned = false;
  double probability = 0;
};
struct Context {
  double denominator = 0, gamma = 0;
  std::array<double, 4> kinds{};  // followers seen once, twice, more often
};
using Discounts = std::array<double, 4>;

class NgramTrainer {
 public:
  explicit NgramTrainer(const NgramTraining& options) : options_(options), order_(static_cast<size_t>(options.order)) {
    for (const char* word : {"<unk>", "<s>", "</s>"}) add_word(word);
  }

  void add_line(std::string_view line) {
    const std::vector<std::string_view> words = ngram_words(line);
    SINTER_CHECK(text_.size() + words.size() + order_ < UINT32_MAX, "more than {} words to train on; train on less",
                 UINT32_MAX);
    text_.insert(text_.end(), std::max<size_t>(order_ - 1, 1), kBegin);
    for (std::string_view word : words) {
      const uint32_t id = add_word(word);
      if (id > kEnd) push(id);  // the three words of the model itself are none of a text
    }
    push(kEnd);
  }

  void train() {
    SINTER_CHECK(!ends_.empty(), "there are no words to train on");
    std::sort(ends_.begin(), ends_.end(), [&](uint32_t a, uint32_t b) {
      for (size_t i = 0; i < order_; ++i) {
        if (text_[a - i] != text_[b - i]) return text_[a - i] < text_[b - i];
      }
      return a < b;
    });
    grams_.resize(order_);
    for (size_t length = 1; length <= order_; ++length) count(length);
    std::vector<uint32_t>().swap(ends_);
    std::unordered_map<uint64_t, double> shorter;
    for (size_t length = 1; length <= order_; ++length) estimate(length, shorter);
  }

  void write(const std::function<void(std::string_view)>& sink) const {
    std::string out = "\\data\\\n";
    auto flush = [&] {
      sink(out);
      out.clear();
    };
    for (size_t length = 1; length <= order_; ++length) {
      auto left = static_cast<int64_t>(length == 1 ? 2 : 0);
      for (const Gram& gram : grams_[length - 1]) left += !gram.is_pruned;
      out += fmt::format("ngram {}={}\n", length, left);
    }
    for (size_t length = 1; length <= order_; ++length) {
      out += fmt::format("\n\\{}-grams:\n", length);
      if (length == 1) {
        append(out, unknown_, "<unk>", 0, order_ > 1);
        append(out, 1, "<s>", key_of({&kBegin, 1}), order_ > 1);
      }
      for (const Gram& gram : grams_[length - 1]) {
        if (gram.is_pruned) continue;
        const std::span<const uint32_t> words = words_of(gram, length);
        std::string text;
        for (uint32_t word : words) text += (text.empty() ? "" : " ") + words_[word];
        append(out, gram.probability, text, key_of(words), length < order_);
        if (out.size() > (size_t{1} << 20)) flush();
      }
    }
    out += "\n\\end\\\n";
    flush();
  }

 private:
  uint32_t add_word(std::string_view word) {
    const auto [at, is_new] = ids_.emplace(std::string(word), static_cast<uint32_t>(words_.size()));
    if (is_new) words_.emplace_back(word);
    return at->second;
  }
  void push(uint32_t id) {
    ends_.push_back(static_cast<uint32_t>(text_.size()));
    text_.push_back(id);
  }
  std::span<const uint32_t> words_of(const Gram& gram, size_t length) const {
    return {text_.data() + gram.last + 1 - length, length};
  }
  static uint64_t key_of(std::span<const uint32_t> words) {
    uint64_t key = words.size();
    for (uint32_t word : words) key = base::mix_bits(key, uint64_t{word} + 1);
    return key;
  }
  bool are_equal(uint32_t a, uint32_t b, size_t length) const {
    for (size_t i = 0; i < length; ++i) {
      if (text_[a - i] != text_[b - i]) return false;
    }
    return true;
  }

  // The n-grams of one length: neighbours in the sorted ends.
  void count(size_t length) {
    const uint64_t cutoff =
        options_.prune.empty() ? 0 : static_cast<uint64_t>(options_.prune[std::min(length, options_.prune.size()) - 1]);
    for (size_t i = 0; i < ends_.size();) {
      size_t end = i + 1;
      uint64_t before = 1;
      for (; end < ends_.size() && are_equal(ends_[i], ends_[end], length); ++end)
        before += length < order_ && text_[ends_[end] - length] != text_[ends_[end - 1] - length];
      Gram gram{ends_[i], end - i, end - i <= cutoff, 0};
      const std::span<const uint32_t> words = words_of(gram, length);
      // <s> stands before the first word only: with more of them the n-gram is a shorter one.
      const bool is_real = std::find(words.begin() + 1, words.end(), kBegin) == words.end() && words.back() != kBegin;
      if (is_real) {
        if (length < order_ && words[0] != kBegin) gram.count = before;
        grams_[length - 1].push_back(gram);
      }
      i = end;
    }
  }

  // Chen and Goodman's three discounts, from how many n-grams were seen once to four times.
  Discounts discounts(size_t length) const {
    std::array<double, 5> seen{};
    for (const Gram& gram : grams_[length - 1]) {
      if (gram.count < seen.size()) ++seen[gram.count];
    }
    Discounts found{};
    const double y = seen[1] / (seen[1] + 2 * seen[2]);
    for (size_t i = 1; i <= 3; ++i) {
      found[i] = static_cast<double>(i) - static_cast<double>(i + 1) * y * seen[i + 1] / seen[i];
      if (!(seen[i] > 0 && found[i] >= 0 && found[i] <= static_cast<double>(i))) return {0, .5, 1, 1.5};
    }
    return found;
  }

  void estimate(size_t length, std::unordered_map<uint64_t, double>& shorter) {
    std::vector<Gram>& grams = grams_[length - 1];
    const Discounts discount = discounts(length);
    std::unordered_map<uint64_t, Context> contexts;
    for (const Gram& gram : grams) {
      Context& context = contexts[key_of(words_of(gram, length).first(length - 1))];
      context.denominator += static_cast<double>(gram.count);
      if (gram.is_pruned) {
        context.gamma += static_cast<double>(gram.count);
      } else {
        ++context.kinds[std::min<uint64_t>(gram.count, 3)];
      }
    }
    for (auto& [key, context] : contexts) {
      for (size_t i = 1; i <= 3; ++i) context.gamma += discount[i] * context.kinds[i];
      context.gamma /= context.denominator;
    }
    std::unordered_map<uint64_t, double> found;
    const double uniform = 1 / static_cast<double>(words_.size() - 1);  // <s> is never predicted
    if (length == 1) {
      const double gamma = contexts.at(key_of({})).gamma;
      unknown_ = options_.interpolates_unigrams ? gamma * uniform : gamma;
    }
    for (Gram& gram : grams) {
      const std::span<const uint32_t> words = words_of(gram, length);
      const Context& context = contexts.at(key_of(words.first(length - 1)));
      const double lower =
          length > 1 ? shorter.at(key_of(words.last(length - 1))) : (options_.interpolates_unigrams ? uniform : 0);
      const double own =
          gram.is_pruned ? 0 : static_cast<double>(gram.count) - discount[std::min<uint64_t>(gram.count, 3)];
      gram.probability = own / context.denominator + context.gamma * lower;
      found.emplace(key_of(words), gram.probability);
    }
    if (length > 1) {
      for (const auto& [key, context] : contexts) backoff_.emplace(key, context.gamma);
    }
    shorter = std::move(found);
  }

  void append(std::string& out, double probability, const std::string& text, uint64_t key, bool has_backoff) const {
    out += fmt::format("{:.8g}\t{}", std::log10(probability), text);
    if (has_backoff) {
      const auto at = backoff_.find(key);
      out += at == backoff_.end() ? "\t0" : fmt::format("\t{:.8g}", std::log10(at->second));
    }
    out += '\n';
  }

  NgramTraining options_;
  size_t order_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::string> words_;
  std::vector<uint32_t> text_, ends_;     // words of all lines; where n-grams may end
  std::vector<std::vector<Gram>> grams_;  // by length - 1
  std::unordered_map<uint64_t, double> backoff_;
  double unknown_ = 0;
};

}  // namespace

void train_ngrams(const std::vector<std::string>& lines, const NgramTraining& training,
                  const std::function<void(std::string_view)>& sink) {
  SINTER_CHECK(training.order >= 1 && training.order <= 8, "n-grams of up to {} words; expected 1 to 8",
               training.order);
  for (size_t i = 0; i < training.prune.size(); ++i) {
    SINTER_CHECK(training.prune[i] >= (i > 0 ? training.prune[i - 1] : 0) && (i > 0 || training.prune[0] == 0),
                 "counts to prune are {}; expected 0 for single words, then numbers that do not fall",
                 fmt::join(training.prune, ","));
  }
  NgramTrainer trainer(training);
  for (const std::string& line : lines) trainer.add_line(line);
  trainer.train();
  trainer.write(sink);
}

}  // namespace sinter::data
