// Causal attention forward on Hopper: bf16, heads of 64, sequences of one length.
//
// A block stays on its multiprocessor and takes tile after tile of queries. One thread of it loads: a tile's queries,
// then keys and values, 128 at a time from the diagonal backwards, into a ring. Each of the other warpgroups owns 64
// rows of queries: scores by the tensor cores into registers, their exponentials rounded in place to the first factor
// of the product with the values. Tensor cores and special-function units need the same time for a block of keys, so
// both must always have work: a warpgroup starts the next scores before it waits for the last values, and the
// warpgroups take turns at starting products, which keeps them in different phases.
//
// The usual running maximum of a row is not kept. Exponentials are relative to the row's maximum on the diagonal block;
// f32 and bf16 share an exponent range wide enough that no precision is lost when later scores are larger. Only where
// they are so much larger (a factor 2^64) that sums could overflow is a block done again, relative to a new maximum:
// a branch that trained models hardly ever take, in place of a maximum, a reduction and a rescaling in every block.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sm90/attention_sm90.cuh"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace {

using namespace sm90;

constexpr int kGroups = 3, kGroupRows = 64, kTileRows = kGroups * kGroupRows;  // warpgroups that compute
constexpr int kGroupBytes = kGroupRows * kHeadBytes, kStages = 4;
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
// After so many of a thread's 64 exponentials it waits for the product with the last block's values.
constexpr int kOverlap = 32;
constexpr float kSumLimit = 0x1p64f;

struct Tile {
  int row, sequence, head, kv_head;  // the first row may be negative; head -1: no more tiles
};

struct Shared {
  uint8_t queries[2][kTileRows * kHeadBytes];  // of this tile and the next
  uint8_t keys[kStages][kTileBytes], values[kStages][kTileBytes];
  uint8_t out[kGroups][kGroupBytes];
  Tile tiles[4];  // published with their queries, and read again when these have long been overwritten
  float marks[kGroups * kGroupThreads];
  Barrier queries_full[2], queries_free[2];
  Barrier keys_full[kStages], keys_free[kStages], values_full[kStages], values_free[kStages];
};

struct Problem {
  float* lse;      // (H, B T), or null
  unsigned* next;  // the next tile's number: 0 before the launch
  int sequences, length, heads, kv_heads;
  float scale;
  int row_tiles, first_row;  // tiles of a sequence, and the first one's row: the last one ends with the sequence
  int section_pairs;         // (sequence, kv head) pairs whose keys and values stay in L2 together
};

// The library's waits and arrivals do not tell the compiler that memory is read and written around them.
__device__ __forceinline__ void compiler_fence() { asm volatile("" ::: "memory"); }
__device__ __forceinline__ void wait(const Barrier& barrier, int parity) {
  barrier.wait(static_cast<uint32_t>(parity));
  compiler_fence();
}
__device__ __forceinline__ void store_tile(const CUtensorMap& map, uint32_t from, const Tile& tile, int row) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(from), "r"(0), "r"(tile.head), "r"(row), "r"(tile.sequence)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Of this thread, until their shared memory may be written again.
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// ------------------------------------------------------------------------------------------------ tiles

// Tile number `at` of a section: the longest rows first, and the query heads of a kv head together. Head -1 past the
// last.
__device__ __forceinline__ Tile tile_of(const Problem& problem, int section, int at) {
  const int pairs = problem.sequences * problem.kv_heads, first_pair = section * problem.section_pairs;
  const int sharing = problem.heads / problem.kv_heads;
  const int heads = min(problem.section_pairs, pairs - first_pair) * sharing;
  if (heads <= 0 || at >= heads * problem.row_tiles) return {0, 0, -1, 0};
  const int pair = first_pair + at % heads / sharing, kv_head = pair % problem.kv_heads;
  return {problem.first_row + (problem.row_tiles - 1 - at / heads) * kTileRows, pair / problem.kv_heads,
          kv_head * sharing + at % sharing, kv_head};
}

