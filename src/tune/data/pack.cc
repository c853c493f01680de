#include "tune/data/pack.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "base/error.h"

namespace sinter::tune {
namespace {

std::vector<PackedRow> pack_wrapped(std::span<const int64_t> lengths, int64_t row_tokens) {
  std::vector<PackedRow> rows;
  int64_t room = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    for (int64_t at = 0; at < lengths[i];) {
      if (room == 0) {
        rows.emplace_back();
        room = row_tokens;
      }
      const int64_t count = std::min(room, lengths[i] - at);
      rows.back().push_back({static_cast<int64_t>(i), at, at + count});
      at += count;
      room -= count;
    }
  }
  return rows;
}

// What is laid into rows as a whole.
std::vector<Placement> pieces_of(std::span<const int64_t> lengths, int64_t row_tokens, PackStrategy strategy) {
  std::vector<Placement> pieces;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t used = strategy == PackStrategy::best_fit_split ? lengths[i] : std::min(lengths[i], row_tokens);
    for (int64_t at = 0; at < used; at += row_tokens)
      pieces.push_back({static_cast<int64_t>(i), at, std::min(at + row_tokens, used)});
  }
  return pieces;
}

}  // namespace

std::vector<PackedRow> pack_rows(std::span<const int64_t> lengths, int64_t row_tokens, PackStrategy strategy) {
  SINTER_CHECK(row_tokens > 0, "rows of {} tokens hold nothing", row_tokens);
  if (strategy == PackStrategy::wrapped) return pack_wrapped(lengths, row_tokens);
  std::vector<Placement> pieces = pieces_of(lengths, row_tokens, strategy);
  std::vector<PackedRow> rows;
  if (strategy == PackStrategy::none) {
    for (const Placement& piece : pieces) rows.push_back({piece});
    return rows;
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const Placement& a, const Placement& b) { return a.end - a.begin > b.end - b.begin; });
  std::map<int64_t, std::deque<size_t>> by_room;  // room left to the rows that have it, first come first
  for (const Placement& piece : pieces) {
    const int64_t count = piece.end - piece.begin;
    const auto best = by_room.lower_bound(count);
    size_t row = rows.size();
    int64_t room = row_tokens;
    if (best == by_room.end()) {
      rows.emplace_back();
    } else {
      room = best->first;
      row = best->second.front();
      best->second.pop_front();
      if (best->second.empty()) by_room.erase(best);
    }
    rows[row].push_back(piece);
    by_room[room - count].push_back(row);
  }
  return rows;
}

TuneBatchBuilder::TuneBatchBuilder(int64_t num_tokens, int64_t max_sequences)
    : num_tokens_(num_tokens), max_sequences_(max_sequences) {}

bool TuneBatchBuilder::has_room(int64_t tokens) const {
  // What is left over becomes one more sequence.
  return batch_.num_tokens() + tokens <= num_tokens_ && batch_.num_sequences() + 2 <= max_sequences_;
}

void TuneBatchBuilder::add(const TokenSegments& tokens, int64_t sample, int64_t begin, int64_t end) {
  if (end < 0) end = tokens.num_tokens();
  SINTER_CHECK(has_room(end - begin), "a sequence of {} tokens does not fit into a batch of {} with {} in it",
               end - begin, num_tokens_, batch_.num_tokens());
  batch_.add_sequence(std::span(tokens.ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
  for (int64_t t = begin; t < end; ++t) {
    const auto next = static_cast<size_t>(t) + 1;
    const float weight = t + 1 < end ? tokens.weights[next] : 0;
    batch_.targets.push_back(weight != 0 ? tokens.ids[next] : -1);
    batch_.weights.push_back(weight);
    batch_.num_supervised += weight != 0;
    batch_.weight_sum += weight;
  }
  batch_.samples.push_back(sample);
}

void pad_tokens(data::MicroBatch& batch, int64_t num_tokens) {
  const int64_t rest = num_tokens - batch.num_tokens();
  if (rest <= 0) return;
  // It may be longer than any sequence: its positions stay among theirs, which a table of positions holds.
  const auto used = static_cast<size_t>(batch.num_tokens());
  const int32_t most = used == 0 ? 0 : *std::max_element(batch.positions.begin(), batch.positions.end());
  batch.add_sequence(std::vector<int32_t>(static_cast<size_t>(rest), 0));
  for (size_t t = used; t < batch.positions.size(); ++t) batch.positions[t] %= most + 1;
  batch.targets.resize(static_cast<size_t>(num_tokens), -1);
  batch.weights.resize(static_cast<size_t>(num_tokens), 0);
}

TuneBatch TuneBatchBuilder::finish() {
  pad_tokens(batch_, num_tokens_);
  batch_.pad_sequences(max_sequences_);
  return std::exchange(batch_, {});
}

RowSchedule::RowSchedule(int64_t num_rows, int64_t rows_per_micro_batch, int64_t micro_batches, int64_t ranks)
    : num_rows_(num_rows), rows_per_micro_batch_(rows_per_micro_batch), micro_batches_(micro_batches), ranks_(ranks) {
  const int64_t in_step = rows_per_micro_batch * micro_batches * ranks;
  SINTER_CHECK(in_step > 0, "a step of {} rows in {} micro-batches on {} ranks is empty", rows_per_micro_batch,
               micro_batches, ranks);
  steps_ = (num_rows + in_step - 1) / in_step;
}

std::vector<int64_t> RowSchedule::rows(int64_t step, int64_t m, int64_t rank) const {
  // Micro-batches go round the ranks as training numbers them: the same rows lie in the same micro-batch on any number
  // of ranks, and draw the same dropout.
  std::vector<int64_t> out;
  const int64_t first = step * rows_per_micro_batch_ * micro_batches_ * ranks_;
  for (int64_t r = 0; r < rows_per_micro_batch_; ++r) {
    const int64_t row = first + (m * ranks_ + rank) * rows_per_micro_batch_ + r;
    out.push_back(row < num_rows_ ? row : -1);
  }
  return out;
}

}  // namespace sinter::tune
