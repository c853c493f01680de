#include "engine/text_stream.h"

#include <algorithm>

namespace sinter::engine {
namespace {

struct Found {
  int32_t index = -1;
  size_t begin = std::string::npos, end = std::string::npos;
};

// The stop string that ends first in the text.
Found find_stop(const std::string& text, const std::vector<std::string>& stops) {
  Found found;
  for (size_t i = 0; i < stops.size(); ++i) {
    const size_t begin = text.find(stops[i]);
    if (begin == std::string::npos || begin + stops[i].size() >= found.end) continue;
    found = {static_cast<int32_t>(i), begin, begin + stops[i].size()};
  }
  return found;
}

// How much of the text's end may be the beginning of a stop string.
size_t possible_beginning(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.compare(text.size() - n, n, stop, 0, n) == 0) longest = n;
    }
  }
  return longest;
}

}  // namespace

TextStop::TextStop(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops,
                   std::span<const int32_t> prompt)
    : decoder_(tokenizer, true, tokenizer::StreamDecoder::Invalid::keep), stops_(std::move(stops)) {
  decoder_.skip(prompt);
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

int32_t TextStop::push(int32_t token) {
  tail_ += decoder_.push(token);
  const int32_t found = find_stop(tail_, stops_).index;
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - longest_ + 1);
  return found;
}

TextStream::TextStream(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                       std::vector<std::string> stops, tokenizer::StreamDecoder::Invalid invalid)
    : decoder_(tokenizer, true, invalid), stops_(std::move(stops)) {
  decoder_.skip(prompt);
}

std::string TextStream::show(bool all) {
  if (const Found found = find_stop(held_, stops_); found.index >= 0) {
    has_stopped_ = true;
    held_.resize(found.begin);
    all = true;
  }
  const size_t kept = all ? 0 : possible_beginning(held_, stops_);
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string TextStream::push(int32_t token) {
  if (has_stopped_) return {};
  held_ += decoder_.push(token);
  return show(false);
}

std::string TextStream::finish() {
  if (has_stopped_) return {};
  held_ += decoder_.finish();
  return show(true);
}

std::string answer_text(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                        std::span<const int32_t> tokens, const std::vector<std::string>& stops) {
  TextStream stream(tokenizer, prompt, stops, tokenizer::StreamDecoder::Invalid::keep);
  std::string text;
  for (int32_t token : tokens) text += stream.push(token);
  return text + stream.finish();
}

}  // namespace sinter::engine
