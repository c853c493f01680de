#include "data/dedup/exact.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <unordered_map>

#include "data/text/characters.h"

namespace sinter::data {

uint64_t hash_text64(std::string_view text) { return XXH64(text.data(), text.size(), 0); }

std::vector<bool> keep_first_of_equal(const std::vector<std::string_view>& keys,
                                      const std::vector<int64_t>& priorities) {
  std::unordered_map<std::string_view, size_t> best;
  std::vector<bool> keep(keys.size(), false);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto [at, is_new] = best.emplace(keys[i], i);
    if (is_new) {
      keep[i] = true;
    } else if (!priorities.empty() && priorities[i] > priorities[at->second]) {
      keep[at->second] = false;
      keep[i] = true;
      at->second = i;
    }
  }
  return keep;
}

namespace {

std::vector<std::string_view> split_paragraphs(std::string_view text) {
  std::vector<std::string_view> found;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("\n\n", begin), text.size());
    if (end > begin) found.push_back(text.substr(begin, end - begin));
    begin = std::min(text.find_first_not_of('\n', end), text.size());
  }
  return found;
}

}  // namespace

std::optional<std::string> SpanDedup::add(std::string_view text) {
  std::vector<std::string_view> units;
  std::vector<Span> sentences;
  if (options_.unit == TextUnit::line) {
    units = split_lines(text);
  } else if (options_.unit == TextUnit::paragraph) {
    units = split_paragraphs(text);
  } else {
    sentences = segment_sentences(text);
    for (const Span& s : sentences) units.push_back(text.substr(s.begin, s.end - s.begin));
  }
  const auto span = static_cast<size_t>(options_.span);
  std::vector<std::string> keys;
  for (std::string_view unit : units) keys.push_back(simplify(unit));
  std::vector<bool> drop(units.size(), false);
  bool has_changed = false;
  for (size_t i = 0; i + span <= units.size(); ++i) {
    std::string joined = keys[i];
    for (size_t k = i + 1; k < i + span; ++k) joined += " " + keys[k];
    if (strip(joined).empty()) continue;
    if (!seen_.insert(hash_text64(joined)).second) {
      std::fill_n(drop.begin() + static_cast<int64_t>(i), span, true);
      has_changed = true;
    }
  }
  if (!has_changed) {
    if (text.empty()) return std::nullopt;
    return std::string(text);
  }
  std::string out;
  bool is_first = true;
  for (size_t i = 0; i < units.size(); ++i) {
    if (drop[i]) continue;
    if (options_.unit != TextUnit::sentence) {
      if (!is_first) out += options_.unit == TextUnit::line ? "\n" : "\n\n";
      out.append(units[i]);
    } else {  // a sentence carries the white space before it
      const size_t begin = i > 0 ? sentences[i - 1].end : 0;
      out.append(text.substr(begin, sentences[i].end - begin));
    }
    is_first = false;
  }
  std::string left(strip_left(out));
  if (left.empty() || count_words(left) < options_.min_words || count_sentences(left) < options_.min_sentences)
    return std::nullopt;
  return left;
}

std::vector<uint64_t> ngram_hashes(std::string_view text, int64_t ngram) {
  const std::string simple = simplify(text);
  const std::vector<std::string_view> words = words_of(simple);
  std::vector<uint64_t> hashes;
  const auto n = static_cast<size_t>(ngram);
  std::string joined;
  for (size_t i = 0; i + n <= words.size(); ++i) {
    joined.clear();
    for (size_t k = i; k < i + n; ++k) {
      if (k > i) joined.push_back(' ');
      joined.append(words[k]);
    }
    hashes.push_back(hash_text64(joined));
  }
  return hashes;
}

NgramDedup::Counts NgramDedup::add(std::string_view text) {
  const std::vector<uint64_t> hashes = ngram_hashes(text, ngram_);
  Counts counts;
  counts.shingles = static_cast<int64_t>(hashes.size());
  for (uint64_t h : hashes) counts.duplicates += seen_.contains(h);
  seen_.insert(hashes.begin(), hashes.end());
  return counts;
}

}  // namespace sinter::data
