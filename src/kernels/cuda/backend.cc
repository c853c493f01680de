// The CUDA backend beside its kernels, and the memory that these keep between calls.
#include "kernels/backend.h"

#include <algorithm>

#include "kernels/cuda/cuda_kernels.h"
#include "spec/parameters.h"

namespace sinter::kernels {
namespace {

// While attention gathers the gradient of the queries it has it in f32, in our own kernel for Hopper with two numbers
// for each and sequences rounded up to 128: by eight parts at once where they must be added in a fixed order. Among
// documents it lies in rows as wide as those of queries, keys and values; our own kernel, for a fixed order and for
// grouped heads, needs none of it.
size_t attention_bytes(const PassSizes& s) {
  const int64_t T = s.tokens, queries = s.num_heads * s.head_dim;
  const int64_t qkv = (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
  if (!s.packs_documents) {
    if (s.is_deterministic) return static_cast<size_t>(4 * T * queries * 8);
    if (s.compute != core::DType::bf16 || s.head_dim != 64) return static_cast<size_t>(4 * T * queries);
    const int64_t window = std::max<int64_t>(s.window, 1), rows = T / window * ((window + 127) / 128 * 128);
    return static_cast<size_t>(4 * rows * (queries + 2 * s.num_heads));
  }
  const bool is_grouped = s.num_kv_heads < s.num_heads;  // our own kernel takes these too
  if (s.is_deterministic || is_grouped || s.compute == core::DType::f32) return 0;
  return static_cast<size_t>(T * 4 * (qkv + s.num_heads));
}

// A head in bf16 has its loss without logits on Hopper: rows of the input's gradient in f32, and sums by tiles of 128
// columns.
size_t loss_bytes(const PassSizes& s) {
  if (s.compute != core::DType::bf16) return 0;
  const int64_t T = s.tokens, V = s.vocab_size, chunk = spec::loss_chunk_rows(T, V, 2);
  return static_cast<size_t>(4 * (T + chunk * (2 + (V + 127) / 128 + s.hidden)));
}

// Mostly matrix products' 64 MiB and partial sums, and what attention and the loss take in turn.
size_t kept_bytes(const PassSizes& sizes) {
  return (size_t{80} << 20) + std::max(attention_bytes(sizes), loss_bytes(sizes));
}

}  // namespace

const Backend& cuda_backend() {
  static const Backend backend{.kernels = cuda::make_table(),
                               .choices = cuda::measured_choices,
                               .restore_choices = cuda::restore_choices,
                               .set_deterministic = cuda::set_deterministic,
                               .limit_measuring = cuda::limit_measuring,
                               .is_tracing = cuda::is_tracing,
                               .workspace_bytes = kept_bytes};
  return backend;
}

}  // namespace sinter::kernels
