// A micro-batch on the host, and its way to a device.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/host_batch.h"
#include "data/source.h"
#include "spec/recipe.h"

namespace sinter::data {

// What an objective knows of a micro-batch beside its tokens (pairs, rewards, log-probabilities): a struct of its own.
struct BatchExtra {
  virtual ~BatchExtra() = default;
};

// One micro-batch in host memory. Token and sequence counts are the same for every batch of a run: unused sequences at
// the end are empty, and tokens that pad a short window have no targets.
struct MicroBatch : core::HostBatch {
  int64_t num_supervised = 0;  // targets that are not -1
  std::vector<float> weights;  // (T) of each token's loss, or empty: 1
  // (T) core::RowNoise on the host, or empty: none.
  std::vector<uint64_t> noise_streams;
  std::vector<float> noise_scales;
  std::shared_ptr<const BatchExtra> extra;
  // Targets of multi-token head j, which predicts j + 2 tokens ahead inside the same sequence.
  std::vector<int32_t> targets_ahead(int64_t j) const;
};

// Lays windows into a batch of fixed size.
class BatchBuilder {
 public:
  // num_windows windows of `window` tokens each; max_pieces: most documents in one window.
  BatchBuilder(int64_t num_windows, int64_t window, int64_t max_pieces, spec::Packing packing);
  void add(const TokenSource& source, int64_t index);
  bool is_full() const { return filled_ == num_windows_; }
  bool is_empty() const { return filled_ == 0; }
  MicroBatch take();  // the batch (padded when not full); the builder is empty again
  int64_t max_tokens() const { return num_windows_ * window_; }
  int64_t max_sequences() const { return num_windows_ * pieces_per_window_; }

 private:
  void add_stream(int64_t count);
  void add_padding(int64_t count);  // a sequence without targets
  int64_t num_windows_, window_, pieces_per_window_, filled_ = 0;
  spec::Packing packing_;
  MicroBatch batch_;
  std::vector<int32_t> tokens_;
  std::vector<WindowPiece> pieces_;
};

// Device memory for one micro-batch, filled again and again.
class TrainingBatch {
 public:
  // window: bound on a sequence's length.
  TrainingBatch(core::Allocator& allocator, int64_t num_tokens, int64_t num_sequences, int64_t window);
  // Valid until the next call. Before the first one only the sizes are right (all a run without data needs).
  const core::RaggedBatch& load(const MicroBatch& batch);

  const core::RaggedBatch& get() const { return batch_; }

 private:
  core::RaggedBatch batch_;
};

}  // namespace sinter::data
