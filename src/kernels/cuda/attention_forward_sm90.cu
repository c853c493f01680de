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
#include <atomic>

#include "kernels/cuda/attention_sm90.cuh"
#include "kernels/cuda/mma.cuh"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

inline constexpr int kPartRows = 64, kPartBytes = kPartRows * kHeadBytes;  // queries of one product
inline constexpr float kSumLimit = 0x1p64f;

// Warpgroups that compute (2 or 3), parts of 64 queries of each, blocks of keys in the ring, whether the warpgroups
// take turns, how many of 8 exponentials are polynomials rather than the special-function unit's, after how many of 64
// exponentials the product with the last block's values is waited for, and whether blocks draw their tiles from a
// counter or by a fixed plan.
template <int kGroups_, int kParts_, int kStages_, bool kTurns_, int kPolynomials_, int kOverlap_, bool kDraws_>
struct Plan {
  static constexpr int kGroups = kGroups_, kParts = kParts_, kStages = kStages_;
  static constexpr int kPolynomials = kPolynomials_, kOverlap = kOverlap_;
  static constexpr bool kTurns = kTurns_, kDraws = kDraws_;
  static constexpr int kGroupRows = kParts * kPartRows, kRows = kGroups * kGroupRows;
  static constexpr int kThreads = (kGroups + 1) * kGroupThreads;
  static constexpr int kRegisters = kGroups == 2 ? 240 : 160, kLoaderRegisters = kGroups == 2 ? 24 : 32;
  static_assert(kGroups == 2 || kGroups == 3);
};

struct Tile {
  int row, sequence, head, kv_head;  // the first row may be negative; head -1: no more tiles
};

template <class Plan>
struct Shared {
  uint8_t queries[2][Plan::kRows * kHeadBytes];  // of this tile and the next
  uint8_t keys[Plan::kStages][kTileBytes], values[Plan::kStages][kTileBytes];
  uint8_t out[Plan::kGroups][Plan::kParts][kPartBytes];
  Tile tiles[4];  // published with their queries, and read again when these have long been overwritten
  float mark;
  Barrier queries_full[2], queries_free[2];
  Barrier keys_full[Plan::kStages], keys_free[Plan::kStages];
  Barrier values_full[Plan::kStages], values_free[Plan::kStages];
};

struct Problem {
  float* lse;  // (H, B*T), or null
  int sequences, length, heads, kv_heads;
  float scale;
  int row_tiles, first_row;  // tiles of a sequence, and the first one's row: the last one ends with the sequence
  int section_pairs;         // (sequence, kv head) pairs whose keys and values stay in L2 together
  int counter;
};

// The library's waits and arrivals do not tell the compiler that memory is read and written around them.
__device__ __forceinline__ void compiler_fence() { asm volatile("" ::: "memory"); }
__device__ __forceinline__ void wait(const Barrier& barrier, int parity) {
  barrier.wait(static_cast<uint32_t>(parity));
  compiler_fence();
}
__device__ __forceinline__ void store_tile(const CUtensorMap& map, uint32_t from, const Tile& tile, int row) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];"
               :: "l"(&map), "r"(from), "r"(0), "r"(tile.head), "r"(row), "r"(tile.sequence) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Of this thread, until their shared memory may be written again.
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// ------------------------------------------------------------------------------------------------ tiles

// Zero between launches: the last block to end resets its own. Launches use them by turns, for they may overlap.
struct Counter {
  unsigned drawn, ended;
};
inline constexpr int kCounters = 64;
__device__ Counter counters[kCounters];

// Tile number `at` of a section: the longest rows first, and the query heads of a kv head together. Head -1 past the
// last.
__device__ __forceinline__ Tile tile_of(const Problem& problem, int section, int at, int rows) {
  const int pairs = problem.sequences * problem.kv_heads, first_pair = section * problem.section_pairs;
  const int sharing = problem.heads / problem.kv_heads;
  const int heads = min(problem.section_pairs, pairs - first_pair) * sharing;
  if (heads <= 0 || at >= heads * problem.row_tiles) return {0, 0, -1, 0};
  const int pair = first_pair + at % heads / sharing, kv_head = pair % problem.kv_heads;
  return {problem.first_row + (problem.row_tiles - 1 - at / heads) * rows, pair / problem.kv_heads,
          kv_head * sharing + at % sharing, kv_head};
}

