#include "data/filter/text_rules.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "data/text/characters.h"

namespace sinter::data {
namespace {

// Polynomial hashes modulo 2^61-1 of byte strings: the hash of a concatenation follows from those of its parts.
constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
constexpr uint64_t kBase = 0x1b8f3a65c4d7e291 % kPrime;

uint64_t reduce(unsigned __int128 product) {
  uint64_t sum = static_cast<uint64_t>(product & kPrime) + static_cast<uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}
uint64_t multiply(uint64_t a, uint64_t b) { return reduce(static_cast<unsigned __int128>(a) * b); }

struct Powers {
  static constexpr size_t kCount = 4096;
  std::array<uint64_t, kCount> of;
  Powers() {
    of[0] = 1;
    for (size_t i = 1; i < kCount; ++i) of[i] = multiply(of[i - 1], kBase);
  }
  uint64_t operator()(size_t exponent) const {
    if (exponent < kCount) return of[exponent];
    uint64_t result = of[exponent % (kCount - 1)], step = of[kCount - 1];
    for (size_t n = exponent / (kCount - 1); n > 0; n >>= 1, step = multiply(step, step)) {
      if (n & 1) result = multiply(result, step);
    }
    return result;
  }
};
const Powers& powers() {
  static const Powers table;
  return table;
}

uint64_t hash_word(std::string_view word) {
  uint64_t h = 0;
  for (char c : word) h = reduce(static_cast<unsigned __int128>(h) * kBase + static_cast<unsigned char>(c) + 1);
  return h;
}

uint64_t mix(uint64_t h) {
  h ^= h >> 32;
  h *= 0xd6e8feb86659fd93ull;
  return h ^ (h >> 32);
}

int64_t count_text(std::string_view text, std::string_view what) {
  int64_t count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size())) ++count;
  return count;
}

// Python's re.split(r"\n{least,}", text).
void split_newlines(std::string_view text, size_t least, std::vector<std::string_view>& pieces) {
  pieces.clear();
  size_t begin = 0;
  for (size_t at = text.find('\n'); at != std::string_view::npos;) {
    size_t end = at;
    while (end < text.size() && text[end] == '\n') ++end;
    if (end - at >= least) {
      pieces.push_back(text.substr(begin, at - begin));
      begin = end;
    }
    at = text.find('\n', end);
  }
  pieces.push_back(text.substr(begin));
}

bool ends_in_terminal(std::string_view line) {
  if (line.empty()) return false;
  size_t pos = line.size();
  static const CharFlags flags;
  return (flags(previous_char(line, pos)) & kTerminal) != 0;
}

bool is_stop_word(std::string_view word, uint32_t& seen) {
  static constexpr std::string_view kStop[] = {"the", "be", "to", "of", "and", "that", "have", "with"};
  if (word.size() < 2 || word.size() > 4) return false;
  for (uint32_t i = 0; i < 8; ++i) {
    if (word == kStop[i]) seen |= 1u << i;
  }
  return true;
}

template <size_t N>
Verdict first_of(const std::array<std::pair<std::string_view, bool>, N>& rules) {
  for (const auto& [reason, is_broken] : rules) {
    if (is_broken) return {reason};
  }
  return {};
}

}  // namespace

void TextColumns::visit(const std::function<void(const char*, double)>& visit) const {
  visit("chars", chars);
  visit("words", words);
  visit("dup_para_frac", dup_para_frac);
  visit("dup_para_char_frac", dup_para_char_frac);
  visit("dup_line_frac", dup_line_frac);
  visit("dup_line_char_frac", dup_line_char_frac);
  static constexpr const char* kTop[] = {"top_2", "top_3", "top_4"};
  for (size_t i = 0; i < 3; ++i) visit(kTop[i], top[i]);
  static constexpr const char* kDup[] = {"dup_5", "dup_6", "dup_7", "dup_8", "dup_9", "dup_10"};
  for (size_t i = 0; i < 6; ++i) visit(kDup[i], dup[i]);
  visit("non_symbol_words", non_symbol_words);
  visit("mean_word_length", mean_word_length);
  visit("hash_ratio", hash_ratio);
  visit("ellipsis_ratio", ellipsis_ratio);
  visit("bullet_lines", bullet_lines);
  visit("ellipsis_lines", ellipsis_lines);
  visit("alpha_ratio", alpha_ratio);
  visit("stop_words", stop_words);
  visit("line_punct_ratio", line_punct_ratio);
  visit("short_line_ratio", short_line_ratio);
  visit("char_dup_ratio", char_dup_ratio);
  visit("list_ratio", list_ratio);
  visit("hashes", hashes);
  visit("ellipses", ellipses);
  visit("newlines", newlines);
}

