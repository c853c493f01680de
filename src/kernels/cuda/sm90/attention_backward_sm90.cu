// Gradients of attention on Hopper: bf16, heads of 64, causal, sequences of one length.
//
// A block has 128 keys with their values and walks over the queries that see them, 128 at a time, of all query heads
// that share these keys: the gradients of keys and values stay in registers from the first to the last and are written
// once. Scores are computed transposed, keys down and queries across, so that probabilities and their gradients are in
// the registers that the products for dv and dk read. Only dq needs them the other way round, by way of shared memory,
// whose bandwidth is what limits all of this. dq is a sum over blocks of keys: each part is added to f32 numbers in
// global memory that lie in the order of registers, and a last kernel brings them into rows. The order of these
// additions is not fixed: results may differ in their last bits from run to run.
//
// Of the three groups of warps one loads tiles, two compute, 64 keys each.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/sm90/attention_sm90.cuh"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace {

using namespace sm90;

constexpr int kStages = 2, kGroups = 2;
constexpr int kGroupRows = kBlock / kGroups;
constexpr int kPanelBytes = kBlock * kHeadBytes;  // of the scores' gradient: 128 queries, 64 keys
constexpr int kSumFloats = kGroupRows * kHeadDim;

struct BackwardParams {
  const bfloat16 *out, *dout;  // (B T, H D)
  bfloat16* dqkv;              // (B T, W)
  const float* lse;            // (H, B T)
  const float* cos_sin;        // (B T, D), or null: dq and dk are turned back by these angles (RoPE)
  float *lse2, *delta;         // (B, H, padded T): lse in base 2, +inf beyond the last; row sums of dout * out
  float* dq_sums;              // (B, H, blocks, 2, 8, 128, 4)
  int sequences, length, num_blocks, heads, kv_heads, pairs_at_once;
  float scale;

  __host__ __device__ int group() const { return heads / kv_heads; }
  __host__ __device__ int width() const { return (heads + 2 * kv_heads) * kHeadDim; }
  __device__ int64_t block_at(int sequence, int head, int block) const {
    return (int64_t{sequence} * heads + head) * num_blocks + block;
  }
};

struct Shared {
  char keys[kTileBytes], values[kTileBytes];
  char queries[kStages][kTileBytes], douts[kStages][kTileBytes];
  char dscores[kStages][kGroups][kPanelBytes];  // at the end dk and dv on their way out
  float lse2[kStages][kBlock], delta[kStages][kBlock];
  Barrier keys_full, queries_full[kStages], queries_empty[kStages], douts_full[kStages], douts_empty[kStages];
};

// Which keys a block has. Blocks start in the order of their numbers: for some heads at a time, whose queries and sums
// then stay in the second-level cache, those first that have most queries to see.
struct Work {
  int block, kv_head, sequence;
};
__device__ Work work_at(const BackwardParams& p, int index) {
  const int pairs = p.sequences * p.kv_heads, per_set = p.pairs_at_once * p.num_blocks;
  const int first = index / per_set * p.pairs_at_once, rest = index % per_set;
  const int at_once = min(p.pairs_at_once, pairs - first);
  const int pair = first + rest % at_once;
  return {rest / at_once, pair % p.kv_heads, pair / p.kv_heads};
}

// The steps of a block: its queries' heads one after the other, in each the blocks of queries from its own on.
struct Steps {
  int first, last, last_head, head, block;
  __device__ Steps(const BackwardParams& p, const Work& w)
      : first(w.block),
        last(p.num_blocks),
        last_head((w.kv_head + 1) * p.group()),
        head(w.kv_head * p.group()),
        block(w.block) {}
  __device__ __forceinline__ bool is_left() const { return head < last_head; }
  __device__ __forceinline__ void next() {
    if (++block == last) block = first, ++head;
  }
};

struct Maps {
  CUtensorMap queries, keys, values, douts, lse2, delta;
};

