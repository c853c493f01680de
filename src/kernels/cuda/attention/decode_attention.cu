// Attention of few queries over pages: decoding, and the few tokens that speculation checks at once. The time is that
// of reading the keys and values once, so these are cut into pieces that blocks all over the GPU read at the same time.
//
// A piece is so many keys counted from the sequence's start; its length depends on the context alone, so a row's result
// does not depend on the rest of the batch. A block takes one piece of one key head: up to 16 rows (queries times the
// heads that share the keys), 4 warps that take tiles of 16 keys in turns, each with its own two tiles on their way and
// its own running softmax. The warps' sums meet in shared memory; where a sequence has several pieces, the block that
// ends last joins them, in their order. Keys that earlier steps wrote are fetched before the kernel before has ended.
//
// A cache in fp8 is copied as it is and widened by the warp that uses it, which is exact; the heads' scales are factors
// of the scores and of the result.
#include "kernels/cuda/attention/attention.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps, kTile = 16, kStages = 2, kRows = 16;
constexpr int kPieceKeys = 256, kMostPieces = 64;

struct DecodeParams {
  float* parts;        // (T, H, pieces, kDim)
  float* part_stats;   // (T, H, pieces, 2): largest score in log2, sum
  unsigned* counters;  // per (sequence, row tile, key head): blocks that have ended
  int pieces;          // at most, of a sequence
  int row_tiles, most_queries;
  bool fetches_early;  // old keys are there before the kernel before has ended
};

__device__ __forceinline__ int piece_keys(int context) {
  int keys = kPieceKeys;
  while ((context + keys - 1) / keys > kMostPieces) keys *= 2;
  return keys;
}

// What the block works on.
struct Piece {
  AttentionSequence s;
  int row0, rows;       // packed rows [row0, row0 + rows)
  int lowest, highest;  // positions of its queries
  int first_tile, last_tile;
  int count, index;  // pieces of this sequence, and which this is
};

__device__ __forceinline__ bool find_piece(const AttentionParams& p, const DecodeParams& d, Piece& piece) {
  piece.s = sequence_at(p, blockIdx.z, blockIdx.y / d.row_tiles);
  const AttentionSequence& s = piece.s;
  const int num_rows = s.queries * p.group;
  piece.row0 = blockIdx.y % d.row_tiles * kRows;
  piece.rows = min(kRows, num_rows - piece.row0);
  if (s.queries > d.most_queries || piece.rows <= 0) return false;
  piece.lowest = position_of(s, piece.row0 / p.group);
  piece.highest = position_of(s, (piece.row0 + piece.rows - 1) / p.group);
  const int keys = piece_keys(s.context), first_key = p.window > 0 ? max(0, piece.lowest - p.window + 1) : 0;
  const int first = first_key / keys;
  piece.count = piece.highest / keys - first + 1;
  piece.index = blockIdx.x;
  if (piece.index >= piece.count) return false;
  piece.first_tile = max(first_key, (first + piece.index) * keys) / kTile;
  piece.last_tile = min(piece.highest, (first + piece.index + 1) * keys - 1) / kTile;
  return true;
}

// A tile of keys and of values, by one warp. Rows past the last key are zeros.
template <class T, int kDim>
__device__ __forceinline__ void load_keys(T* k_tile, T* v_tile, const AttentionParams& p, const Piece& piece, int tile,
                                          int lane) {
  constexpr int kChunks = kDim / 8, kStride = kDim + kPad;
  const int own = tile * kTile + lane % kTile;
  const bool is_there = own <= piece.highest;
  const int64_t own_offset = is_there ? cache_offset(p, piece.s, own) : -1;
#pragma unroll
  for (int i = 0; i < kTile * kChunks / 32; ++i) {
    const int chunk = i * 32 + lane, row = chunk / kChunks, d = chunk % kChunks * 8;
    const int64_t offset = __shfl_sync(0xffffffffu, own_offset, row);
    const bool valid = offset >= 0 && d < p.head_dim;
    const int64_t at = valid ? offset + d : 0;
    copy_async(k_tile + row * kStride + d, static_cast<const T*>(p.keys) + at, valid);
    copy_async(v_tile + row * kStride + d, static_cast<const T*>(p.values) + at, valid);
  }
}

using Fp8 = __nv_fp8_e4m3;