Verdict gopher_repetition(const TextColumns& c, const RuleLimits& l) {
  if (c.chars == 0) return {"empty"};
  return first_of<13>({{{"dup_para_frac", c.dup_para_frac > l.dup_para_frac},
                        {"dup_para_char_frac", c.dup_para_char_frac > l.dup_para_char_frac},
                        {"dup_line_frac", c.dup_line_frac > l.dup_line_frac},
                        {"dup_line_char_frac", c.dup_line_char_frac > l.dup_line_char_frac},
                        {"top_2_gram", c.top[0] > l.top[0]},
                        {"top_3_gram", c.top[1] > l.top[1]},
                        {"top_4_gram", c.top[2] > l.top[2]},
                        {"duplicated_5_n_grams", c.dup[0] > l.dup[0]},
                        {"duplicated_6_n_grams", c.dup[1] > l.dup[1]},
                        {"duplicated_7_n_grams", c.dup[2] > l.dup[2]},
                        {"duplicated_8_n_grams", c.dup[3] > l.dup[3]},
                        {"duplicated_9_n_grams", c.dup[4] > l.dup[4]},
                        {"duplicated_10_n_grams", c.dup[5] > l.dup[5]}}});
}

Verdict gopher_quality(const TextColumns& c, const RuleLimits& l) {
  return first_of<10>({{{"gopher_short_doc", c.non_symbol_words < l.min_words},
                        {"gopher_long_doc", c.non_symbol_words > l.max_words},
                        {"gopher_below_avg_threshold", c.mean_word_length < l.min_mean_word_length},
                        {"gopher_above_avg_threshold", c.mean_word_length > l.max_mean_word_length},
                        {"gopher_too_many_hashes", c.hash_ratio > l.max_hash_ratio},
                        {"gopher_too_many_ellipsis", c.ellipsis_ratio > l.max_ellipsis_ratio},
                        {"gopher_too_many_bullets", c.bullet_lines > l.max_bullet_lines},
                        {"gopher_too_many_end_ellipsis", c.ellipsis_lines > l.max_ellipsis_lines},
                        {"gopher_below_alpha_threshold", c.alpha_ratio < l.min_alpha_ratio},
                        {"gopher_enough_stop_words", c.stop_words < l.min_stop_words}}});
}

Verdict fineweb_quality(const TextColumns& c, const RuleLimits& l) {
  if (std::isnan(c.line_punct_ratio)) return {"empty"};
  return first_of<4>({{{"line_punct_ratio", c.line_punct_ratio < l.min_line_punct_ratio},
                       {"short_line_ratio", c.short_line_ratio > l.max_short_line_ratio},
                       {"char_dup_ratio", c.char_dup_ratio > l.max_char_dup_ratio},
                       {"list_ratio", c.list_ratio > l.max_list_ratio}}});
}

TextMeasure::TextMeasure() { begin_table(512); }

void TextMeasure::begin_table(size_t entries) {
  const size_t want = std::bit_ceil(std::max<size_t>(entries * 2, 1024));
  if (slots_.size() < want || ++epoch_ == 0) {
    slots_.assign(std::max(want, slots_.size()), {});
    epoch_ = 1;
  }
  mask_ = want - 1;  // a short text uses a small part of the table, which stays in the cache
}

TextMeasure::Slot& TextMeasure::find(uint64_t key) {
  size_t at = mix(key) & mask_;
  while (slots_[at].epoch == epoch_ && slots_[at].key != key) at = (at + 1) & mask_;
  Slot& slot = slots_[at];
  if (slot.epoch != epoch_) slot = {key, epoch_, 0, 0};
  return slot;
}

TextMeasure::Duplicates TextMeasure::duplicates(const std::vector<std::string_view>& pieces) {
  Duplicates found;
  if (pieces.size() < 2) return found;
  begin_table(pieces.size());
  for (std::string_view piece : pieces) {
    Slot& slot = find(XXH3_64bits(piece.data(), piece.size()));
    if (slot.count++ == 0) continue;
    found.count += 1;
    found.chars += static_cast<double>(count_chars(piece));
  }
  return found;
}