// Blocks draw their tiles from one counter: whoever is done takes the longest that is left.
__device__ __forceinline__ Tile next_tile(const Problem& problem) {
  const int of_section = problem.section_pairs * (problem.heads / problem.kv_heads) * problem.row_tiles;
  const int drawn = static_cast<int>(atomicAdd(problem.next, 1u));
  return tile_of(problem, drawn / of_section, drawn % of_section);
}

__device__ __forceinline__ void load_tiles(Shared& shared, const CUtensorMap& queries, const CUtensorMap& keys_values,
                                           const Problem& problem) {
  Ring<kStages> place;
  for (int count = 0;; ++count) {
    const Tile tile = next_tile(problem);
    const int buffer = count & 1;
    Barrier& full = shared.queries_full[buffer];
    wait(shared.queries_free[buffer], (count >> 1 & 1) ^ 1);
    shared.tiles[count & 3] = tile;
    compiler_fence();
    if (tile.head < 0) {
      full.arrive();
      break;
    }
    full.arrive_and_expect_tx(sizeof shared.queries[buffer]);
    load_tile(queries, address_of(shared.queries[buffer]), full, tile.head, tile.row, tile.sequence);
#pragma unroll 1
    for (int block = (tile.row + kTileRows - 1) / kBlock; block >= 0; --block, place.next()) {
      const int i = place.stage;
      wait(shared.keys_free[i], place.phase ^ 1);
      shared.keys_full[i].arrive_and_expect_tx(kTileBytes);
      load_tile(keys_values, address_of(shared.keys[i]), shared.keys_full[i], tile.kv_head, block * kBlock,
                tile.sequence);
      wait(shared.values_free[i], place.phase ^ 1);
      shared.values_full[i].arrive_and_expect_tx(kTileBytes);
      load_tile(keys_values, address_of(shared.values[i]), shared.values_full[i], problem.kv_heads + tile.kv_head,
                block * kBlock, tile.sequence);
    }
  }
}

// ------------------------------------------------------------------------------------------------ softmax

// Of a thread's two rows: its scores x become exp2(x scale + offset), and their sum over the thread's columns.
struct Rows {
  float offset[2], sum[2];
};
__device__ __forceinline__ constexpr int row_of(int word) { return word >> 1 & 1; }

// Words [kFrom, kTo) of the scores to exponentials.
template <int kFrom, int kTo>
__device__ __forceinline__ void exponentiate(float (&s)[64], float scale, Rows& rows) {
#pragma unroll
  for (int i = kFrom; i < kTo; ++i) {
    s[i] = exp2_fast(fmaf(s[i], scale, rows.offset[row_of(i)]));
    rows.sum[row_of(i)] += s[i];
  }
}

template <int kFrom, int kTo>
__device__ __forceinline__ void round_to(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = kFrom / 2; i < kTo / 2; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

__device__ __forceinline__ float row_max(const float (&s)[64], int row) {
  float most = s[2 * row];
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    if (row_of(i) == row) most = fmaxf(most, s[i]);
  }
  most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
  return fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
}

// The block with the diagonal: keys after a row's own are masked, and the maximum sets the offset. `distance` is the
// thread's first row less its first column.
__device__ __forceinline__ void begin_rows(float (&s)[64], float scale, Rows& rows, int distance) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    if (i / 4 * 8 + (i & 1) > distance + 8 * row_of(i)) s[i] = -INFINITY;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.offset[row] = -scale * row_max(s, row);
    rows.sum[row] = 0;
  }
}

// A warp's 16 rows of scores once more: queries and keys lie in shared memory as the copy engine left them. Volatile,
// so that no register is spent on addresses outside of this rare branch.
__device__ __forceinline__ void scores_again(float (&s)[64], uint32_t queries, uint32_t keys) {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  const int lane = thread % 32;
  queries += thread % kGroupThreads / 32 * 16 * kHeadBytes;
#pragma unroll
  for (int i = 0; i < 64; ++i) s[i] = 0;
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    uint32_t a[4], b[4];
    ldmatrix_x4(a, queries + swizzled(lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      ldmatrix_x4(b, keys + swizzled(16 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      mma_16x8x16<bfloat16>(reinterpret_cast<float(&)[4]>(s[8 * j]), a, b[0], b[1]);
      mma_16x8x16<bfloat16>(reinterpret_cast<float(&)[4]>(s[8 * j + 4]), a, b[2], b[3]);
    }
  }
}

// From scores whose exponentials were too large: everything so far, of sums `before`, becomes relative to their
// maximum.
__device__ __forceinline__ void begin_again(float (&s)[64], float (&o)[32], float scale, Rows& rows,
                                            const float (&before)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float offset = fminf(rows.offset[row], -scale * row_max(s, row));
    const float factor = exp2_fast(offset - rows.offset[row]);
    rows.offset[row] = offset;
    rows.sum[row] = before[row] * factor;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (row_of(i) == row) o[i] *= factor;
    }
  }
  exponentiate<0, 64>(s, scale, rows);
}