// What a warp has in shared memory: tiles on their way as they are stored, and where those are not in T, one in T.
template <class T, class Stored, int kDim>
struct WarpRoom {
  static constexpr bool kWidens = !std::is_same_v<T, Stored>;
  static constexpr int kSlots = kWidens && kDim <= 128 ? 4 : kStages;
  static constexpr int kTileElements = kTile * (kDim + kPad);
  static constexpr int kSlotElements = 2 * (kWidens ? kTile * kDim : kTileElements);  // keys, values
  static constexpr int kSlotBytes = kSlotElements * static_cast<int>(sizeof(Stored));
  static constexpr int kBytes = kSlots * kSlotBytes + (kWidens ? 2 * kTileElements * static_cast<int>(sizeof(T)) : 0);
};

// load_keys of a cache in fp8, rows without padding.
template <int kDim>
__device__ __forceinline__ void load_codes(Fp8* k_codes, Fp8* v_codes, const AttentionParams& p, const Piece& piece,
                                           int tile, int lane) {
  constexpr int kChunks = kDim / 16;
  const int own = tile * kTile + lane % kTile;
  const int64_t own_offset = own <= piece.highest ? cache_offset(p, piece.s, own) : -1;
#pragma unroll
  for (int i = 0; i < kTile * kChunks / 32; ++i) {
    const int chunk = i * 32 + lane, row = chunk / kChunks, d = chunk % kChunks * 16;
    const int64_t offset = __shfl_sync(0xffffffffu, own_offset, row);
    const bool valid = offset >= 0 && d < p.head_dim;
    const int64_t at = valid ? offset + d : 0;
    copy_async(k_codes + row * kDim + d, static_cast<const Fp8*>(p.keys) + at, valid);
    copy_async(v_codes + row * kDim + d, static_cast<const Fp8*>(p.values) + at, valid);
  }
}

template <class T>
__device__ __forceinline__ uint32_t widen_pair(uint32_t codes) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes & 0xffffu), __NV_E4M3);
  if constexpr (std::is_same_v<T, half>) {
    return static_cast<uint32_t>(pair.x) | static_cast<uint32_t>(pair.y) << 16;
  } else {
    const float2 both = __half22float2(pair);
    return pack<T>(both.x, both.y);
  }
}

// Keys and values of a slot become tiles in T: `codes` has both, one after the other, and so has `tiles`.
template <class T, int kDim>
__device__ __forceinline__ void widen_tiles(T* tiles, const Fp8* codes, int lane) {
  constexpr int kChunks = kDim / 8;  // of 8 numbers, in a row
#pragma unroll 4
  for (int i = lane; i < 2 * kTile * kChunks; i += 32) {
    const int row = i / kChunks, d = i % kChunks * 8;
    const uint2 from = *reinterpret_cast<const uint2*>(codes + row * kDim + d);
    const uint4 to = {widen_pair<T>(from.x), widen_pair<T>(from.x >> 16), widen_pair<T>(from.y),
                      widen_pair<T>(from.y >> 16)};
    *reinterpret_cast<uint4*>(tiles + row * (kDim + kPad) + d) = to;
  }
}

template <class T, int kDim>
struct WarpState {
  float out[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

// Scores, softmax and sum of values over one tile.
template <class T, int kDim>
__device__ __forceinline__ void visit_tile(WarpState<T, kDim>& w, const uint32_t (&q)[kDim / 16][4], const T* k_tile,
                                           const T* v_tile, const AttentionParams& p, const Piece& piece, int tile,
                                           float scale2, int lane) {
  constexpr int kStride = kDim + kPad;
  float score[2][4] = {};
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    uint32_t b[4];
    load_b(b, k_tile, kStride, 0, k * 16, lane);
    mma_16x8x16<T>(score[0], q[k], b[0], b[1]);
    mma_16x8x16<T>(score[1], q[k], b[2], b[3]);
  }
  const bool is_inner =
      tile * kTile + kTile - 1 <= piece.lowest && (p.window == 0 || tile * kTile > piece.highest - p.window);
  if (!is_inner) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = min(lane / 4 + i / 2 * 8, piece.rows - 1);
        const int position = position_of(piece.s, (piece.row0 + row) / p.group);
        if (!sees(p, position, tile * kTile + n * 8 + lane % 4 * 2 + i % 2)) score[n][i] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = w.largest[h];
#pragma unroll
    for (int n = 0; n < 2; ++n) top = fmaxf(top, fmaxf(score[n][2 * h] * scale2, score[n][2 * h + 1] * scale2));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top, shrink = exp2f(w.largest[h] - base);
    w.largest[h] = top;
    w.sum[h] *= shrink;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      w.out[n][2 * h] *= shrink;
      w.out[n][2 * h + 1] *= shrink;
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float e = exp2f(score[n][2 * h + i] * scale2 - base);
        w.sum[h] += e;
        score[n][2 * h + i] = e;
      }
    }
  }
  const uint32_t a[4] = {pack<T>(score[0][0], score[0][1]), pack<T>(score[0][2], score[0][3]),
                         pack<T>(score[1][0], score[1][1]), pack<T>(score[1][2], score[1][3])};
