#include "data/batch.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sinter::data {

std::vector<int32_t> MicroBatch::targets_ahead(int64_t j) const {
  std::vector<int32_t> out(targets.size(), -1);
  const auto shift = static_cast<size_t>(j) + 1;
  for (size_t t = 0; t + shift < targets.size(); ++t) {
    if (sequence_of[t] == sequence_of[t + shift]) out[t] = targets[t + shift];
  }
  return out;
}

BatchBuilder::BatchBuilder(int64_t num_windows, int64_t window, int64_t max_pieces, spec::Packing packing)
    : num_windows_(num_windows),
      window_(window),
      // Among documents the padding of a short window is a sequence of its own; a stream simply goes on with it.
      pieces_per_window_(packing == spec::Packing::documents ? max_pieces + 1 : 1),
      packing_(packing) {}

void BatchBuilder::add(const TokenSource& source, int64_t index) {
  assert(!is_full());
  const int64_t count = source.read(index, tokens_, pieces_);
  ++filled_;
  if (packing_ == spec::Packing::stream) return add_stream(count);
  for (const WindowPiece& piece : pieces_) {
    batch_.add_sequence(std::span(tokens_).subspan(static_cast<size_t>(piece.begin), static_cast<size_t>(piece.count)));
    for (int64_t i = piece.begin + 1; i < piece.begin + piece.count; ++i) {
      batch_.targets.push_back(tokens_[static_cast<size_t>(i)]);
    }
    // A document's last token has nothing to predict; the window's last one predicts the token behind the window.
    const bool is_last = piece.begin + piece.count == count;
    batch_.targets.push_back(is_last ? tokens_.back() : -1);
  }
  add_padding(window_ - count);
}

void BatchBuilder::add_stream(int64_t count) {
  batch_.targets.insert(batch_.targets.end(), tokens_.begin() + 1, tokens_.begin() + count + 1);
  tokens_.resize(static_cast<size_t>(count));
  tokens_.resize(static_cast<size_t>(window_), 0);
  batch_.add_sequence(tokens_);
  batch_.targets.resize(batch_.tokens.size(), -1);
}

void BatchBuilder::add_padding(int64_t count) {
  if (count == 0) return;
  batch_.add_sequence(std::vector<int32_t>(static_cast<size_t>(count), 0));
  batch_.targets.resize(batch_.tokens.size(), -1);
}

MicroBatch BatchBuilder::take() {
  for (; !is_full(); ++filled_) add_padding(window_);
  batch_.pad_sequences(max_sequences());
  for (int32_t target : batch_.targets) batch_.num_supervised += target >= 0 ? 1 : 0;
  filled_ = 0;
  return std::exchange(batch_, {});
}

TrainingBatch::TrainingBatch(core::Allocator& allocator, int64_t num_tokens, int64_t num_sequences, int64_t window) {
  auto make = [&](int64_t count) { return core::Tensor(allocator, {count}, base::DType::i32); };
  batch_.tokens = make(num_tokens);
  batch_.positions = make(num_tokens);
  batch_.sequence_of = make(num_tokens);
  batch_.offsets = make(num_sequences + 1);
  batch_.contexts = make(num_sequences);
  batch_.targets = make(num_tokens);
  batch_.num_tokens = num_tokens;
  batch_.num_sequences = num_sequences;
  batch_.max_query = batch_.max_context = window;
  batch_.host_contexts.assign(static_cast<size_t>(num_sequences), static_cast<int32_t>(window));
}

const core::RaggedBatch& TrainingBatch::load(const MicroBatch& host) {
  core::DeviceRuntime& device = core::runtime(batch_.tokens.device());
  auto copy = [&](const core::Tensor& to, const std::vector<int32_t>& from) {
    assert(to.num_elements() == static_cast<int64_t>(from.size()));
    device.copy_to_device(to.raw(), from.data(), to.bytes(), device.stream());
  };
  copy(batch_.tokens, host.tokens);
  copy(batch_.positions, host.positions);
  copy(batch_.sequence_of, host.sequence_of);
  copy(batch_.offsets, host.offsets);
  copy(batch_.contexts, host.contexts);
  copy(batch_.targets, host.targets);
  batch_.host_contexts = host.contexts;
  batch_.equal_lengths = core::has_equal_lengths(host.offsets, batch_.max_query, batch_.num_tokens);
  size_t filled = host.contexts.size();
  while (filled > 0 && host.offsets[filled - 1] == host.offsets[filled]) --filled;
  batch_.filled_sequences = std::min(core::coarse_bound(static_cast<int64_t>(filled)), batch_.num_sequences);
  return batch_;
}

}  // namespace sinter::data