// Does a block of keys again if its exponentials were too large for any row of the warp.
__device__ __forceinline__ void repair(float (&s)[64], uint32_t (&p)[32], float (&o)[32], float scale, Rows& rows,
                                       const float (&before)[2], uint32_t queries, uint32_t keys) {
  const bool fits = rows.sum[0] < kSumLimit && rows.sum[1] < kSumLimit;
  if (__all_sync(0xffffffffu, fits)) [[likely]]
    return;
  scores_again(s, queries, keys);
  begin_again(s, o, scale, rows, before);
  round_to<0, 64>(p, s);
}

// ------------------------------------------------------------------------------------------------ a warpgroup

__device__ __forceinline__ void start_scores(float (&s)[64], uint64_t queries, uint64_t keys) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply<Along, Along>(s, queries + k * kNextAlongRow, keys + k * kNextAlongRow, k > 0);
  cute::warpgroup_commit_batch();
}
__device__ __forceinline__ void start_values(float (&o)[32], const uint32_t (&p)[32], uint64_t values) {
#pragma unroll
  for (int k = 0; k < kBlock / 16; ++k) multiply(o, p + 4 * k, values + k * kNextRows, true);
  cute::warpgroup_commit_batch();
}

// The warpgroups start their products in turn.
__device__ __forceinline__ void take_turn(int group) { sync_threads(1 + group, 2 * kGroupThreads); }
__device__ __forceinline__ void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(group + 1 == kGroups ? 1 : 2 + group), "n"(2 * kGroupThreads) : "memory");
}

// Between exponentials and a wait that shall come after them: the assembler moves waits up past arithmetic, not past
// stores. Nobody reads these.
__device__ __forceinline__ void hold(Shared& shared, const Rows& rows) {
  const uint32_t mark = address_of(shared.marks) + threadIdx.x * sizeof(float);
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(mark), "f"(rows.sum[0] + rows.sum[1]) : "memory");
}

// A finished tile of 64 rows by way of shared memory, and its rows' logarithms.
__device__ __forceinline__ void finish(Shared& shared, const CUtensorMap& out, const Problem& problem, const Tile& tile,
                                       int group, const float (&o)[32], const Rows& rows) {
  const int thread = static_cast<int>(threadIdx.x % kGroupThreads), warp = thread / 32, lane = thread % 32;
  const int first = tile.row + group * kGroupRows;
  float inverse[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float sum = rows.sum[row];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    inverse[row] = __fdividef(1.0f, sum);
    const int at = first + warp * 16 + lane / 4 + row * 8;
    if (problem.lse && lane % 4 == 0 && at < problem.length) {
      const int64_t sequence = int64_t{tile.head} * problem.sequences + tile.sequence;
      problem.lse[sequence * problem.length + at] = (__log2f(sum) - rows.offset[row]) * (1.0f / kLog2E);
    }
  }
  if (thread == 0) wait_for_stores();  // the last tile's
  sync_threads(1 + kGroups + group, kGroupThreads);
  const uint32_t buffer = address_of(shared.out[group]);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      word[i] = pack_bf16(o[8 * j + 2 * i] * inverse[i & 1], o[8 * j + 2 * i + 1] * inverse[i & 1]);
    }
    store_pieces(buffer + swizzled(warp * 16 + lane % 16, 2 * j + lane / 16), word[0], word[1], word[2], word[3]);
  }
  publish_shared();
  sync_threads(1 + kGroups + group, kGroupThreads);
  if (thread == 0) store_tile(out, buffer, tile, first);
}

