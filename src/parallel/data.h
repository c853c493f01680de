// Data parallelism: the gradients of all ranks summed in buckets, behind the backward pass that makes them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "core/tensor.h"

namespace sinter::parallel {

// Watches a flat gradient buffer. During the last micro-batch of a step whoever finishes a stretch of it calls
// mark_ready; a bucket whose every element is ready starts its sum at once. finish() starts what is left and waits.
// Buckets start in the same order on all ranks because their backward passes are the same.
class GradientReducer {
 public:
  // Elements [begin, end) of the buffer, summed over `comm`.
  struct Stretch {
    int64_t begin = 0, end = 0;
    comm::Communicator* comm = nullptr;
  };
  // gradients: (n), of a format that can be summed; stretches in order. Buckets are cut every bucket_bytes of a
  // stretch, counted from the end, where backward begins.
  GradientReducer(const std::vector<Stretch>& stretches, core::Tensor gradients, size_t bucket_bytes);
  GradientReducer(comm::Communicator& comm, core::Tensor gradients, size_t bucket_bytes);

  void begin_step();  // nothing is ready
  // Elements [begin, end) got their last addition. Each element at most once a step.
  void mark_ready(int64_t begin, int64_t end);
  void finish();
  // Sums under way at once: more wait for the oldest, so that the communicator's buffers stay bounded.
  static constexpr int64_t kMostUnderWay = 4;
  // The most bytes that a communicator which takes sums in order of ranks has in buffers for them.
  size_t buffer_bytes() const;
  int64_t num_buckets() const { return static_cast<int64_t>(buckets_.size()); }
  // Buckets of this step that were on their way before finish() was called.
  int64_t num_overlapped() const { return overlapped_; }

 private:
  struct Bucket {
    int64_t begin = 0, end = 0, missing = 0;
    comm::Communicator* comm = nullptr;
    comm::Handle work = nullptr;
    bool is_started = false;
  };
  void start(size_t index);

  core::Tensor gradients_;
  std::vector<Bucket> buckets_;    // of stretches that several ranks sum; last stretch of the buffer first
  std::vector<size_t> under_way_;  // oldest first
  int64_t overlapped_ = 0;
};

// Rows of kernels::Fp8Scaling: what each rank of `group` saw of a tensor, in this step and in those before, becomes
// what any of them saw, so that all round alike. Before the rows are made into scales.
void share_fp8_ranges(comm::Communicator& group, const core::Tensor& scalings);

}  // namespace sinter::parallel