#pragma unroll
  for (int n = 0; n < kDim; n += 16) {
    uint32_t b[4];
    load_b_transposed(b, v_tile, kStride, n, 0, lane);
    mma_16x8x16<T>(w.out[n / 8], a, b[0], b[1]);
    mma_16x8x16<T>(w.out[n / 8 + 1], a, b[2], b[3]);
  }
}

// The warps' sums in shared memory.
template <int kDim>
struct Meeting {
  float out[kWarps][kRows][kDim];
  float largest[kWarps][kRows], sum[kWarps][kRows];
};

template <class T>
__device__ __forceinline__ void store_row(const AttentionParams& p, const Piece& piece, int row, int d, float4 x,
                                          float factor) {
  if (d >= p.head_dim) return;
  T* to = const_cast<T*>(out_row<T>(p, p.out, piece.s, piece.row0 + row)) + d;
  const uint2 packed = {pack<T>(x.x * factor, x.y * factor), pack<T>(x.z * factor, x.w * factor)};
  *reinterpret_cast<uint2*>(to) = packed;
}

// Number of packed row `row` among all rows of all heads.
__device__ __forceinline__ int64_t row_number(const AttentionParams& p, const Piece& piece, int row) {
  const int m = piece.row0 + row;
  return (piece.s.first + m / p.group) * p.num_heads + piece.s.kv_head * p.group + m % p.group;
}

__device__ __forceinline__ void add_scaled(float4& to, const float4& x, float factor) {
  to.x += factor * x.x, to.y += factor * x.y, to.z += factor * x.z, to.w += factor * x.w;
}
// What sums of values are multiplied by.
__device__ __forceinline__ float result_factor(const AttentionParams& p, const Piece& piece, float sum) {
  const float inverse = sum > 0 ? 1.0f / sum : sum == 0 ? 0.0f : sum;
  return p.value_scales ? inverse * p.value_scales[piece.s.kv_head] : inverse;
}

// Joins the warps; writes the rows where there is one piece, else this piece's part of them.
template <class T, int kDim>
__device__ __forceinline__ void join_warps(const AttentionParams& p, const DecodeParams& d, const Piece& piece,
                                           const Meeting<kDim>& meeting) {
  for (int i = threadIdx.x; i < piece.rows * kDim / 4; i += kThreads) {
    const int row = i / (kDim / 4), column = i % (kDim / 4) * 4;
    float top = -INFINITY, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, meeting.largest[w][row]);
    const float base = top == -INFINITY ? 0.0f : top;
    float4 out{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float factor = exp2f(meeting.largest[w][row] - base);
      sum += factor * meeting.sum[w][row];
      add_scaled(out, *reinterpret_cast<const float4*>(&meeting.out[w][row][column]), factor);
    }
    if (piece.count == 1) {
      store_row<T>(p, piece, row, column, out, result_factor(p, piece, sum));
      continue;
    }
    const int64_t part = row_number(p, piece, row) * d.pieces + piece.index;
    *reinterpret_cast<float4*>(d.parts + part * kDim + column) = out;
    if (column == 0) *reinterpret_cast<float2*>(d.part_stats + part * 2) = {top, sum};
  }
}

template <class T, int kDim>
__device__ __forceinline__ void join_pieces(const AttentionParams& p, const DecodeParams& d, const Piece& piece) {
  for (int i = threadIdx.x; i < piece.rows * kDim / 4; i += kThreads) {
    const int row = i / (kDim / 4), column = i % (kDim / 4) * 4;
    const int64_t first = row_number(p, piece, row) * d.pieces;
    const float2* stats = reinterpret_cast<const float2*>(d.part_stats) + first;
    float top = -INFINITY, sum = 0;
#pragma unroll 8
    for (int x = 0; x < piece.count; ++x) top = fmaxf(top, __ldcg(stats + x).x);
    const float base = top == -INFINITY ? 0.0f : top;
    float4 out{};
#pragma unroll 8
    for (int x = 0; x < piece.count; ++x) {
      const float2 own = __ldcg(stats + x);
      const float factor = exp2f(own.x - base);
      sum += factor * own.y;
      add_scaled(out, __ldcg(reinterpret_cast<const float4*>(d.parts + (first + x) * kDim + column)), factor);
    }
    store_row<T>(p, piece, row, column, out, result_factor(p, piece, sum));
  }
}