// 64 rows of a tile, `blocks` of keys. Leaves `place` at the next tile's first block.
__device__ __forceinline__ void attend(Shared& shared, Ring<kStages>& place, int buffer, int group, float scale,
                                       int first_row, int blocks, float (&o)[32], Rows& rows) {
  const int warp = static_cast<int>(threadIdx.x % kGroupThreads / 32), lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t queries_address = address_of(shared.queries[buffer]) + group * kGroupBytes;
  const uint64_t queries = tile_descriptor(queries_address);
  const uint64_t keys = tile_descriptor(address_of(shared.keys)), values = tile_descriptor(address_of(shared.values));
  float s[64];
  uint32_t p[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) o[i] = 0;

  wait(shared.keys_full[place.stage], place.phase);
  take_turn(group);
  pin(s);
  cute::warpgroup_arrive();
  start_scores(s, queries, keys + place.stage * (kTileBytes >> 4));
  pass_turn(group);
  cute::warpgroup_wait<0>();
  pin(s);
  arrive_warp(shared.keys_free[place.stage]);
  begin_rows(s, scale, rows, first_row % kBlock + warp * 16 + lane / 4 - lane % 4 * 2);
  exponentiate<0, 64>(s, scale, rows);
  round_to<0, 64>(p, s);

#pragma unroll 1
  for (int left = blocks - 1; left > 0; --left) {
    const Ring<kStages> last = place;
    place.next();
    wait(shared.keys_full[place.stage], place.phase);
    wait(shared.values_full[last.stage], last.phase);
    take_turn(group);
    pin(s), pin(p), pin(o);
    cute::warpgroup_arrive();
    start_scores(s, queries, keys + place.stage * (kTileBytes >> 4));
    start_values(o, p, values + last.stage * (kTileBytes >> 4));
    pass_turn(group);
    cute::warpgroup_wait<1>();
    pin(s);
    const float before[2] = {rows.sum[0], rows.sum[1]};
    exponentiate<0, kOverlap>(s, scale, rows);
    hold(shared, rows);
    cute::warpgroup_wait<0>();
    pin(o), pin(p);
    arrive_warp(shared.values_free[last.stage]);
    round_to<0, kOverlap>(p, s);
    exponentiate<kOverlap, 64>(s, scale, rows);
    round_to<kOverlap, 64>(p, s);
    repair(s, p, o, scale, rows, before, queries_address, address_of(shared.keys[place.stage]));
    arrive_warp(shared.keys_free[place.stage]);
  }
  arrive_warp(shared.queries_free[buffer]);

  wait(shared.values_full[place.stage], place.phase);
  pin(p), pin(o);
  cute::warpgroup_arrive();
  start_values(o, p, values + place.stage * (kTileBytes >> 4));
  cute::warpgroup_wait<0>();
  pin(o), pin(p);
  arrive_warp(shared.values_free[place.stage]);
  place.next();
}

__device__ __forceinline__ void compute_tiles(Shared& shared, const CUtensorMap& out, const Problem& problem,
                                              int group) {
  Ring<kStages> place;
  const float scale = problem.scale * kLog2E;
  if (group == kGroups - 1) pass_turn(group);  // the first turn is the first warpgroup's
#pragma unroll 1
  for (int count = 0;; ++count) {
    const int buffer = count & 1;
    wait(shared.queries_full[buffer], count >> 1 & 1);
    const Tile& tile = shared.tiles[count & 3];
    if (tile.head < 0) break;
    const int row = tile.row + group * kGroupRows;
    const int blocks = row < 0 ? 0 : row / kBlock + 1, all_blocks = (tile.row + kTileRows - 1) / kBlock + 1;
#pragma unroll 1
    for (int i = blocks; i < all_blocks; ++i, place.next()) {  // of the warpgroups below
      wait(shared.keys_full[place.stage], place.phase);
      take_turn(group);
      pass_turn(group);
      arrive_warp(shared.keys_free[place.stage]);
      wait(shared.values_full[place.stage], place.phase);
      arrive_warp(shared.values_free[place.stage]);
    }
    if (blocks == 0) {
      arrive_warp(shared.queries_free[buffer]);
      continue;
    }
    float o[32];
    Rows rows;
    attend(shared, place, buffer, group, scale, row, blocks, o, rows);
    finish(shared, out, problem, tile, group, o, rows);
  }
  if (threadIdx.x % kGroupThreads == 0) wait_for_stores();
}