__device__ void load(const Maps& maps, const BackwardParams& p, const Work& w, Shared& s) {
  s.keys_full.arrive_and_expect_tx(2 * kTileBytes);
  load_tile(maps.keys, address_of(s.keys), s.keys_full, w.kv_head, w.block * kBlock, w.sequence);
  load_tile(maps.values, address_of(s.values), s.keys_full, w.kv_head, w.block * kBlock, w.sequence);
  Ring<kStages> ring;
  for (Steps at(p, w); at.is_left(); at.next(), ring.next()) {
    const int number = static_cast<int>(p.block_at(w.sequence, at.head, at.block)) * kBlock;
    auto fetch = [&](Barrier& empty, Barrier& full, const CUtensorMap& rows, char* tile, const CUtensorMap& numbers,
                     float* to) {
      empty.wait(ring.phase ^ 1);
      full.arrive_and_expect_tx(kTileBytes + kBlock * sizeof(float));
      load_tile(rows, address_of(tile), full, at.head, at.block * kBlock, w.sequence);
      load_numbers(numbers, address_of(to), full, number);
    };
    const int i = ring.stage;
    fetch(s.queries_empty[i], s.queries_full[i], maps.queries, s.queries[i], maps.lse2, s.lse2[i]);
    fetch(s.douts_empty[i], s.douts_full[i], maps.douts, s.douts[i], maps.delta, s.delta[i]);
  }
}

template <int N>
__device__ __forceinline__ void round_pairs(const float (&x)[N], uint32_t (&pairs)[N / 2]) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) pairs[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
}

// A group's (64, 64) results to rows of 64 in global memory, by way of 8 KiB of shared memory; every warp its own 16.
__device__ __forceinline__ void store_rows(const float (&x)[32], char* tile, bfloat16* to, int64_t width,
                                           int rows_left) {
  const int lane = threadIdx.x % 32, first = threadIdx.x % kGroupThreads / 32 * 16;
  const uint32_t base = address_of(tile);
  uint32_t pairs[16];
  round_pairs(x, pairs);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    store_pieces(base + swizzled(first + lane % 16, 2 * k + lane / 16), pairs[4 * k], pairs[4 * k + 1],
                 pairs[4 * k + 2], pairs[4 * k + 3]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + 4 * i + lane / 8, chunk = lane % 8;
    if (row >= rows_left) continue;
    *reinterpret_cast<uint4*>(to + row * width + chunk * 8) = load_chunk(base + swizzled(row, chunk));
  }
}

// Angles of a thread's two rows for the columns that it has of a head's first half; its other half goes with the same.
struct Angles {
  float2 cosine[2][4], sine[2][4];
  __device__ __forceinline__ void load(const float* first, int rows_left) {
    const int row = threadIdx.x % kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float* from = first + (row + 8 * h < rows_left ? row + 8 * h : 0) * kHeadDim + column;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        cosine[h][j] = *reinterpret_cast<const float2*>(from + 8 * j);
        sine[h][j] = *reinterpret_cast<const float2*>(from + kHeadDim / 2 + 8 * j);
      }
    }
  }
  __device__ __forceinline__ void turn_back(float (&x)[32]) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 c = cosine[i >> 1 & 1][i / 4], s = sine[i >> 1 & 1][i / 4];
      const float cosine_of = i & 1 ? c.y : c.x, sine_of = i & 1 ? s.y : s.x;
      const float a = x[i], b = x[i + 16];
      x[i] = a * cosine_of + b * sine_of;
      x[i + 16] = b * cosine_of - a * sine_of;
    }
  }
};

// What a group of warps does with its 64 keys.
class Compute {
 public:
  __device__ Compute(const BackwardParams& p, const Work& w, Shared& s, int g)
      : p_(p),
        w_(w),
        s_(s),
        g_(g),
        thread_(threadIdx.x % kGroupThreads),
        row_(g * kGroupRows + thread_ / 32 * 16 + thread_ % 32 / 4),
        column_(2 * (thread_ % 4)),
        at_(p, w) {}

  __device__ __forceinline__ void run() {
    float dk[32] = {}, dv[32] = {};
    s_.keys_full.wait(0);
    for (; at_.is_left(); at_.next(), ring_.next()) step(dk, dv);
    store(dk, dv);
  }

 private:
  static constexpr uint64_t kGroupOffset = kGroupRows * kHeadBytes >> 4;