template <class T>
__device__ __forceinline__ void clear_padding(const AttentionParams& p) {
  if (blockIdx.x > 0 || blockIdx.y > 0) return;
  const int64_t width = int64_t{p.num_heads} * p.head_dim;
  for (int64_t t = p.offsets[p.num_sequences] + blockIdx.z; t < p.tokens; t += gridDim.z) {
    for (int64_t i = threadIdx.x; i < width; i += kThreads) static_cast<T*>(p.out)[t * width + i] = from_float<T>(0.0f);
  }
}

template <class T, class Stored, int kDim>
constexpr size_t shared_bytes() {
  const size_t tiles = kWarps * WarpRoom<T, Stored, kDim>::kBytes;
  return tiles > sizeof(Meeting<kDim>) ? tiles : sizeof(Meeting<kDim>);
}

template <class T, class Stored, int kDim>
__global__ void __launch_bounds__(kThreads) decode_kernel(AttentionParams p, DecodeParams d) {
  extern __shared__ __align__(16) unsigned char shared[];
  using Room = WarpRoom<T, Stored, kDim>;
  constexpr int kSlots = Room::kSlots;
  let_next_begin();
  Piece piece;
  if (!find_piece(p, d, piece)) {
    wait_for_previous();
    return clear_padding<T>(p);
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned char* room = shared + warp * Room::kBytes;
  auto slot_at = [&](int slot) { return reinterpret_cast<Stored*>(room + slot * Room::kSlotBytes); };
  const int fresh = piece.s.context - piece.s.queries;  // keys from here on are written by the kernel before
  bool has_waited = false;
  auto load = [&](int tile, int slot) {
    if (tile <= piece.last_tile) {
      if (!has_waited && (!d.fetches_early || (tile + 1) * kTile > fresh)) {
        wait_for_previous();
        has_waited = true;
      }
      Stored *keys = slot_at(slot), *values = keys + Room::kSlotElements / 2;
      if constexpr (Room::kWidens) {
        load_codes<kDim>(keys, values, p, piece, tile, lane);
      } else {
        load_keys<T, kDim>(keys, values, p, piece, tile, lane);
      }
    }
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kSlots; ++i) load(piece.first_tile + warp + i * kWarps, i);
  wait_for_previous();
  has_waited = true;
  clear_padding<T>(p);

  uint32_t q[kDim / 16][4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + h * 8;
    const T* from = row < piece.rows ? query_row<T>(p, piece.s, piece.row0 + row) : nullptr;
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = k * 16 + i * 8 + lane % 4 * 2;
        q[k][2 * i + h] = from && column < p.head_dim ? *reinterpret_cast<const uint32_t*>(from + column) : 0u;
      }
    }
  }
  WarpState<T, kDim> state;
  const float scale2 = p.scale * kLog2e * (p.key_scales ? p.key_scales[piece.s.kv_head] : 1.0f);
  int slot = 0;
  for (int tile = piece.first_tile + warp; tile <= piece.last_tile; tile += kWarps) {
    copy_wait<kSlots - 1>();
    __syncwarp();
    const T* k_tile;
    if constexpr (Room::kWidens) {
      T* widened = reinterpret_cast<T*>(room + kSlots * Room::kSlotBytes);
      widen_tiles<T, kDim>(widened, slot_at(slot), lane);
      __syncwarp();
      k_tile = widened;
    } else {
      k_tile = slot_at(slot);
    }
    visit_tile<T, kDim>(state, q, k_tile, k_tile + Room::kTileElements, p, piece, tile, scale2, lane);
    __syncwarp();
    load(tile + kSlots * kWarps, slot);
    slot = slot + 1 == kSlots ? 0 : slot + 1;
  }
  copy_wait<0>();
  __syncthreads();  // tiles are no longer read

  auto& meeting = *reinterpret_cast<Meeting<kDim>*>(shared);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = state.sum[h];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int row = lane / 4 + h * 8;
    if (row >= piece.rows) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<float2*>(&meeting.out[warp][row][n * 8 + lane % 4 * 2]) = {state.out[n][2 * h],
                                                                                   state.out[n][2 * h + 1]};
    }
    if (lane % 4 == 0) meeting.largest[warp][row] = state.largest[h], meeting.sum[warp][row] = sum;
  }
  __syncthreads();
  join_warps<T, kDim>(p, d, piece, meeting);
  if (piece.count == 1) return;
  __threadfence();
  __shared__ bool is_last;
  __syncthreads();
  if (threadIdx.x == 0) {  // counts up to the last and is 0 again
    unsigned* counter = d.counters + int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
    is_last = atomicInc(counter, static_cast<unsigned>(piece.count - 1)) == static_cast<unsigned>(piece.count - 1);
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  join_pieces<T, kDim>(p, d, piece);
}

