// Samples into rows of a fixed number of tokens, and rows into batches. A sample is never cut, and attention never
// crosses from one to the next: each is a sequence of its own with positions from 0.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"
#include "tune/data/sample.h"

namespace sinter::tune {

struct Placement {
  int64_t sample = 0;
  int64_t begin = 0, end = 0;  // tokens of the sample
  bool operator==(const Placement&) const = default;
};
using PackedRow = std::vector<Placement>;

// Best fit, longest first; among equals the earlier sample and the earlier row. Samples longer than a row keep their
// first tokens (`best_fit`), are cut into several (`best_fit_split`), or all are joined and cut (`wrapped`): the
// trainer leaves too long ones out before, so that nothing is cut.
enum class PackStrategy { best_fit, best_fit_split, wrapped, none };  // none: one sample a row
std::vector<PackedRow> pack_rows(std::span<const int64_t> lengths, int64_t row_tokens, PackStrategy strategy);

// A micro-batch with a weight for every token's loss (MicroBatch::weights). The target of position t is token t + 1 of
// the same sample; weights[t] is that target's (0 where there is no loss).
struct TuneBatch : data::MicroBatch {
  std::vector<int64_t> samples;  // of each sequence that is not padding: the sample it holds
  double weight_sum = 0;         // what the loss is divided by, summed over the step
};

// Fills a batch up to num_tokens tokens with one sequence without targets or weights.
void pad_tokens(data::MicroBatch& batch, int64_t num_tokens);

// Lays sequences into a batch of fixed shape: num_tokens tokens, max_sequences sequences. finish() pads what is left.
class TuneBatchBuilder {
 public:
  TuneBatchBuilder(int64_t num_tokens, int64_t max_sequences);
  bool has_room(int64_t tokens) const;
  // `sample` is kept in TuneBatch::samples.
  void add(const TokenSegments& tokens, int64_t sample, int64_t begin = 0, int64_t end = -1);
  TuneBatch finish();  // the builder is empty again

 private:
  int64_t num_tokens_, max_sequences_;
  TuneBatch batch_;
};

// Which rows a rank reads in a step: every rank the same number of micro-batches in every step, whatever the rows hold.
// The last step of an epoch is filled with empty rows (-1).
class RowSchedule {
 public:
  RowSchedule(int64_t num_rows, int64_t rows_per_micro_batch, int64_t micro_batches, int64_t ranks);
  int64_t steps() const { return steps_; }
  // Rows of micro-batch `m` of `rank` in `step` of an epoch; -1: none.
  std::vector<int64_t> rows(int64_t step, int64_t m, int64_t rank) const;

 private:
  int64_t num_rows_, rows_per_micro_batch_, micro_batches_, ranks_, steps_;
};

}  // namespace sinter::tune