// The tile of a block's n-th turn. By plan: blocks take tiles of a section in order and in reverse order by turns, which
// evens out their lengths.
template <class Plan>
__device__ __forceinline__ Tile next_tile(const Problem& problem, int& turn) {
  const int pairs = problem.sequences * problem.kv_heads, sharing = problem.heads / problem.kv_heads;
  const int of_section = problem.section_pairs * sharing * problem.row_tiles, blocks = static_cast<int>(gridDim.x);
  if constexpr (Plan::kDraws) {
    const int drawn = static_cast<int>(atomicAdd(&counters[problem.counter].drawn, 1u));
    return tile_of(problem, drawn / of_section, drawn % of_section, Plan::kRows);
  } else {
    const int turns = (of_section + blocks - 1) / blocks, block = static_cast<int>(blockIdx.x);
    for (;; ++turn) {
      const int section = turn / turns, place = turn % 2 ? blocks - 1 - block : block;
      const Tile tile = tile_of(problem, section, turn % turns * blocks + place, Plan::kRows);
      if (tile.head >= 0 || section * problem.section_pairs >= pairs) return ++turn, tile;
    }
  }
}

template <class Plan>
__device__ __forceinline__ void load_tiles(Shared<Plan>& shared, const CUtensorMap& queries,
                                           const CUtensorMap& keys_values, const Problem& problem) {
  Ring<Plan::kStages> place;
  int turn = 0;
  for (int count = 0;; ++count) {
    const Tile tile = next_tile<Plan>(problem, turn);
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
    for (int block = (tile.row + Plan::kRows - 1) / kBlock; block >= 0; --block, place.next()) {
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
  if constexpr (Plan::kDraws) {
    Counter& counter = counters[problem.counter];
    if (atomicAdd(&counter.ended, 1u) == gridDim.x - 1) counter = {0, 0};
  }
}

// ------------------------------------------------------------------------------------------------ softmax

// Of a thread's two rows: its scores x become exp2(x scale + offset), and their sum over the thread's columns.
struct Rows {
  float offset[2], sum[2];
};
__device__ __forceinline__ constexpr int row_of(int word) { return word >> 1 & 1; }

// 2^(252 y - 126), y in [0, 1], by multiplications and additions: 2 to the nearest whole number goes into the exponent,
// the rest through a polynomial (relative error 8e-5, where bf16 keeps 2e-3).
__device__ __forceinline__ float exp2_polynomial(float y) {
  constexpr float kShift = 0x1.8p23f - 126.0f;  // the sum's last bits are the whole number
  const float shifted = fmaf(y, 252.0f, kShift);
  const float rest = fmaf(y, 252.0f, -(shifted - kShift));
  const float power = fmaf(fmaf(fmaf(rest, 0.05517167f, 0.24261112f), rest, 0.69326099f), rest, 0.99992807f);
  return __uint_as_float(__float_as_uint(power) + (__float_as_uint(shifted) << 23));
}
__device__ __forceinline__ float multiply_add_saturated(float a, float b, float c) {
  float y;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}

// Words [kFrom, kTo) of the scores to exponentials, kPolynomials of 8 by the polynomial, which holds down to 2^-126 and
// up to 2^126: far beyond what the sums' limit lets pass.
template <int kFrom, int kTo, int kPolynomials>
__device__ __forceinline__ void exponentiate(float (&s)[64], float scale, Rows& rows) {
  constexpr float kRange = 1.0f / 252;
  const float unit_scale = scale * kRange;
  const float unit_offset[2] = {fmaf(rows.offset[0], kRange, 0.5f), fmaf(rows.offset[1], kRange, 0.5f)};
#pragma unroll
  for (int i = kFrom; i < kTo; ++i) {
    const int row = row_of(i);
    if (i * kPolynomials % 8 < kPolynomials) {
      s[i] = exp2_polynomial(multiply_add_saturated(s[i], unit_scale, unit_offset[row]));
    } else {
      s[i] = exp2_fast(fmaf(s[i], scale, rows.offset[row]));
    }
    rows.sum[row] += s[i];
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

// A warp's 16 rows of scores once more: queries and keys lie in shared memory as the copy engine left them. Volatile, so
// that no register is spent on addresses outside of this rare branch.
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

// From scores whose exponentials were too large: everything so far, of sums `before`, becomes relative to their maximum.
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
  exponentiate<0, 64, 0>(s, scale, rows);
}

// Does a block of keys again if its exponentials were too large for any row of the warp.
__device__ __forceinline__ void repair(float (&s)[64], uint32_t (&p)[32], float (&o)[32], float scale, Rows& rows,
                                       const float (&before)[2], uint32_t queries, uint32_t keys) {
  const bool fits = rows.sum[0] < kSumLimit && rows.sum[1] < kSumLimit;
  if (__all_sync(0xffffffffu, fits)) [[likely]] return;
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
template <int kKeys = kBlock>
__device__ __forceinline__ void start_values(float (&o)[32], const uint32_t (&p)[32], uint64_t values) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) multiply(o, p + 4 * k, values + k * kNextRows, true);
  cute::warpgroup_commit_batch();
}

template <class Plan>
__device__ __forceinline__ void take_turn(int group) {
  if constexpr (Plan::kTurns) sync_threads(1 + group, 2 * kGroupThreads);
}
template <class Plan>
__device__ __forceinline__ void pass_turn(int group) {
  if constexpr (Plan::kTurns) {
    asm volatile("bar.arrive %0, %1;" :: "r"(group + 1 == Plan::kGroups ? 1 : 2 + group), "n"(2 * kGroupThreads)
                 : "memory");
  }
}

// Between exponentials and a wait that shall come after them: the assembler moves waits up past arithmetic, not past
// stores. Nobody reads this one.
template <class Plan>
__device__ __forceinline__ void hold(Shared<Plan>& shared, const Rows& rows) {
  asm volatile("st.shared.f32 [%0], %1;" :: "r"(address_of(&shared.mark)), "f"(rows.sum[0] + rows.sum[1]) : "memory");
}

// A finished tile of 64 rows by way of shared memory, and its rows' logarithms.
template <class Plan>
__device__ __forceinline__ void finish(Shared<Plan>& shared, const CUtensorMap& out, const Problem& problem,
                                       const Tile& tile, int group, int part, const float (&o)[32], const Rows& rows) {
  const int thread = static_cast<int>(threadIdx.x % kGroupThreads), warp = thread / 32, lane = thread % 32;
  const int first = tile.row + group * Plan::kGroupRows + part * kPartRows;
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
  if (part == 0) {
    if (thread == 0) wait_for_stores();  // the last tile's
    sync_threads(1 + Plan::kGroups + group, kGroupThreads);
  }
  const uint32_t buffer = address_of(shared.out[group][part]);
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
  sync_threads(1 + Plan::kGroups + group, kGroupThreads);
  if (thread == 0) store_tile(out, buffer, tile, first);
}

// 64 rows of a tile, `blocks` of keys. Leaves `place` at the next tile's first block.
template <class Plan>
__device__ __forceinline__ void attend(Shared<Plan>& shared, Ring<Plan::kStages>& place, int buffer, int group,
                                       float scale, int first_row, int blocks, float (&o)[32], Rows& rows) {
  const int warp = static_cast<int>(threadIdx.x % kGroupThreads / 32), lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t queries_address = address_of(shared.queries[buffer]) + group * kPartBytes;
  const uint64_t queries = tile_descriptor(queries_address);
  const uint64_t keys = tile_descriptor(address_of(shared.keys)), values = tile_descriptor(address_of(shared.values));
  float s[64];
  uint32_t p[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) o[i] = 0;

  wait(shared.keys_full[place.stage], place.phase);
  take_turn<Plan>(group);
  pin(s);
  cute::warpgroup_arrive();
  start_scores(s, queries, keys + place.stage * (kTileBytes >> 4));
  pass_turn<Plan>(group);
  cute::warpgroup_wait<0>();
  pin(s);
  arrive_warp(shared.keys_free[place.stage]);
  begin_rows(s, scale, rows, first_row % kBlock + warp * 16 + lane / 4 - lane % 4 * 2);
  exponentiate<0, 64, 0>(s, scale, rows);
  round_to<0, 64>(p, s);

#pragma unroll 1
  for (int left = blocks - 1; left > 0; --left) {
    const Ring<Plan::kStages> last = place;
    place.next();
    wait(shared.keys_full[place.stage], place.phase);
    wait(shared.values_full[last.stage], last.phase);
    take_turn<Plan>(group);
    pin(s), pin(p), pin(o);
    cute::warpgroup_arrive();
    start_scores(s, queries, keys + place.stage * (kTileBytes >> 4));
    start_values(o, p, values + last.stage * (kTileBytes >> 4));
    pass_turn<Plan>(group);
    cute::warpgroup_wait<1>();
    pin(s);
    const float before[2] = {rows.sum[0], rows.sum[1]};
    exponentiate<0, Plan::kOverlap, Plan::kPolynomials>(s, scale, rows);
    if constexpr (Plan::kOverlap > 0) hold(shared, rows);
    cute::warpgroup_wait<0>();
    pin(o), pin(p);
    arrive_warp(shared.values_free[last.stage]);
    round_to<0, Plan::kOverlap>(p, s);
    exponentiate<Plan::kOverlap, 64, Plan::kPolynomials>(s, scale, rows);
    round_to<Plan::kOverlap, 64>(p, s);
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

// 128 rows of a tile in two halves that take turns: while one's exponentials are computed, the other's product with
// values and its next scores are.
template <class Plan>
__device__ __forceinline__ void attend_by_halves(Shared<Plan>& shared, Ring<Plan::kStages>& place, int buffer, int group,
                                                 float scale, int blocks, float (&o)[2][32], Rows (&rows)[2]) {
  constexpr int kN = Plan::kPolynomials, kHalf = Plan::kOverlap;
  const int warp = static_cast<int>(threadIdx.x % kGroupThreads / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int distance = warp * 16 + lane / 4 - lane % 4 * 2;
  const uint32_t queries_a = address_of(shared.queries[buffer]) + group * 2 * kPartBytes;
  const uint32_t queries_b = queries_a + kPartBytes;
  const uint64_t keys = tile_descriptor(address_of(shared.keys)), values = tile_descriptor(address_of(shared.values));
  float a[64], b[64], before[2][2];
  uint32_t p[32], q[32];
#pragma unroll
  for (int i = 0; i < 32; ++i) o[0][i] = 0, o[1][i] = 0;
  auto start_scores_of = [&](float (&s)[64], uint32_t queries) {
    pin(s);
    cute::warpgroup_arrive();
    start_scores(s, tile_descriptor(queries), keys + place.stage * (kTileBytes >> 4));
  };
  auto start_values_of = [&](float (&o)[32], uint32_t (&p)[32], int stage) {
    pin(p), pin(o);
    cute::warpgroup_arrive();
    start_values(o, p, values + stage * (kTileBytes >> 4));
  };

  wait(shared.keys_full[place.stage], place.phase);
  start_scores_of(a, queries_a);
  cute::warpgroup_wait<0>();
  pin(a);
  start_scores_of(b, queries_b);
  begin_rows(a, scale, rows[0], distance);
  exponentiate<0, 64, 0>(a, scale, rows[0]);
  round_to<0, 64>(p, a);
  wait(shared.values_full[place.stage], place.phase);
  start_values_of(o[0], p, place.stage);
  cute::warpgroup_wait<1>();
  pin(b);
  begin_rows(b, scale, rows[1], distance + kPartRows);
  before[1][0] = before[1][1] = 0;
  exponentiate<0, kHalf, kN>(b, scale, rows[1]);
  hold(shared, rows[1]);
  cute::warpgroup_wait<0>();
  pin(p), pin(o[0]);
#pragma unroll 1
  for (int left = blocks - 1; left > 0; --left) {
    const int last = place.stage;
    place.next();
    wait(shared.keys_full[place.stage], place.phase);
    start_scores_of(a, queries_a);
    round_to<0, kHalf>(q, b);
    exponentiate<kHalf, 64, kN>(b, scale, rows[1]);
    round_to<kHalf, 64>(q, b);
    if (left < blocks - 1) repair(b, q, o[1], scale, rows[1], before[1], queries_b, address_of(shared.keys[last]));
    arrive_warp(shared.keys_free[last]);
    start_values_of(o[1], q, last);
    cute::warpgroup_wait<1>();
    pin(a);
    before[0][0] = rows[0].sum[0], before[0][1] = rows[0].sum[1];
    exponentiate<0, kHalf, kN>(a, scale, rows[0]);
    hold(shared, rows[0]);
    cute::warpgroup_wait<0>();
    pin(q), pin(o[1]);
    start_scores_of(b, queries_b);
    arrive_warp(shared.values_free[last]);
    round_to<0, kHalf>(p, a);
    exponentiate<kHalf, 64, kN>(a, scale, rows[0]);
    round_to<kHalf, 64>(p, a);
    repair(a, p, o[0], scale, rows[0], before[0], queries_a, address_of(shared.keys[place.stage]));
    wait(shared.values_full[place.stage], place.phase);
    start_values_of(o[0], p, place.stage);
    cute::warpgroup_wait<1>();
    pin(b);
    before[1][0] = rows[1].sum[0], before[1][1] = rows[1].sum[1];
    exponentiate<0, kHalf, kN>(b, scale, rows[1]);
    hold(shared, rows[1]);
    cute::warpgroup_wait<0>();
    pin(p), pin(o[0]);
  }
  round_to<0, kHalf>(q, b);
  exponentiate<kHalf, 64, kN>(b, scale, rows[1]);
  round_to<kHalf, 64>(q, b);
  if (blocks > 1) repair(b, q, o[1], scale, rows[1], before[1], queries_b, address_of(shared.keys[place.stage]));
  arrive_warp(shared.keys_free[place.stage]);
  arrive_warp(shared.queries_free[buffer]);
  start_values_of(o[1], q, place.stage);
  cute::warpgroup_wait<0>();
  pin(q), pin(o[1]);
  arrive_warp(shared.values_free[place.stage]);
  place.next();
}

template <class Plan>
__device__ __forceinline__ void compute_tiles(Shared<Plan>& shared, const CUtensorMap& out, const Problem& problem,
                                              int group) {
  Ring<Plan::kStages> place;
  const float scale = problem.scale * kLog2E;
  if (group == Plan::kGroups - 1) pass_turn<Plan>(group);  // the first turn is the first warpgroup's
#pragma unroll 1
  for (int count = 0;; ++count) {
    const int buffer = count & 1;
    wait(shared.queries_full[buffer], count >> 1 & 1);
    const Tile& tile = shared.tiles[count & 3];
    if (tile.head < 0) break;
    const int row = tile.row + group * Plan::kGroupRows;
    const int blocks = row < 0 ? 0 : row / kBlock + 1, all_blocks = (tile.row + Plan::kRows - 1) / kBlock + 1;
#pragma unroll 1
    for (int i = blocks; i < all_blocks; ++i, place.next()) {  // of the warpgroups below
      wait(shared.keys_full[place.stage], place.phase);
      take_turn<Plan>(group);
      pass_turn<Plan>(group);
      arrive_warp(shared.keys_free[place.stage]);
      wait(shared.values_full[place.stage], place.phase);
      arrive_warp(shared.values_free[place.stage]);
    }
    if (blocks == 0) {
      arrive_warp(shared.queries_free[buffer]);
      continue;
    }
    if constexpr (Plan::kParts == 1) {
      float o[32];
      Rows rows;
      attend<Plan>(shared, place, buffer, group, scale, row, blocks, o, rows);
      finish<Plan>(shared, out, problem, tile, group, 0, o, rows);
    } else {
      float o[2][32];
      Rows rows[2];
      attend_by_halves<Plan>(shared, place, buffer, group, scale, blocks, o, rows);
      finish<Plan>(shared, out, problem, tile, group, 0, o[0], rows[0]);
      finish<Plan>(shared, out, problem, tile, group, 1, o[1], rows[1]);
    }
  }
  if (threadIdx.x % kGroupThreads == 0) wait_for_stores();
}

template <class Plan>
__global__ void __launch_bounds__(Plan::kThreads, 1)
    attention_forward_kernel(const __grid_constant__ CUtensorMap queries, const __grid_constant__ CUtensorMap keys_values,
                             const __grid_constant__ CUtensorMap out, const Problem problem) {
  extern __shared__ uint8_t memory[];
  auto& shared = *reinterpret_cast<Shared<Plan>*>(memory + (-address_of(memory) & 1023));
  if (threadIdx.x == 0) {
    constexpr int kWarps = Plan::kGroups * 4;
    for (int i = 0; i < 2; ++i) shared.queries_full[i].init(1), shared.queries_free[i].init(kWarps);
    for (int i = 0; i < Plan::kStages; ++i) {
      shared.keys_full[i].init(1), shared.keys_free[i].init(kWarps);
      shared.values_full[i].init(1), shared.values_free[i].init(kWarps);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  const int group = warp_group();
  if (group == Plan::kGroups) {
    cutlass::arch::warpgroup_reg_dealloc<Plan::kLoaderRegisters>();
    if (threadIdx.x % kGroupThreads == 0) load_tiles<Plan>(shared, queries, keys_values, problem);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Plan::kRegisters>();
    compute_tiles<Plan>(shared, out, problem, group);
  }
}

// ------------------------------------------------------------------------------------------------ host

struct Heads {
  const void* qkv;  // (B*T, (H + 2 K) * 64)
  void* out;        // (B*T, H * 64)
  float* lse;       // (H, B*T), or null
  int sequences, length, heads, kv_heads;
  float scale;
};

template <class Plan>
void launch(cudaStream_t stream, const Heads& x) {
  constexpr int64_t kSectionBytes = 32 << 20;
  constexpr size_t kSharedBytes = sizeof(Shared<Plan>) + 1024;
  static_assert(kSharedBytes <= 227 * 1024);
  static std::atomic<unsigned> launches{0};

  const int64_t width = int64_t{x.heads + 2 * x.kv_heads} * kHeadDim, pairs = int64_t{x.sequences} * x.kv_heads;
  const auto* first_key = static_cast<const bfloat16*>(x.qkv) + int64_t{x.heads} * kHeadDim;
  const CUtensorMap queries = head_tiles(x.qkv, x.heads, width, x.length, x.sequences, Plan::kRows);
  const CUtensorMap keys_values = head_tiles(first_key, 2 * x.kv_heads, width, x.length, x.sequences, kBlock);
  const CUtensorMap out = head_tiles(x.out, x.heads, int64_t{x.heads} * kHeadDim, x.length, x.sequences, kPartRows);

  const int64_t row_tiles = div_up(x.length, Plan::kRows);
  const int64_t rows = div_up(x.length, Plan::kGroupRows) * Plan::kGroupRows;
  const int64_t sections = div_up(pairs * x.length * 2 * kHeadBytes, kSectionBytes);
  int device = 0, multiprocessors = 0;
  SINTER_CUDA_CHECK(cudaGetDevice(&device));
  SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  const int64_t tiles = row_tiles * x.heads * x.sequences, grid = tiles < multiprocessors ? tiles : multiprocessors;
  const Problem problem{x.lse,
                        x.sequences,
                        x.length,
                        x.heads,
                        x.kv_heads,
                        x.scale,
                        static_cast<int>(row_tiles),
                        static_cast<int>(rows - row_tiles * Plan::kRows),
                        static_cast<int>(div_up(pairs, sections)),
                        static_cast<int>(launches++ % kCounters)};
  auto* kernel = attention_forward_kernel<Plan>;
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  kernel<<<static_cast<unsigned>(grid), Plan::kThreads, kSharedBytes, stream>>>(queries, keys_values, out, problem);
  SINTER_CUDA_CHECK(cudaGetLastError());
}

}  // namespace
}  // namespace sm90

void sm90_attention_forward_raw(cudaStream_t stream, const void* qkv, void* out, float* lse, int sequences, int length,
                                int heads, int kv_heads, float scale) {
  using namespace sm90;
  launch<Plan<3, 1, 4, true, 1, 32, true>>(stream, {qkv, out, lse, sequences, length, heads, kv_heads, scale});
}

}  // namespace sinter::kernels::cuda