template <class T, class Stored, int kDim>
bool launch_decode(Stream& stream, const AttentionParams& p, DecodeParams d) {
  constexpr size_t kBytes = shared_bytes<T, Stored, kDim>();
  if (most_shared_bytes(stream.device) < kBytes + 1024) return false;
  const int64_t rows = p.tokens * p.num_heads, parts = d.pieces > 1 ? rows * d.pieces : 0;
  const size_t bytes = static_cast<size_t>(parts) * (kDim + 2) * sizeof(float);
  if (parts > 0) {
    d.parts = static_cast<float*>(scratch(stream, Scratch::attention, bytes));
    d.part_stats = d.parts + parts * kDim;
  }
  const auto kernel = decode_kernel<T, Stored, kDim>;
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const dim3 grid(static_cast<unsigned>(d.pieces), static_cast<unsigned>(p.num_kv_heads * d.row_tiles),
                  static_cast<unsigned>(p.num_sequences));
  launch_dependent(stream, kernel, grid, kThreads, kBytes, p, d);
  return true;
}

template <class T, class Stored>
bool dispatch_decode(Stream& stream, const AttentionParams& p, const DecodeParams& d) {
  if (p.head_dim <= 64) return launch_decode<T, Stored, 64>(stream, p, d);
  if (p.head_dim <= 96) return launch_decode<T, Stored, 96>(stream, p, d);
  if (p.head_dim <= 128) return launch_decode<T, Stored, 128>(stream, p, d);
  return launch_decode<T, Stored, 256>(stream, p, d);
}

}  // namespace

bool decode_attention(Stream& stream, const AttentionParams& p, base::DType dtype, int64_t max_query,
                      int64_t max_context) {
  constexpr int64_t kMostGrid = 65535;
  if (!options().decode_attention || !p.keys || !p.vector || p.dropout > 0 || p.lse) return false;
  if (p.is_int8) return false;
  if (p.key_scales && p.head_dim % 16 != 0) return false;  // pieces of 16 bytes
  if (dtype != base::DType::bf16 && dtype != base::DType::f16) return false;
  if (p.num_sequences > kMostGrid || p.head_dim > 256) return false;
  DecodeParams d{};
  d.most_queries = kMostDecodeQueries;
  // What a sequence finds in the cache may be what another writes in this very batch, but not where each writes one key
  // of a block that is not full.
  d.fetches_early = max_query == 1 && p.block_size > 1;
  d.row_tiles = static_cast<int>(div_up(std::min<int64_t>(max_query, kMostDecodeQueries) * p.group, kRows));
  d.pieces = static_cast<int>(std::clamp<int64_t>(div_up(max_context, kPieceKeys), 1, kMostPieces));
  const int64_t counters = int64_t{p.num_sequences} * p.num_kv_heads * d.row_tiles;
  if (p.num_kv_heads * d.row_tiles > kMostGrid) return false;
  d.counters = static_cast<unsigned*>(zeroed_scratch(stream, static_cast<size_t>(counters) * sizeof(unsigned)));
  if (dtype == base::DType::bf16) {
    return p.key_scales ? dispatch_decode<bfloat16, Fp8>(stream, p, d)
                        : dispatch_decode<bfloat16, bfloat16>(stream, p, d);
  }
  return p.key_scales ? dispatch_decode<half, Fp8>(stream, p, d) : dispatch_decode<half, half>(stream, p, d);
}

}  // namespace sinter::kernels::cuda