void TextMeasure::measure_fineweb_lines(std::string_view text, TextColumns& columns) {
  pieces_.clear();
  double newlines = 0, terminal = 0, brief = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    if (end < text.size()) newlines += 1;
    begin = end + 1;
    if (line.empty() || strip_left(line).empty()) continue;
    pieces_.push_back(line);
    terminal += ends_in_terminal(line);
    brief += line.size() <= 30 || (line.size() <= 120 && count_chars(line) <= 30);
  }
  columns.newlines = newlines;
  if (pieces_.empty()) return;
  const auto n = static_cast<double>(pieces_.size());
  columns.line_punct_ratio = terminal / n;
  columns.short_line_ratio = brief / n;
  columns.char_dup_ratio = duplicates(pieces_).chars / (columns.chars - newlines);
}

void TextMeasure::measure_lines(std::string_view text, TextColumns& columns) {
  columns.hashes = static_cast<double>(std::count(text.begin(), text.end(), '#'));
  columns.ellipses = static_cast<double>(count_text(text, "...") + count_text(text, "\xe2\x80\xa6"));
  if (columns.chars > 0) {
    split_newlines(strip(text), 2, pieces_);
    Duplicates found = duplicates(pieces_);
    columns.dup_para_frac = found.count / static_cast<double>(pieces_.size());
    columns.dup_para_char_frac = found.chars / columns.chars;
    split_newlines(text, 1, pieces_);
    found = duplicates(pieces_);
    columns.dup_line_frac = found.count / static_cast<double>(pieces_.size());
    columns.dup_line_char_frac = found.chars / columns.chars;
  }
  double lines = 0, bullets = 0, ellipses = 0;
  for (std::string_view line : split_lines(text)) {
    lines += 1;
    line = strip(line);
    bullets += line.starts_with('-') || line.starts_with("\xe2\x80\xa2");
    ellipses += line.ends_with("...") || line.ends_with("\xe2\x80\xa6");
  }
  if (lines > 0) {
    columns.bullet_lines = bullets / lines;
    columns.ellipsis_lines = ellipses / lines;
  }
  std::array<int64_t, 3> longest{-1, -1, -1};
  int64_t num_lines = 0;
  for (size_t begin = 0; begin <= text.size(); ++num_lines) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end - begin >= 200) {
      const int64_t chars = count_chars(text.substr(begin, end - begin));
      if (chars > longest[2]) longest[2] = chars;
      std::sort(longest.begin(), longest.end(), std::greater<>());
    }
    begin = end + 1;
  }
  columns.has_paragraphs = num_lines >= 3 && longest[2] >= 200;
}

void TextMeasure::measure_words(std::string_view text, TextColumns& columns) {
  segment_words(text, words_);
  const size_t n = words_.size();
  hashes_.resize(n);
  prefix_.resize(n + 1);
  chars_before_.resize(n + 1);
  bytes_before_.assign(n + 1, 0);
  const Powers& power = powers();
  prefix_[0] = 0;
  chars_before_[0] = 0;
  double non_symbol = 0, length = 0, with_letter = 0;
  uint32_t stop_words = 0;
  for (size_t i = 0; i < n; ++i) {
    const Word& word = words_[i];
    const std::string_view bytes = word.in(text);
    hashes_[i] = hash_word(bytes);
    prefix_[i + 1] = reduce(static_cast<unsigned __int128>(prefix_[i]) * power(bytes.size()) + hashes_[i]);
    chars_before_[i + 1] = chars_before_[i] + word.chars;
    bytes_before_[i + 1] = bytes_before_[i] + (word.end - word.begin);
    with_letter += word.has_letter;
    non_symbol += !word.is_symbol;
    length += word.is_symbol ? 0 : word.chars;
    is_stop_word(bytes, stop_words);
  }
  columns.words = static_cast<double>(n);
  columns.non_symbol_words = non_symbol;
  columns.stop_words = std::popcount(stop_words);
  if (non_symbol > 0) columns.mean_word_length = length / non_symbol;
  if (n > 0) {
    columns.alpha_ratio = with_letter / columns.words;
    columns.hash_ratio = columns.hashes / columns.words;
    columns.ellipsis_ratio = columns.ellipses / columns.words;
    columns.list_ratio = columns.newlines / columns.words;
  }
}

