#include "data/rank/ngram_model.h"

#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "data/formats/compression.h"
#include "data/text/characters.h"
#include "data/text/segment.h"

namespace sinter::data {
namespace {

float parse_float(std::string_view text, const std::string& origin, int64_t line) {
  float value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  SINTER_CHECK(result.ec == std::errc() && result.ptr == text.data() + text.size(),
               "'{}' line {}: '{}' is not a number", origin, line, text.substr(0, 40));
  return value;
}

uint64_t add_word(uint64_t key, int32_t word) { return base::mix_bits(key, static_cast<uint64_t>(word) + 1); }

}  // namespace

std::vector<std::string_view> ngram_words(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kSpace(" \t\r\n\v\f\0", 7);  // KenLM's
  for (size_t pos = 0; pos < line.size();) {
    pos = line.find_first_not_of(kSpace, pos);
    if (pos == std::string_view::npos) break;
    const size_t end = std::min(line.find_first_of(kSpace, pos), line.size());
    words.push_back(line.substr(pos, end - pos));
    pos = end;
  }
  return words;
}

NgramModel NgramModel::load(const std::string& path) { return from_text(read_unpacked(path), path); }

NgramModel NgramModel::from_text(std::string_view text, const std::string& origin) {
  SINTER_CHECK(
      !text.starts_with("mmap lm "),
      "'{}' is a binary model of KenLM's build_binary; expected ARPA: give the .arpa file (or .arpa.gz) that it was "
      "built from, as lmplz writes it",
      origin);
  NgramModel model;
  int64_t number = 0;
  int32_t length = 0;
  bool has_data = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line == "\\data\\") has_data = true;
    if (line.starts_with('\\')) {
      length = 0;
      const auto result = std::from_chars(line.data() + 1, line.data() + line.size(), length);
      if (result.ec != std::errc()) length = 0;
      if (length > 0) {
        SINTER_CHECK(length == model.order_ + 1 && length <= 12, "'{}' line {}: {}-grams after {}-grams", origin,
                     number, length, model.order_);
        model.order_ = length;
        model.grams_.emplace_back();
      }
      continue;
    }
    if (length == 0 || line.empty()) continue;
    const size_t tab = line.find('\t');
    SINTER_CHECK(tab != std::string_view::npos, "'{}' line {}: expected a probability, a tab and words", origin,
                 number);
    const size_t second = line.find('\t', tab + 1);
    const std::string_view words = line.substr(tab + 1, second == std::string_view::npos ? second : second - tab - 1);
    Entry entry;
    entry.log10 = parse_float(line.substr(0, tab), origin, number);
    if (second != std::string_view::npos) entry.backoff = parse_float(line.substr(second + 1), origin, number);
    uint64_t key = 0;
    int32_t count = 0;
    for (size_t pos = 0; pos <= words.size();) {
      const size_t stop = std::min(words.find(' ', pos), words.size());
      const std::string word(words.substr(pos, stop - pos));
      pos = stop + 1;
      ++count;
      if (length == 1) model.words_.emplace(word, static_cast<int32_t>(model.words_.size()));
      const auto at = model.words_.find(word);
      SINTER_CHECK(at != model.words_.end(), "'{}' line {}: '{}' is not among the 1-grams", origin, number, word);
      key = add_word(key, at->second);
    }
    SINTER_CHECK(count == length, "'{}' line {}: {} words among the {}-grams", origin, number, count, length);
    model.grams_.back().emplace(key, entry);
  }
  SINTER_CHECK(has_data && model.order_ > 0, "'{}' is not an ARPA file: it has no \\data\\ and n-grams", origin);
  model.words_.emplace("<unk>", static_cast<int32_t>(model.words_.size()));
  return model;
}

std::vector<NgramModel::Step> NgramModel::steps(std::string_view line, bool with_begin, bool with_end) const {
  std::vector<std::string_view> words = ngram_words(line);
  if (with_end) words.push_back("</s>");
  std::vector<int32_t> context;
  const int32_t unknown = words_.at("<unk>");
  auto id = [&](std::string_view word) {
    const auto at = words_.find(std::string(word));
    return at == words_.end() ? unknown : at->second;
  };
  if (with_begin) context.push_back(id("<s>"));
  auto key_of = [](const int32_t* begin, const int32_t* end) {
    uint64_t key = 0;
    for (; begin != end; ++begin) key = add_word(key, *begin);
    return key;
  };
  std::vector<Step> result;
  for (std::string_view word : words) {
    const int32_t w = id(word);
    context.push_back(w);
    const int32_t* end = context.data() + context.size();
    auto length = static_cast<int32_t>(std::min<size_t>(context.size(), static_cast<size_t>(order_)));
    float backoff = 0;
    Step step{0, 0, w == unknown};
    for (; length >= 1; --length) {
      const auto& grams = grams_[static_cast<size_t>(length) - 1];
      const auto at = grams.find(key_of(end - length, end));
      if (at != grams.end()) {
        step.log10 = backoff + at->second.log10;
        step.length = length;
        break;
      }
      if (length == 1) {
        step.log10 = backoff - 100;
        break;
      }
      const auto& shorter = grams_[static_cast<size_t>(length) - 2];
      const auto context_at = shorter.find(key_of(end - length, end - 1));
      if (context_at != shorter.end()) backoff += context_at->second.backoff;
    }
    result.push_back(step);
  }
  return result;
}

double NgramModel::score(std::string_view line, bool with_begin, bool with_end) const {
  float total = 0;
  for (const Step& step : steps(line, with_begin, with_end)) total += step.log10;
  return total;
}

double NgramModel::perplexity(std::string_view line) const {
  const std::vector<Step> all = steps(line);
  float total = 0;
  for (const Step& step : all) total += step.log10;
  return std::pow(10.0, -static_cast<double>(total) / static_cast<double>(all.size()));
}

double NgramModel::perplexity(const std::vector<std::string>& lines) const {
  double total = 0, count = 0;
  for (const std::string& line : lines) {
    const std::vector<Step> all = steps(line);
    for (const Step& step : all) total += step.log10;
    count += static_cast<double>(all.size());
  }
  return count > 0 ? std::pow(10.0, -total / count) : 0;
}

UnigramModel UnigramModel::load(const std::string& path) {
  UnigramModel model;
  const std::string text = read_unpacked(path);
  double total = 0;
  int64_t number = 0;
  for (std::string_view line : split_lines(text)) {
    if (++number == 1 || line.empty()) continue;
    const size_t comma = line.rfind(',');
    double count = 0;
    SINTER_CHECK(comma != std::string_view::npos &&
                     std::from_chars(line.data() + comma + 1, line.data() + line.size(), count).ec == std::errc(),
                 "'{}' line {}: expected a word, a comma and a count", path, number);
    model.frequency_[std::string(line.substr(0, comma))] = count;
    total += count;
  }
  SINTER_CHECK(total > 0, "'{}' has no words", path);
  for (auto& [word, count] : model.frequency_) count /= total;
  return model;
}

double UnigramModel::mean_log_probability(std::string_view text) const {
  double sum = 0;
  const std::vector<std::string_view> words = words_of(text);
  for (std::string_view word : words) {
    const auto at = frequency_.find(lower(word));
    sum += std::log(at == frequency_.end() ? 1e-9 : at->second);
  }
  return words.empty() ? 0 : sum / static_cast<double>(words.size());
}

}  // namespace sinter::data
