// A micro-batch on the host, and its way to a device.
#pragma once
#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/ragged_batch.h"
#include "data/source.h"
#include "spec/recipe.h"

namespace sinter::data {

// As core::RaggedBatch, in host memory. Token and sequence counts are the same for every batch of a run: unused
// sequences at the end are empty, and tokens that pad a short window form a sequence of their own without targets.
struct HostBatch {
  std::vector<int32_t> tokens;       // (T)
  std::vector<int32_t> positions;    // (T)
  std::vector<int32_t> sequence_of;  // (T)
  std::vector<int32_t> offsets;      // (S + 1)
  std::vector<int32_t> contexts;     // (S)
  std::vector<int32_t> targets;      // (T); -1 = not supervised
  int64_t num_supervised = 0;        // targets that are not -1
  int64_t max_query = 0;             // bound on a sequence's length: the window
};

// Lays windows into a batch of fixed size.
class BatchBuilder {
 public:
  // num_windows windows of `window` tokens each; max_pieces: most documents in one window.
  BatchBuilder(int64_t num_windows, int64_t window, int64_t max_pieces, spec::Packing packing);
  void add(const TokenSource& source, int64_t index);
  void add_padding();  // a window without targets
  bool is_full() const { return filled_ == num_windows_; }
  bool is_empty() const { return filled_ == 0; }
  HostBatch take();  // the batch (padded when not full); the builder is empty again
  int64_t max_tokens() const { return num_windows_ * window_; }
  int64_t max_sequences() const { return num_windows_ * pieces_per_window_; }

 private:
  void add_sequence(int64_t count);
  int64_t num_windows_, window_, pieces_per_window_, filled_ = 0;
  spec::Packing packing_;
  HostBatch batch_;
  std::vector<int32_t> tokens_;
  std::vector<Piece> pieces_;
};

// Device memory for one micro-batch, filled again and again.
class DeviceBatch {
 public:
  DeviceBatch(core::Allocator& allocator, int64_t num_tokens, int64_t num_sequences);
  // Valid until the next call.
  const core::RaggedBatch& load(const HostBatch& batch);

 private:
  core::RaggedBatch batch_;
};

}  // namespace sinter::data