// The share of the commonest n-gram, of those that begin at `places_`. Leaves there the ones that occur again: an
// n-gram that occurs once is not part of a longer one that occurs twice.
double TextMeasure::measure_top(size_t n, double chars) {
  const size_t num_grams = words_.size() + 1 - n;
  begin_table(places_.size());
  slot_of_.resize(places_.size());
  uint32_t best_count = 1, best_first = 0;  // all others occur once, and the first of the text is the first of them
  for (size_t p = 0; p < places_.size() && places_[p] < num_grams; ++p) {
    const uint32_t i = places_[p];
    grams_[i] = mix(grams_[i] * 0x9e3779b97f4a7c15ull + hashes_[i + n - 1]);
    Slot& slot = find(grams_[i]);
    slot_of_[p] = static_cast<uint32_t>(&slot - slots_.data());
    if (slot.count++ == 0) slot.first = i;
    if (slot.count > best_count || (slot.count == best_count && slot.first < best_first)) {
      best_count = slot.count;
      best_first = slot.first;
    }
  }
  size_t again = 0;
  for (size_t p = 0; p < places_.size() && places_[p] < num_grams; ++p) {
    if (slots_[slot_of_[p]].count > 1) places_[again++] = places_[p];
  }
  places_.resize(again);
  const double length = chars_before_[best_first + n] - chars_before_[best_first] + static_cast<double>(n - 1);
  return length * best_count / chars;
}

// Marks the words from which kProbe bytes of the joined text also stand behind another word.
void TextMeasure::find_repeated_starts(std::string_view text) {
  const size_t n = words_.size();
  joined_.clear();
  for (const Word& word : words_) joined_.append(word.in(text));
  joined_.append(kProbe, '\0');
  begin_table(n);
  slot_of_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    std::array<uint64_t, kProbe / 8> bytes;
    std::memcpy(bytes.data(), joined_.data() + bytes_before_[i], kProbe);
    Slot& slot = find(mix(bytes[0] * 0x9e3779b97f4a7c15ull + bytes[1]));
    slot_of_[i] = static_cast<uint32_t>(&slot - slots_.data());
    ++slot.count;
  }
  is_repeated_.resize(n);
  for (size_t i = 0; i < n; ++i) is_repeated_[i] = slots_[slot_of_[i]].count > 1;
}

// The share of n-grams, joined without spaces, that stood in the text before.
double TextMeasure::measure_duplicates(size_t n, double chars) {
  const Powers& power = powers();
  const size_t num_words = words_.size();
  begin_table(num_words);
  double found = 0;
  for (size_t i = 0; i + n <= num_words;) {
    const size_t bytes = bytes_before_[i + n] - bytes_before_[i];
    if (!is_repeated_[i] && bytes >= kProbe) {  // its first bytes stand nowhere else
      ++i;
      continue;
    }
    const uint64_t before = multiply(prefix_[i], power(bytes));
    const uint64_t gram = prefix_[i + n] + (prefix_[i + n] < before ? kPrime : 0) - before;
    if (find(gram).count++ == 0) {
      ++i;
      continue;
    }
    found += chars_before_[i + n] - chars_before_[i];
    i += n;
  }
  return found / chars;
}

void TextMeasure::measure_ngrams(std::string_view text, TextColumns& columns) {
  const size_t num_words = words_.size();
  grams_.assign(hashes_.begin(), hashes_.end());
  places_.resize(num_words);
  std::iota(places_.begin(), places_.end(), 0u);
  for (size_t n = 2; n <= 4 && n <= num_words; ++n) columns.top[n - 2] = measure_top(n, columns.chars);
  find_repeated_starts(text);
  for (size_t n = 5; n <= 10; ++n) columns.dup[n - 5] = measure_duplicates(n, columns.chars);
}

TextColumns TextMeasure::measure(std::string_view text) {
  TextColumns columns;
  columns.chars = static_cast<double>(count_chars(text));
  measure_fineweb_lines(text, columns);
  measure_lines(text, columns);
  measure_words(text, columns);
  if (columns.chars > 0) measure_ngrams(text, columns);
  return columns;
}

TextColumns TextMeasure::measure_fineweb(std::string_view text) {
  TextColumns columns;
  columns.chars = static_cast<double>(count_chars(text));
  measure_fineweb_lines(text, columns);
  columns.words = static_cast<double>(count_words(text));
  if (columns.words > 0) columns.list_ratio = columns.newlines / columns.words;
  return columns;
}

}  // namespace sinter::data