__global__ void __launch_bounds__(kThreads, 1)
    attention_forward_kernel(const __grid_constant__ CUtensorMap queries,
                             const __grid_constant__ CUtensorMap keys_values, const __grid_constant__ CUtensorMap out,
                             const Problem problem) {
  extern __shared__ uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory + (-address_of(memory) & 1023));
  if (threadIdx.x == 0) {
    constexpr int kWarps = kGroups * 4;
    for (int i = 0; i < 2; ++i) shared.queries_full[i].init(1), shared.queries_free[i].init(kWarps);
    for (int i = 0; i < kStages; ++i) {
      shared.keys_full[i].init(1), shared.keys_free[i].init(kWarps);
      shared.values_full[i].init(1), shared.values_free[i].init(kWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  const int group = warp_group();
  if (group == kGroups) {
    cutlass::arch::warpgroup_reg_dealloc<32>();
    if (threadIdx.x % kGroupThreads == 0) load_tiles(shared, queries, keys_values, problem);
  } else {
    cutlass::arch::warpgroup_reg_alloc<160>();
    compute_tiles(shared, out, problem, group);
  }
}

}  // namespace

void sm90_attention_forward(Stream& stream, const AttentionForwardArgs& args) {
  constexpr int64_t kSectionBytes = 32 << 20;
  constexpr size_t kSharedBytes = sizeof(Shared) + 1024;  // from where an address is a multiple of 1024
  static_assert(kSharedBytes <= 227 * 1024);
  const int64_t sequences = args.batch->num_sequences, length = args.batch->max_query;
  const int64_t heads = args.shape.num_heads, kv_heads = args.shape.num_kv_heads;
  const int64_t width = (heads + 2 * kv_heads) * kHeadDim, pairs = sequences * kv_heads;
  const bfloat16* first = args.qkv.data<bfloat16>();
  const CUtensorMap queries = head_tiles(first, heads, width, length, sequences, kTileRows);
  const CUtensorMap keys_values = head_tiles(first + heads * kHeadDim, 2 * kv_heads, width, length, sequences);
  const CUtensorMap out = head_tiles(args.out.raw(), heads, heads * kHeadDim, length, sequences, kGroupRows);

  const int64_t row_tiles = div_up(length, kTileRows), rows = div_up(length, kGroupRows) * kGroupRows;
  const int64_t sections = div_up(pairs * length * 2 * kHeadBytes, kSectionBytes);
  const int64_t tiles = row_tiles * heads * sequences;
  Problem problem{};
  problem.lse = args.lse ? args.lse.data<float>() : nullptr;
  problem.next = static_cast<unsigned*>(scratch(stream, Scratch::attention, sizeof(unsigned)));
  problem.sequences = static_cast<int>(sequences), problem.length = static_cast<int>(length);
  problem.heads = static_cast<int>(heads), problem.kv_heads = static_cast<int>(kv_heads);
  problem.scale = args.shape.scale;
  problem.row_tiles = static_cast<int>(row_tiles), problem.first_row = static_cast<int>(rows - row_tiles * kTileRows);
  problem.section_pairs = static_cast<int>(div_up(pairs, sections));
  SINTER_CUDA_CHECK(cudaMemsetAsync(problem.next, 0, sizeof(unsigned), native(stream)));
  SINTER_CUDA_CHECK(
      cudaFuncSetAttribute(attention_forward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  const auto grid = static_cast<unsigned>(std::min<int64_t>(tiles, num_multiprocessors(stream)));
  attention_forward_kernel<<<grid, kThreads, kSharedBytes, native(stream)>>>(queries, keys_values, out, problem);
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