  // Products run behind what the threads compute wherever registers allow.
  __device__ __forceinline__ void step(float (&dk)[32], float (&dv)[32]) {
    const int stage = ring_.stage;
    float score[64], dp[64], dq[32];
    uint32_t probability[32], dscore[32];
    start_transposed(score, s_.keys, s_.queries[stage], s_.queries_full[stage]);
    start_transposed(dp, s_.values, s_.douts[stage], s_.douts_full[stage]);
    cute::warpgroup_wait<1>();
    pin(score);
    to_probabilities(score);
    cute::warpgroup_wait<0>();
    pin(dp);
    to_score_gradients(dp, score);
    round_pairs(score, probability);
    round_pairs(dp, dscore);
    store_panel(dscore);
    start_sum(dv, probability, s_.douts[stage]);
    sync_threads(1, kGroups * kGroupThreads);  // both panels are there, and nobody reads those of the step before
    start_query_gradients(dq);
    cute::warpgroup_wait<1>();
    pin(dv);
    arrive_warp(s_.douts_empty[stage]);
    start_sum(dk, dscore, s_.queries[stage]);
    cute::warpgroup_wait<1>();
    pin(dq);
    add_query_sums(dq);
    cute::warpgroup_wait<0>();
    pin(dk);
    arrive_warp(s_.queries_empty[stage]);
  }

  // product (64 keys, 128 queries) of this group's rows of `keys` and all of `queries`
  __device__ __forceinline__ void start_transposed(float (&product)[64], const char* keys, const char* queries,
                                                   Barrier& full) {
    const uint64_t a = tile_descriptor(address_of(keys)) + g_ * kGroupOffset, b = tile_descriptor(address_of(queries));
    full.wait(ring_.phase);
    pin(product);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 4; ++k) multiply<Along, Along>(product, a + k * kNextAlongRow, b + k * kNextAlongRow, k > 0);
    cute::warpgroup_commit_batch();
  }
  // sum (64 keys, 64) += factor (64 keys, 128 queries) tile (128 queries, 64)
  __device__ __forceinline__ void start_sum(float (&sum)[32], uint32_t (&factor)[32], const char* tile) {
    const uint64_t b = tile_descriptor(address_of(tile));
    pin(sum), pin(factor);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 8; ++k) multiply(sum, factor + 4 * k, b + k * kNextRows, true);
    cute::warpgroup_commit_batch();
  }
  // dq (64 queries, 64) from both groups' panels
  __device__ __forceinline__ void start_query_gradients(float (&dq)[32]) {
    const uint64_t keys = tile_descriptor(address_of(s_.keys));
    pin(dq);
    cute::warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint64_t rows = tile_descriptor(address_of(s_.dscores[ring_.stage][k / 4])) + g_ * kGroupOffset;
      multiply<Along, Across>(dq, rows + k % 4 * kNextAlongRow, keys + k * kNextRows, k > 0);
    }
    cute::warpgroup_commit_batch();
  }

  // score = exp2(scale * score - lse), 0 where a key comes after the query.
  __device__ __forceinline__ void to_probabilities(float (&score)[64]) {
    if (at_.block == w_.block) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (row_ + (i & 2) * 4 > column_ + i / 4 * 8 + (i & 1)) score[i] = -INFINITY;
      }
    }
    const uint32_t lse2 = address_of(s_.lse2[ring_.stage]) + column_ * sizeof(float);
    const float scale_log2 = p_.scale * kLog2E;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 l = load_pair(lse2 + 8 * j * sizeof(float));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[4 * j + i] = exp2_fast(fmaf(score[4 * j + i], scale_log2, -(i & 1 ? l.y : l.x)));
      }
    }
  }
  // dp becomes the gradient of the scores.
  __device__ __forceinline__ void to_score_gradients(float (&dp)[64], const float (&probability)[64]) {
    const uint32_t delta = address_of(s_.delta[ring_.stage]) + column_ * sizeof(float);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      const float2 d = load_pair(delta + 8 * j * sizeof(float));
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[4 * j + i] = probability[4 * j + i] * (dp[4 * j + i] - (i & 1 ? d.y : d.x));
    }
  }

  // To the panel of this group's keys: queries down, keys across.
  __device__ __forceinline__ void store_panel(const uint32_t (&dscore)[32]) {
    const int lane = thread_ % 32, warp = thread_ / 32;
    const uint32_t to =
        address_of(s_.dscores[ring_.stage][g_]) + swizzled(lane % 8 + lane / 16 * 8, 2 * warp + lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      store_pieces_transposed(to + k * 16 * kHeadBytes, dscore[4 * k], dscore[4 * k + 1], dscore[4 * k + 2],
                              dscore[4 * k + 3]);
    }
    publish_shared();
  }
  __device__ __forceinline__ void add_query_sums(const float (&dq)[32]) {
    float* to = p_.dq_sums + (p_.block_at(w_.sequence, at_.head, at_.block) * kGroups + g_) * kSumFloats + thread_ * 4;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      add_to_global(to + j * kGroupThreads * 4, dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]);
    }
  }
  __device__ __forceinline__ void store(float (&dk)[32], const float (&dv)[32]) {
    sync_threads(1, kGroups * kGroupThreads);  // nobody reads panels any more
#pragma unroll
    for (float& x : dk) x *= p_.scale;
    const int first = w_.block * kBlock + g_ * kGroupRows;
    const int64_t width = p_.width();
    bfloat16* to = p_.dqkv + (int64_t{w_.sequence} * p_.length + first) * width + (p_.heads + w_.kv_head) * kHeadDim;
    if (p_.cos_sin && first < p_.length) {
      Angles angles;
      angles.load(p_.cos_sin + (int64_t{w_.sequence} * p_.length + first) * kHeadDim, p_.length - first);
      angles.turn_back(dk);
    }
    char* tile = s_.dscores[0][g_];
    store_rows(dk, tile, to, width, p_.length - first);
    store_rows(dv, tile + kGroupRows * kHeadBytes, to + p_.kv_heads * kHeadDim, width, p_.length - first);
  }

  const BackwardParams& p_;
  const Work& w_;
  Shared& s_;
  const int g_, thread_, row_, column_;  // row_, column_: of this thread's first number of a transposed tile
  Steps at_;
  Ring<kStages> ring_;
};

