// The text filters of Gopher, C4 and FineWeb in one pass over one segmentation: every rule's value is a column, and a
// verdict is a cut of columns, so thresholds can be changed and applied again without reading the text.
//
// Names of filters, reasons and columns are datatrove's, and so are the values (docs/data.md names the differences).
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/segment.h"

namespace sinter::data {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();  // the value would divide by zero

// What the rules measure; kMissing where a value does not exist.
struct TextColumns {
  double chars = 0, hashes = 0, ellipses = 0, newlines = 0;
  double dup_para_frac = kMissing, dup_para_char_frac = kMissing, dup_line_frac = kMissing,
         dup_line_char_frac = kMissing;
  double bullet_lines = kMissing, ellipsis_lines = kMissing;
  double line_punct_ratio = kMissing, short_line_ratio = kMissing, char_dup_ratio = kMissing;
  double words = 0, non_symbol_words = 0, stop_words = 0;
  double mean_word_length = kMissing, alpha_ratio = kMissing, hash_ratio = kMissing, ellipsis_ratio = kMissing,
         list_ratio = kMissing;
  std::array<double, 3> top{kMissing, kMissing, kMissing};                                // 2-, 3- and 4-grams
  std::array<double, 6> dup{kMissing, kMissing, kMissing, kMissing, kMissing, kMissing};  // 5- to 10-grams
  double has_paragraphs = 0;  // C4's three lines of 200 characters

  // Calls visit(name, value) for every column, in a fixed order.
  void visit(const std::function<void(const char* name, double value)>& visit) const;
};

// Reason "" where the text is kept.
struct Verdict {
  std::string_view reason;
  bool is_kept() const { return reason.empty(); }
};

struct RuleLimits {
  double dup_para_frac = .3, dup_para_char_frac = .2, dup_line_frac = .3, dup_line_char_frac = .2;
  std::array<double, 3> top{.2, .18, .16};
  std::array<double, 6> dup{.15, .14, .13, .12, .11, .10};
  double min_words = 50, max_words = 100000, min_mean_word_length = 3, max_mean_word_length = 10;
  double max_hash_ratio = .1, max_ellipsis_ratio = .1, max_bullet_lines = .9, max_ellipsis_lines = .3;
  double min_alpha_ratio = .8, min_stop_words = 2;
  double min_sentences = 5;  // C4
  double min_line_punct_ratio = .12, max_short_line_ratio = .67, max_char_dup_ratio = .01, max_list_ratio = .3;
};

Verdict gopher_repetition(const TextColumns& columns, const RuleLimits& limits);
Verdict gopher_quality(const TextColumns& columns, const RuleLimits& limits);
Verdict fineweb_quality(const TextColumns& columns, const RuleLimits& limits);

// C4's rewriting, line by line.
struct C4Result {
  std::string text;       // the kept lines
  std::string_view dies;  // "lorem_ipsum", "curly_bracket" or "": what ends the whole document
  int64_t sentences = 0;  // of the kept lines
  int64_t lines = 0, kept_lines = 0;
};
struct C4Options {
  bool needs_terminal = true;  // lines must end in . ? ! " or ' ; FineWeb turns it off
};
C4Result c4_rewrite(std::string_view text, const C4Options& options);
Verdict c4_quality(const C4Result& result, const RuleLimits& limits);

// Measures texts; keeps its tables from one to the next. One per thread.
class TextMeasure {
 public:
  TextMeasure();
  // All columns of a text.
  TextColumns measure(std::string_view text);
  // Only what fineweb_quality() looks at.
  TextColumns measure_fineweb(std::string_view text);
  // The words of the last text given to measure().
  const std::vector<Word>& words() const { return words_; }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t epoch = 0, count = 0, first = 0;
  };
  struct Duplicates {
    double count = 0, chars = 0;
  };
  static constexpr size_t kProbe = 16;
  Slot& find(uint64_t key);
  void begin_table(size_t entries);
  void measure_lines(std::string_view text, TextColumns& columns);
  void measure_fineweb_lines(std::string_view text, TextColumns& columns);
  void measure_words(std::string_view text, TextColumns& columns);
  void measure_ngrams(std::string_view text, TextColumns& columns);
  double measure_top(size_t n, double chars);
  void find_repeated_starts(std::string_view text);
  double measure_duplicates(size_t n, double chars);
  Duplicates duplicates(const std::vector<std::string_view>& pieces);

  std::vector<Slot> slots_;
  uint64_t mask_ = 0;
  uint32_t epoch_ = 0;
  std::vector<Word> words_;
  std::vector<uint64_t> hashes_, prefix_, grams_;      // of a word; of the words before it, joined; of n-grams
  std::vector<uint32_t> chars_before_, bytes_before_;  // of the words before
  std::vector<uint32_t> places_, slot_of_;             // words that begin n-grams, and where the table holds those
  std::vector<uint8_t> is_repeated_;
  std::string joined_;  // all words without spaces, and kProbe zeros
  std::vector<std::string_view> pieces_;
};

}  // namespace sinter::data
