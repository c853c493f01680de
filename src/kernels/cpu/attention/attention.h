// What the parts of the CPU's attention share: the tiles' products, the batch cut into tasks.
//
// Keys are walked in tiles of kTileKeys counted from their sequence's start, copied into a contiguous tile whether they
// come from packed rows or from cache blocks. Every sum of a query row (scores over D, values over keys, the softmax's
// own) is one chain in an order that only the row's place in its sequence decides; keys it does not see add exact
// zeros. So a row has the same bits alone (decode), inside a prompt, paged or not, with any number of threads.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"

namespace sinter::kernels::cpu {

inline constexpr int64_t kTileKeys = 64;
// Rows of a forward task, over all heads that share a key/value head: the more, the less often keys are copied and
// packed. What the largest task carries from tile to tile (queries, sums) still fits the second-level cache.
inline constexpr int64_t kFewestTaskRows = 256, kMostTaskRows = 1024;
// Rows whose scores are computed before they are used.
inline constexpr int64_t kStripRows = 256;

// Products of small tiles of bf16 pairs with f32 sums, one implementation per instruction set. A unit is two bf16 that
// follow each other along the inner size.
struct PairKernel {
  const char* name;
  // c (rows, columns) = a (rows, units) b (units, columns) (+ c when accumulate). columns and units are multiples of
  // 16; a and c have room for rows rounded up to 16, and c's extra rows may be overwritten.
  void (*multiply)(int64_t rows, int64_t columns, int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b,
                   int64_t b_stride, float* c, int64_t c_stride, bool accumulate);
  // Around a thread's run of multiply() calls: tile registers are configured and given back.
  void (*enter)();
  void (*leave)();
};
// Null where the program was built for another architecture.
const PairKernel* avx512_bf16_pairs();
const PairKernel* amx_pairs();
// The one this machine uses for bf16, following matmul_isa(); null: bf16 is widened to f32 tiles.
const PairKernel* pair_kernel();

class PairKernelScope {
 public:
  explicit PairKernelScope(const PairKernel* kernel) : kernel_(kernel) {
    if (kernel_) kernel_->enter();
  }
  ~PairKernelScope() {
    if (kernel_) kernel_->leave();
  }
  PairKernelScope(const PairKernelScope&) = delete;
  PairKernelScope& operator=(const PairKernelScope&) = delete;

 private:
  const PairKernel* kernel_;
};

// One sequence of a batch.
struct SequenceRows {
  int64_t index = 0, first_row = 0, num_queries = 0, context = 0;
};
std::vector<SequenceRows> sequences_of(const RaggedBatch& batch, bool is_paged);

// Queries [first, first + count) of a sequence for all heads of `num_kv_heads` key/value heads from kv_head on.
struct ForwardTask {
  SequenceRows sequence;
  int64_t kv_head = 0, num_kv_heads = 1, first = 0, count = 0;
};
// One sequence and key/value head.
struct BackwardTask {
  SequenceRows sequence;
  int64_t kv_head = 0;
};

// `units` 4-byte units of the calling thread's own memory, aligned to 64 bytes; the next call takes it back.
uint32_t* attention_scratch(int64_t units);

}  // namespace sinter::kernels::cpu