__global__ void __launch_bounds__((kGroups + 1) * kGroupThreads, 1)
    backward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ BackwardParams p) {
  extern __shared__ char dynamic[];
  Shared& s = *reinterpret_cast<Shared*>((reinterpret_cast<uintptr_t>(dynamic) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    constexpr int kWarps = kGroups * kGroupThreads / 32;
    s.keys_full.init(1);
    for (int i = 0; i < kStages; ++i) {
      s.queries_full[i].init(1), s.douts_full[i].init(1);
      s.queries_empty[i].init(kWarps), s.douts_empty[i].init(kWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  const Work w = work_at(p, static_cast<int>(blockIdx.x));
  const int group = warp_group();
  if (group == 0) {
    cutlass::arch::warpgroup_reg_dealloc<24>();
    if (threadIdx.x == 0) load(maps, p, w, s);
  } else {
    cutlass::arch::warpgroup_reg_alloc<240>();
    Compute(p, w, s, group - 1).run();
  }
}

constexpr int kPrepareThreads = 256;

// Before: lse2 and delta of 128 queries of a head, and zeros for their sums.
__global__ void __launch_bounds__(kPrepareThreads) prepare_kernel(const __grid_constant__ BackwardParams p) {
  const int block = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y),
            sequence = static_cast<int>(blockIdx.z);
  const int64_t place = p.block_at(sequence, head, block);
  for (int i = 0; i < 4; ++i) {
    const int row = 32 * i + static_cast<int>(threadIdx.x) / 8, t = block * kBlock + row;
    const int64_t token = int64_t{sequence} * p.length + t;
    float sum = 0;
    if (t < p.length) {
      const int64_t at = (token * p.heads + head) * kHeadDim + threadIdx.x % 8 * 8;
      float a[8], b[8];
      load_floats<bfloat16, 8>(p.out + at, a);
      load_floats<bfloat16, 8>(p.dout + at, b);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = fmaf(a[j], b[j], sum);
    }
    for (int lanes = 4; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffff, sum, lanes);
    if (threadIdx.x % 8 == 0) {
      p.delta[place * kBlock + row] = sum;
      p.lse2[place * kBlock + row] =
          t < p.length ? p.lse[int64_t{head} * p.sequences * p.length + token] * kLog2E : INFINITY;
    }
  }
  auto* sums = reinterpret_cast<float4*>(p.dq_sums + place * kGroups * kSumFloats);
  for (int i = static_cast<int>(threadIdx.x); i < kGroups * kSumFloats / 4; i += kPrepareThreads)
    sums[i] = make_float4(0, 0, 0, 0);
}

// After: the queries' gradient from the order of registers to rows, of several heads one after the other, which share
// their angles.
template <bool kTurnsBack>
__global__ void __launch_bounds__(kGroups* kGroupThreads) query_rows_kernel(const __grid_constant__ BackwardParams p) {
  __shared__ __align__(128) char tiles[kGroups][kGroupRows * kHeadBytes];
  const int block = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.z);
  const int g = static_cast<int>(threadIdx.x) / kGroupThreads, thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int first = block * kBlock + g * kGroupRows;
  const int64_t token = int64_t{sequence} * p.length + first;
  if (first >= p.length) return;
  Angles angles;
  if constexpr (kTurnsBack) angles.load(p.cos_sin + token * kHeadDim, p.length - first);
  for (int head = static_cast<int>(blockIdx.y); head < p.heads; head += static_cast<int>(gridDim.y)) {
    const float* from = p.dq_sums + (p.block_at(sequence, head, block) * kGroups + g) * kSumFloats;
    float x[32];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 v = *reinterpret_cast<const float4*>(from + (j * kGroupThreads + thread) * 4);
      x[4 * j] = v.x * p.scale, x[4 * j + 1] = v.y * p.scale;
      x[4 * j + 2] = v.z * p.scale, x[4 * j + 3] = v.w * p.scale;
    }
    if constexpr (kTurnsBack) angles.turn_back(x);
    store_rows(x, tiles[g], p.dqkv + token * p.width() + head * kHeadDim, p.width(), p.length - first);
    __syncwarp();  // the warp has read its rows of the tile
  }
}

}  // namespace

