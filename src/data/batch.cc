#include "data/batch.h"

#include <cassert>
#include <utility>

namespace sinter::data {

BatchBuilder::BatchBuilder(int64_t num_windows, int64_t window, int64_t max_pieces, spec::Packing packing)
    : num_windows_(num_windows),
      window_(window),
      // A short window needs one more sequence for its padding.
      pieces_per_window_(packing == spec::Packing::documents ? max_pieces + 1 : 2),
      packing_(packing) {
  batch_.offsets.push_back(0);
}

void BatchBuilder::add_sequence(int64_t count) {
  const auto sequence = static_cast<int32_t>(batch_.contexts.size());
  for (int64_t i = 0; i < count; ++i) {
    batch_.positions.push_back(static_cast<int32_t>(i));
    batch_.sequence_of.push_back(sequence);
  }
  batch_.offsets.push_back(static_cast<int32_t>(batch_.positions.size()));
  batch_.contexts.push_back(static_cast<int32_t>(count));
}

void BatchBuilder::add(const TokenSource& source, int64_t index) {
  assert(!is_full());
  const int64_t count = source.read(index, tokens_, pieces_);
  batch_.tokens.insert(batch_.tokens.end(), tokens_.begin(), tokens_.begin() + count);
  const size_t first_target = batch_.targets.size();
  batch_.targets.insert(batch_.targets.end(), tokens_.begin() + 1, tokens_.begin() + count + 1);
  if (packing_ == spec::Packing::documents) {
    for (const Piece& piece : pieces_) {
      // A document's last token has nothing to predict; the window's last one was given -1 by read().
      if (piece.begin + piece.count < count)
        batch_.targets[first_target + static_cast<size_t>(piece.begin + piece.count) - 1] = -1;
      add_sequence(piece.count);
    }
  } else {
    add_sequence(count);
  }
  if (count < window_) {
    batch_.tokens.insert(batch_.tokens.end(), static_cast<size_t>(window_ - count), 0);
    batch_.targets.insert(batch_.targets.end(), static_cast<size_t>(window_ - count), -1);
    add_sequence(window_ - count);
  }
  ++filled_;
}

void BatchBuilder::add_padding() {
  batch_.tokens.insert(batch_.tokens.end(), static_cast<size_t>(window_), 0);
  batch_.targets.insert(batch_.targets.end(), static_cast<size_t>(window_), -1);
  add_sequence(window_);
  ++filled_;
}

HostBatch BatchBuilder::take() {
  while (!is_full()) add_padding();
  batch_.contexts.resize(static_cast<size_t>(max_sequences()), 0);
  batch_.offsets.resize(static_cast<size_t>(max_sequences()) + 1, static_cast<int32_t>(batch_.tokens.size()));
  batch_.max_query = window_;
  for (int32_t target : batch_.targets) batch_.num_supervised += target >= 0 ? 1 : 0;
  filled_ = 0;
  HostBatch out = std::exchange(batch_, {});
  batch_.offsets.push_back(0);
  return out;
}

DeviceBatch::DeviceBatch(core::Allocator& allocator, int64_t num_tokens, int64_t num_sequences) {
  auto make = [&](int64_t count) { return core::Tensor(allocator, {count}, base::DType::i32); };
  batch_.tokens = make(num_tokens);
  batch_.positions = make(num_tokens);
  batch_.sequence_of = make(num_tokens);
  batch_.offsets = make(num_sequences + 1);
  batch_.contexts = make(num_sequences);
  batch_.targets = make(num_tokens);
  batch_.num_tokens = num_tokens;
  batch_.num_sequences = num_sequences;
}

const core::RaggedBatch& DeviceBatch::load(const HostBatch& host) {
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
  batch_.max_query = batch_.max_context = host.max_query;
  device.synchronize(device.stream());
  return batch_;
}

}  // namespace sinter::data
