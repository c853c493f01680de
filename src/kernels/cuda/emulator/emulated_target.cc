// test_cuda_emulated: CUDA's own kernels on the CPU, as the target of the cases. Products of many rows, attention of
// cuDNN and what is written for Hopper alone are not among them: the plain loops stand in.
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/error.h"
#include "kernels/cases/case.h"
#include "kernels/cuda/attention/page_attention.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/matmul/fp8_rows.h"
#include "kernels/cuda/matmul/small_product.h"
#include "kernels/cuda/matmul/weight_order.h"
#include "kernels/cuda/serving_options.h"
#include "kernels/cuda/sm90/sm90.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels {
namespace cuda {

// ---- what the backend keeps and asks of the device ----

const CudaOptions& options() {
  static const CudaOptions options;
  return options;
}
const ServingOptions& serving_options() {
  static const ServingOptions options;
  return options;
}
int num_multiprocessors(const Stream&) { return 4; }
int compute_capability(core::Device) { return 90; }
bool is_batch_invariant() { return false; }
NextWeights next_weights(Stream&, const void*, size_t, int) { return {}; }
size_t most_shared_bytes(core::Device) { return emulator::kSharedBytes; }

static void* room(std::vector<std::byte>& block, size_t bytes, std::byte filling) {
  constexpr size_t kAlignment = 256;
  if (block.size() < bytes + kAlignment) block.assign(bytes + kAlignment, filling);
  const auto begin = reinterpret_cast<uintptr_t>(block.data());
  return reinterpret_cast<void*>((begin + kAlignment - 1) / kAlignment * kAlignment);
}
void* scratch(Stream&, Scratch slot, size_t bytes) {
  static std::map<Scratch, std::vector<std::byte>> blocks;
  return room(blocks[slot], bytes, std::byte{0x7f});
}
void* zeroed_scratch(Stream&, size_t bytes) {
  static std::vector<std::byte> block;
  return room(block, std::max(bytes, size_t{1} << 20), std::byte{0});
}

SortedKeys sort_keys(Stream&, const int32_t* keys, int64_t count, int64_t key_count, int64_t first) {
  static std::vector<int32_t> sorted, positions;
  std::vector<uint32_t> own(static_cast<size_t>(count));
  positions.resize(own.size());
  sorted.resize(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    const uint32_t key = static_cast<uint32_t>(keys[i]) - static_cast<uint32_t>(first);
    own[i] = key < static_cast<uint32_t>(key_count) ? key : static_cast<uint32_t>(key_count);
    positions[i] = static_cast<int32_t>(i);
  }
  std::stable_sort(positions.begin(), positions.end(),
                   [&](int32_t a, int32_t b) { return own[static_cast<size_t>(a)] < own[static_cast<size_t>(b)]; });
  for (size_t i = 0; i < own.size(); ++i) sorted[i] = static_cast<int32_t>(own[static_cast<size_t>(positions[i])]);
  return {sorted.data(), positions.data()};
}

// ---- cuDNN's attention for pieces of queries, by plain loops over what it is told ----

bool find_piece_kernel(Stream&, const PieceShape&, size_t& workspace_bytes) {
  workspace_bytes = 0;
  return true;
}

template <class T>
static void attend_pieces(const PieceCall& call) {
  const PieceShape& s = call.shape;
  auto row_of = [&](const void* cache, int64_t piece, int64_t head, int64_t key) {
    const int64_t page = call.pieces.tables[piece * s.table_width() + key / s.page_tokens];
    return static_cast<const T*>(cache) + page * s.page_stride + head * s.head_stride +
           key % s.page_tokens * s.token_stride;
  };
  std::vector<float> out(static_cast<size_t>(s.dim));
  for (int64_t piece = 0; piece < s.pieces; ++piece) {
    const int64_t queries = call.pieces.query_lengths[piece], keys = call.pieces.key_lengths[piece];
    for (int64_t i = 0; i < queries * s.heads; ++i) {
      const int64_t query = i / s.heads, head = i % s.heads, kv_head = head / (s.heads / s.kv_heads);
      const T* q =
          static_cast<const T*>(call.queries) + call.pieces.query_places[piece] + query * s.row_width + head * s.dim;
      const int64_t position = keys - queries + query;
      float sum = 0;
      std::fill(out.begin(), out.end(), 0.0f);
      for (int64_t j = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0; j <= position; ++j) {
        const T *key = row_of(call.keys, piece, kv_head, j), *value = row_of(call.values, piece, kv_head, j);
        float score = 0;
        for (int64_t d = 0; d < s.dim; ++d) score += to_float(q[d]) * to_float(key[d]);
        const float e = std::exp(score * s.scale);
        sum += e;
        for (int64_t d = 0; d < s.dim; ++d) out[static_cast<size_t>(d)] += e * to_float(value[d]);
      }
      T* to = static_cast<T*>(call.out) + call.pieces.output_places[piece] + (query * s.heads + head) * s.dim;
      for (int64_t d = 0; d < s.dim; ++d) to[d] = from_float<T>(out[static_cast<size_t>(d)] / sum);
    }
  }
}
void piece_attention(Stream&, const PieceCall& call) {
  call.shape.dtype == base::DType::bf16 ? attend_pieces<bfloat16>(call) : attend_pieces<half>(call);
}

// ---- cuBLASLt's product of fp8 codes, by plain loops ----

bool scaled_product(Stream&, const ScaledProduct& s) {
  const bool is_bf16 = s.out == base::DType::bf16;
  auto number = [&](const void* from, int64_t at) {
    if (s.out == base::DType::f32) return static_cast<const float*>(from)[at];
    return is_bf16 ? to_float(static_cast<const bfloat16*>(from)[at]) : to_float(static_cast<const half*>(from)[at]);
  };
  auto code = [](const void* from, int64_t at) { return float(static_cast<const __nv_fp8_e4m3*>(from)[at]); };
  for (int64_t i = 0; i < s.m * s.n; ++i) {
    const int64_t row = i / s.n, column = i % s.n;
    float sum = 0;
    for (int64_t k = 0; k < s.k; ++k) {
      const int64_t group = s.has_groups ? k / kFp8Group : 0;
      sum += code(s.a, row * s.k + k) * s.a_scales[group * s.m + row] * code(s.b, column * s.k + k) *
             s.b_scales[group * s.n + column];
    }
    const int64_t at = row * s.d_stride + column;
    sum = s.alpha * sum + (s.bias ? number(s.bias, column) : 0.0f) + (s.addend ? s.beta * number(s.addend, at) : 0.0f);
    if (s.out == base::DType::f32) {
      static_cast<float*>(s.d)[at] = sum;
    } else if (is_bf16) {
      static_cast<bfloat16*>(s.d)[at] = from_float<bfloat16>(sum);
    } else {
      static_cast<half*>(s.d)[at] = from_float<half>(sum);
    }
  }
  return true;
}

// ---- entries whose choice among kernels is not emulated ----

void matmul(Stream& stream, const MatmulArgs& args) {
  if (small_matmul(stream, args)) return;
  if (takes_fp8_rows(stream, args) && fp8_rows_matmul(stream, args)) return;
  reference_table()->matmul(stream, args);
}
bool fused_matmul(Stream& stream, const FusedMatmulArgs& args) { return small_fused_matmul(stream, args); }
bool rotated_matmul(Stream& stream, const RotatedMatmulArgs& args) { return small_rotated_matmul(stream, args); }
bool rotated_attention_backward(Stream&, const RotatedAttentionBackwardArgs&) { return false; }
bool linear_cross_entropy(Stream&, const LinearCrossEntropyArgs&) { return false; }
void attention_forward(Stream& stream, const AttentionForwardArgs& args) { flash_forward(stream, args); }
void attention_backward(Stream& stream, const AttentionBackwardArgs& args) { flash_backward(stream, args); }

}  // namespace cuda

namespace cases {
namespace {

const KernelTable& emulated_table() {
  static const KernelTable own = [] {
    KernelTable t;
    t.name = "cuda, emulated";
#define SINTER_ENTRY(name, Args, cpu, cuda) t.name = cuda::name;
    SINTER_KERNELS(SINTER_ENTRY)
    SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
    return t;
  }();
  return own;
}

Target make_target() {
  Target t;
  t.kernels = &emulated_table();
  t.largest = Size::small;
  t.levels = {""};
  t.num_runs = 1;
  return t;
}

}  // namespace

const Target& target() {
  static const Target target = make_target();
  return target;
}

}  // namespace cases
}  // namespace sinter::kernels