void sm90_attention_backward(Stream& stream, const AttentionBackwardArgs& args, const Tensor& cos_sin) {
  const int64_t sequences = args.batch->num_sequences, length = args.batch->max_query;
  const int64_t heads = args.shape.num_heads, kv_heads = args.shape.num_kv_heads;
  BackwardParams p{};
  p.out = args.out.data<bfloat16>(), p.dout = args.dout.data<bfloat16>(), p.dqkv = args.dqkv.data<bfloat16>();
  p.lse = args.lse.data<float>();
  p.cos_sin = cos_sin ? cos_sin.data<float>() : nullptr;
  p.sequences = static_cast<int>(sequences), p.length = static_cast<int>(length);
  p.heads = static_cast<int>(heads), p.kv_heads = static_cast<int>(kv_heads);
  p.num_blocks = static_cast<int>(div_up(length, kBlock)), p.scale = args.shape.scale;
  const int64_t rows = sequences * heads * p.num_blocks * kBlock;
  const size_t bytes = static_cast<size_t>(rows) * (kHeadDim + 2) * sizeof(float);
  p.dq_sums = static_cast<float*>(scratch(stream, Scratch::attention, bytes));
  p.lse2 = p.dq_sums + rows * kHeadDim, p.delta = p.lse2 + rows;
  // What the blocks of one key head touch again and again: queries, dout and f32 sums of its heads.
  constexpr int64_t kCacheBytes = int64_t{32} << 20;
  const int64_t pairs = sequences * kv_heads, pair_bytes = int64_t{p.group()} * p.num_blocks * kBlock * 4 * kHeadBytes;
  p.pairs_at_once = static_cast<int>(std::clamp<int64_t>(kCacheBytes / pair_bytes, 1, pairs));
  const bfloat16* first = args.qkv.data<bfloat16>();
  const int64_t width = p.width();
  const Maps maps{head_tiles(first, heads, width, length, sequences),
                  head_tiles(first + heads * kHeadDim, kv_heads, width, length, sequences),
                  head_tiles(first + (heads + kv_heads) * kHeadDim, kv_heads, width, length, sequences),
                  head_tiles(p.dout, heads, heads * kHeadDim, length, sequences),
                  number_tiles(p.lse2, rows),
                  number_tiles(p.delta, rows)};
  const dim3 query_blocks(static_cast<unsigned>(p.num_blocks), static_cast<unsigned>(heads),
                          static_cast<unsigned>(sequences));
  prepare_kernel<<<query_blocks, kPrepareThreads, 0, native(stream)>>>(p);
  SINTER_CUDA_LAUNCHED();
  constexpr int kBytes = sizeof(Shared) + 1024;  // from where an address is a multiple of 1024
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const auto blocks = static_cast<unsigned>(pairs * p.num_blocks);
  backward_kernel<<<blocks, (kGroups + 1) * kGroupThreads, kBytes, native(stream)>>>(maps, p);
  SINTER_CUDA_LAUNCHED();
  dim3 several_heads = query_blocks;
  several_heads.y = static_cast<unsigned>(div_up(heads, 4));
  auto* rows_kernel = p.cos_sin ? query_rows_kernel<true> : query_rows_kernel<false>;
  rows_kernel<<<several_heads, kGroups * kGroupThreads, 0, native(stream)>>>(p);
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
