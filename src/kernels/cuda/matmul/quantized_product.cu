// Products of few rows with weights in blocks or codes: what is read of a weight is what it takes in memory.
//
// As small_product.cu, but rows of w are whole bytes of blocks that start anywhere. A warp copies 256 columns of its 16
// rows at a time into shared memory by pieces of 16 bytes, several such turns ahead, and decodes them into the format
// of a from there: 16 numbers a thread at once, rounded as dequantize() rounds them.
#include <cuda_fp8.h>

#include "base/block_decode.h"
#include "kernels/cuda/matmul/small_product.cuh"

namespace sinter::kernels::cuda {
namespace {

using base::WeightFormat;

constexpr int kTurnColumns = 256;
constexpr int kWarpBytes = 13824, kSharedBytes = kProductWarps * kWarpBytes + 32;  // two blocks a multiprocessor

// Bytes of 256 columns of a row; 0: not read here.
constexpr int turn_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::q8_0:
      return 8 * 34;
    case WeightFormat::q4_0:
      return 8 * 18;
    case WeightFormat::q4_k:
      return 144;
    case WeightFormat::q5_k:
      return 176;
    case WeightFormat::q6_k:
      return 210;
    case WeightFormat::mxfp4:
      return 8 * 17;
    case WeightFormat::int8:
    case WeightFormat::fp8_e4m3:
      return 256;
    case WeightFormat::int4:
    case WeightFormat::nf4:
    case WeightFormat::fp4:
      return 128;
    default:
      return 0;
  }
}
// Whether every row, and so every turn, starts at a multiple of 16 bytes (columns are a multiple of 32).
constexpr bool is_even(WeightFormat format) {
  return turn_bytes(format) % 16 == 0 && format != WeightFormat::q8_0 && format != WeightFormat::q4_0;
}

template <WeightFormat kFormat>
struct Turns {
  static constexpr int kBytes = turn_bytes(kFormat);
  static constexpr int kPieces = (kBytes + (is_even(kFormat) ? 0 : 15) + 15) / 16;  // of 16 bytes, of a row
  static constexpr int kRowRoom = kPieces * 16;
  static constexpr int kMost = kWarpBytes / (kProductRows * kRowRoom);
  static constexpr int kSlots = kMost < 6 ? kMost : 6;
  static_assert(kSlots >= 2);
};

// A row of w.
struct RowSource {
  const char *data, *end;  // end: of all rows that lie together
  const float *scales, *zeros;
  float factor;
  unsigned group_inverse;  // 2^32 over the columns of a scale, rounded up
};

// 16 bytes at any address of shared memory. Up to 4 bytes behind them are read too.
__device__ __forceinline__ void load_anywhere(const uint8_t* p, uint32_t (&w)[4]) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  const auto* words = reinterpret_cast<const uint32_t*>(address & ~uintptr_t{3});
  const unsigned shift = static_cast<unsigned>(address & 3) * 8;
  uint32_t v[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) v[i] = words[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(v[i], v[i + 1], shift);
}
__device__ __forceinline__ void load_even(const uint8_t* p, uint32_t (&w)[4]) {
  const uint4 v = *reinterpret_cast<const uint4*>(p);
  w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
}
__device__ __forceinline__ float half_at(const uint8_t* p) {  // of an even address
  return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
}

constexpr float kMagic = 8388608.0f;  // 2^23: a whole number below it, put into its last bits, is added to it

__device__ __forceinline__ float magic_plus(uint32_t word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u | static_cast<unsigned>(byte)));
}
__device__ __forceinline__ int byte_of(uint32_t word, int byte) { return static_cast<int>(word >> 8 * byte & 255u); }

// Numbers as pairs of T, in order.
template <class T, class Value>
__device__ __forceinline__ void pack_all(uint32_t (&out)[8], Value&& value) {
#pragma unroll
  for (int j = 0; j < 8; ++j) out[j] = pack<T>(value(2 * j), value(2 * j + 1));
}

// Numbers [16 chunk, 16 chunk + 16) of a turn of a row. `scale` is the codes', where these stand apart, else a factor.
template <class T, WeightFormat kFormat>
__device__ __forceinline__ void decode_chunk(const uint8_t* turn, int chunk, float scale, float zero,
                                             const float* table, uint32_t (&out)[8]) {
  using enum WeightFormat;
  uint32_t w[4];
  if constexpr (kFormat == q8_0) {
    const uint8_t* block = turn + chunk / 2 * 34;
    const float d = half_at(block) * scale;
    load_anywhere(block + 2 + chunk % 2 * 16, w);
#pragma unroll
    for (uint32_t& word : w) word ^= 0x80808080u;
    pack_all<T>(out, [&](int j) { return (magic_plus(w[j / 4], j % 4) - (kMagic + 128.0f)) * d; });
  } else if constexpr (kFormat == q4_0 || kFormat == mxfp4) {
    constexpr int kBlock = kFormat == q4_0 ? 18 : 17;
    const uint8_t* block = turn + chunk / 2 * kBlock;
    load_anywhere(block + kBlock - 16, w);
#pragma unroll
    for (uint32_t& word : w) word = word >> 4 * (chunk % 2) & 0x0f0f0f0fu;
    if constexpr (kFormat == q4_0) {
      const float d = half_at(block) * scale;
      pack_all<T>(out, [&](int j) { return (magic_plus(w[j / 4], j % 4) - (kMagic + 8.0f)) * d; });
    } else {
      const float d = base::block::half_of_e8m0(block[0]) * scale;
      pack_all<T>(out, [&](int j) { return table[byte_of(w[j / 4], j % 4)] * d; });
    }
  } else if constexpr (kFormat == q4_k || kFormat == q5_k) {
    const int s = chunk / 2, part = chunk % 2 * 16;
    const base::block::ScaleMin sm = base::block::scale_min_k4(turn + 4, s);
    const float dl = half_at(turn) * static_cast<float>(sm.scale) * scale,
                ml = half_at(turn + 2) * static_cast<float>(sm.min) * scale;
    load_even(turn + (kFormat == q4_k ? 16 : 48) + s / 2 * 32 + part, w);
#pragma unroll
    for (uint32_t& word : w) word = word >> 4 * (s % 2) & 0x0f0f0f0fu;
    if constexpr (kFormat == q5_k) {
      uint32_t high[4];
      load_even(turn + 16 + part, high);
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] |= (high[i] >> s & 0x01010101u) << 4;
    }
    pack_all<T>(out, [&](int j) { return (magic_plus(w[j / 4], j % 4) - kMagic) * dl - ml; });
  } else if constexpr (kFormat == q6_k) {
    const int half = chunk / 8, group = chunk % 8 / 2;
    const float dl = half_at(turn + 208) * static_cast<float>(static_cast<int8_t>(turn[192 + chunk])) * scale;
    uint32_t high[4];
    load_anywhere(turn + half * 64 + group % 2 * 32 + chunk % 2 * 16, w);
    load_anywhere(turn + 128 + half * 32 + chunk % 2 * 16, high);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[i] = (w[i] >> 4 * (group / 2) & 0x0f0f0f0fu) | (high[i] >> 2 * group & 0x03030303u) << 4;
    pack_all<T>(out, [&](int j) { return (magic_plus(w[j / 4], j % 4) - (kMagic + 32.0f)) * dl; });
  } else if constexpr (kFormat == int8) {
    load_even(turn + chunk * 16, w);
    pack_all<T>(out, [&](int j) { return (magic_plus(w[j / 4], j % 4) - kMagic - zero) * scale; });
  } else if constexpr (kFormat == fp8_e4m3) {
    load_even(turn + chunk * 16, w);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto codes = static_cast<__nv_fp8x2_storage_t>(w[j / 2] >> 16 * (j % 2) & 0xffffu);
      const float2 pair = __half22float2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3));
      out[j] = pack<T>(pair.x * scale, pair.y * scale);
    }
  } else {
    const uint2 codes = *reinterpret_cast<const uint2*>(turn + chunk * 8);
    const uint32_t words[2] = {codes.x, codes.y};
    if constexpr (kFormat == int4) {  // the first of a pair in the low half
      pack_all<T>(out, [&](int j) {
        const uint32_t nibbles = words[j / 8] >> 4 * (j % 2) & 0x0f0f0f0fu;
        return (magic_plus(nibbles, j / 2 % 4) - kMagic - zero) * scale;
      });
    } else {  // in the high half
      pack_all<T>(out, [&](int j) {
        const uint32_t nibbles = words[j / 8] >> 4 * (1 - j % 2) & 0x0f0f0f0fu;
        return table[byte_of(nibbles, j / 2 % 4)] * scale;
      });
    }
  }
}

template <class T, int kTiles, WeightFormat kFormat>
struct Reader {
  using Turn = Turns<kFormat>;
  static constexpr bool kApart = kFormat == WeightFormat::int4 || kFormat == WeightFormat::int8 ||
                                 kFormat == WeightFormat::nf4 || kFormat == WeightFormat::fp4 ||
                                 kFormat == WeightFormat::fp8_e4m3;
  const ProductParams& p;
  const RowSource* sources;  // of the block's 16 rows, in shared memory
  const float* table;
  uint8_t* slots;  // the warp's
  int64_t row_bytes;
  int lane, first_row;

  __device__ __forceinline__ uint8_t* slot_row(int slot, int row) const {
    return slots + (slot * kProductRows + row) * Turn::kRowRoom;
  }
  __device__ __forceinline__ void load(int turn, int slot) const {
    const int64_t from = int64_t{turn} * Turn::kBytes, left = row_bytes - from;
    const int64_t bytes = left < Turn::kBytes ? left : Turn::kBytes;
    for (int i = lane; i < kProductRows * Turn::kPieces; i += 32) {
      const int row = i / Turn::kPieces, piece = i % Turn::kPieces;
      const char* begin = sources[row].data + from;
      const auto below = reinterpret_cast<uintptr_t>(begin) & 15;
      const char* at = begin - below + piece * 16;
      if (at >= begin + bytes) continue;
      uint8_t* to = slot_row(slot, row) + piece * 16;
      if (at + 16 <= sources[row].end) {
        copy_async(to, at, true);
      } else {
        for (int b = 0; at + b < sources[row].end; ++b) to[b] = static_cast<uint8_t>(at[b]);
      }
    }
    copy_commit();
  }
  __device__ __forceinline__ const uint8_t* turn_of(int turn, int slot, int row) const {
    const uint8_t* at = slot_row(slot, row);
    if constexpr (is_even(kFormat)) return at;
    return at + (reinterpret_cast<uintptr_t>(sources[row].data + int64_t{turn} * Turn::kBytes) & 15);
  }
  // What a thread reads beside the codes for its four chunks of a turn. Asked for before the codes are waited for, all
  // at once: memory is as far away for one as for all.
  struct Beside {
    float scale[4][2], zero[4][2];  // of the rows low and high
    uint4 x[4][2];                  // 16 numbers of a row of a; not where there are more rows
  };
  static constexpr bool kAsksForX = kTiles == 1;
  __device__ __forceinline__ int column_of(int turn, int i) const {
    return turn * kTurnColumns + (i * 4 + lane % 4) * 16;
  }
  __device__ __forceinline__ void load_x(int m, int column, uint4 (&v)[2]) const {
    v[0] = v[1] = {};
    if (m >= p.m || column >= p.k) return;
    const auto* x = reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + int64_t{m} * p.k + column);
    v[0] = x[0], v[1] = x[1];
  }
  __device__ __forceinline__ void ask(int turn, Beside& beside) const {
    const int row = lane / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = column_of(turn, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const RowSource& source = sources[row + 8 * h];
        beside.scale[i][h] = source.factor, beside.zero[i][h] = 0;
        if constexpr (kApart) {
          if (column >= p.k) continue;
          const unsigned group = __umulhi(static_cast<unsigned>(column), source.group_inverse);
          beside.scale[i][h] *= source.scales[group];
          if constexpr (kFormat == WeightFormat::int4 || kFormat == WeightFormat::int8)
            beside.zero[i][h] = source.zeros ? source.zeros[group] : kFormat == WeightFormat::int4 ? 8.0f : 128.0f;
        }
      }
      if constexpr (kAsksForX) load_x(first_row + row, column, beside.x[i]);
    }
  }
  __device__ __forceinline__ void multiply(int turn, int slot, const Beside& beside, float (&sum)[kTiles][4]) const {
    const int row = lane / 4;
    const uint8_t *low_turn = turn_of(turn, slot, row), *high_turn = turn_of(turn, slot, row + 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int chunk = i * 4 + lane % 4, column = column_of(turn, i);
      uint32_t low[8] = {}, high[8] = {};
      if (column < p.k) {
        decode_chunk<T, kFormat>(low_turn, chunk, beside.scale[i][0], beside.zero[i][0], table, low);
        decode_chunk<T, kFormat>(high_turn, chunk, beside.scale[i][1], beside.zero[i][1], table, high);
      }
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint4 own[2];
        if constexpr (kAsksForX) {
          own[0] = beside.x[i][0], own[1] = beside.x[i][1];
        } else {
          load_x(first_row + t * 8 + row, column, own);
        }
        const uint32_t v[8] = {own[0].x, own[0].y, own[0].z, own[0].w, own[1].x, own[1].y, own[1].z, own[1].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t operand[4] = {low[2 * j], high[2 * j], low[2 * j + 1], high[2 * j + 1]};
          mma_16x8x16<T>(sum[t], operand, v[2 * j], v[2 * j + 1]);
        }
      }
    }
  }
  __device__ __forceinline__ void run(float (&sum)[kTiles][4]) const {
    const int warp = threadIdx.x / 32, turns = (p.k + kTurnColumns - 1) / kTurnColumns;
#pragma unroll
    for (int i = 0; i < Turn::kSlots; ++i) {
      const int turn = warp + i * kProductWarps;
      if (turn < turns) {
        load(turn, i);
      } else {
        copy_commit();
      }
    }
    wait_for_previous();
    int slot = 0;
    for (int turn = warp; turn < turns; turn += kProductWarps) {
      Beside beside;
      ask(turn, beside);
      copy_wait<Turn::kSlots - 1>();
      __syncwarp();
      multiply(turn, slot, beside, sum);
      __syncwarp();
      if (const int next = turn + Turn::kSlots * kProductWarps; next < turns) {
        load(next, slot);
      } else {
        copy_commit();
      }
      slot = slot + 1 == Turn::kSlots ? 0 : slot + 1;
    }
    copy_wait<0>();
  }
};

__device__ __forceinline__ int part_of(const ProductParams& p, int n) {
  int part = 0;
#pragma unroll
  for (int i = 1; i < kMostParts; ++i) {
    if (i < p.num_parts && n >= p.parts[i].first) part = i;
  }
  return part;
}

__device__ __forceinline__ float table_value(WeightFormat format, int code) {
  if (format == WeightFormat::nf4) return base::block::nf4_value(code);
  if (format == WeightFormat::fp4) return base::block::fp4_value(code);
  const int size = code & 7;  // e2m1, doubled
  const float value = size < 5 ? static_cast<float>(size) : size == 5 ? 6.0f : size == 6 ? 8.0f : 12.0f;
  return code & 8 ? -value : value;
}

// Block b takes rows [16 t, 16 t + 16) of a with t = b % row_tiles: those that read the same rows of w run together.
// What kind of product it is, is asked before and after all the work.
template <class T, int kTiles>
__global__ void __launch_bounds__(kProductThreads, 2)
    quantized_product_kernel(const ProductParams p, ProductKind kind, int row_tiles) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ RowSource sources[kProductRows];
  __shared__ float table[16];
  using enum WeightFormat;
  let_next_begin();
  const int block = static_cast<int>(blockIdx.x) / row_tiles;
  const RowPair rows = kind == ProductKind::plain   ? rows_of<ProductKind::plain>(p, block)
                       : kind == ProductKind::gated ? rows_of<ProductKind::gated>(p, block)
                                                    : rows_of<ProductKind::rotated>(p, block);
  const int first_row = static_cast<int>(blockIdx.x) % row_tiles * kProductRows, lane = threadIdx.x % 32;
  const ProductPart& own = p.parts[part_of(p, rows.low)];
  const WeightFormat format = own.format;
  if (threadIdx.x < kProductRows) {
    const int i = threadIdx.x, n = min(i < 8 ? rows.low + i : rows.high + i - 8, p.n - 1);
    const ProductPart& part = p.parts[part_of(p, n)];
    const int64_t row = n - part.first;
    sources[i] = {part.rows + row * part.row_bytes,
                  part.end,
                  part.scales ? part.scales + row * part.groups : nullptr,
                  part.zeros ? part.zeros + row * part.groups : nullptr,
                  part.factor,
                  static_cast<unsigned>(0xffffffffu / static_cast<unsigned>(part.group_columns) + 1)};
    table[i] = table_value(format, i);
  }
  __syncthreads();
  float sum[kTiles][4] = {};
  uint8_t* slots = shared + threadIdx.x / 32 * kWarpBytes;
  auto run = [&]<WeightFormat kFormat>() {
    Reader<T, kTiles, kFormat>{p, sources, table, slots, own.row_bytes, lane, first_row}.run(sum);
  };
  switch (format) {
    case q8_0:
      run.template operator()<q8_0>();
      break;
    case q4_0:
      run.template operator()<q4_0>();
      break;
    case q4_k:
      run.template operator()<q4_k>();
      break;
    case q5_k:
      run.template operator()<q5_k>();
      break;
    case q6_k:
      run.template operator()<q6_k>();
      break;
    case mxfp4:
      run.template operator()<mxfp4>();
      break;
    case int8:
      run.template operator()<int8>();
      break;
    case int4:
      run.template operator()<int4>();
      break;
    case nf4:
      run.template operator()<nf4>();
      break;
    case fp8_e4m3:
      run.template operator()<fp8_e4m3>();
      break;
    default:
      run.template operator()<fp4>();
  }
  __syncthreads();  // the slots are no longer read
  auto& parts = *reinterpret_cast<float(*)[kProductWarps][kProductRows][kTiles * 8 + 1]>(shared);
  keep_sums<kTiles>(parts, sum);
  __syncthreads();
  switch (kind) {
    case ProductKind::plain:
      return write_columns<T, kTiles, ProductKind::plain>(p, rows, parts, first_row);
    case ProductKind::gated:
      return write_columns<T, kTiles, ProductKind::gated>(p, rows, parts, first_row);
    case ProductKind::rotated:
      return write_columns<T, kTiles, ProductKind::rotated>(p, rows, parts, first_row);
  }
}

template <class T, int kTiles>
void launch(Stream& stream, const ProductParams& p, ProductKind kind) {
  const int row_tiles = kTiles == 1 ? 1 : static_cast<int>(div_up(p.m, kProductRows));
  const auto blocks = static_cast<unsigned>(div_up(p.n, 16) * row_tiles);
  const auto kernel = quantized_product_kernel<T, kTiles>;
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  launch_dependent(stream, kernel, dim3(blocks), kProductThreads, kSharedBytes, p, kind, row_tiles);
}

}  // namespace

bool find_quantized_parts(const Stream& stream, const core::WeightView& weight, ProductParams& p) {
  constexpr size_t kWithStatic = kSharedBytes + 1024;
  if (most_shared_bytes(stream.device) < kWithStatic) return false;
  const core::WeightBlocks& blocks = *weight.blocks;
  if (blocks.experts != 1 || blocks.parts.size() > kMostParts || blocks.columns % 32 != 0) return false;
  p.num_parts = 0;
  int64_t first = 0;
  for (const core::WeightPart& part : blocks.parts) {
    if (turn_bytes(part.format) == 0 || part.permutation || part.rows % 8 != 0 || !is_aligned(part.data.raw()))
      return false;
    const base::WeightFormatInfo& info = base::info_of(part.format);
    const bool is_apart = info.scales == base::WeightScales::apart;
    const int64_t group = part.group > 0 ? part.group : info.block_elements;
    if (is_apart ? group % 16 != 0 || !part.scales : blocks.columns % info.block_elements != 0) return false;
    const int64_t row_bytes = base::bytes_of(part.format, blocks.columns);
    p.parts[p.num_parts++] = {.rows = part.data.data<char>(),
                              .scales = is_apart ? part.scales.data<float>() : nullptr,
                              .factor = part.global_scale,
                              .first = static_cast<int>(first),
                              .groups = is_apart ? static_cast<int>(part.scales.size(-1)) : 0,
                              .group_columns = static_cast<int>(group),
                              .end = part.data.data<char>() + part.rows * row_bytes,
                              .zeros = is_apart && part.zeros ? part.zeros.data<float>() : nullptr,
                              .row_bytes = row_bytes,
                              .format = part.format};
    first += part.rows;
  }
  return p.num_parts > 0;
}

bool has_one_format_a_block(const ProductParams& p, ProductKind kind) {
  for (int i = 1; i < p.num_parts; ++i) {
    if (p.parts[i].format == p.parts[0].format) continue;
    if (kind == ProductKind::gated) return false;
    if (p.parts[i].first % (kind == ProductKind::rotated ? 2 * p.half_dim : kProductRows) != 0) return false;
  }
  return true;
}

void quantized_product(Stream& stream, base::DType compute, const ProductParams& p, ProductKind kind) {
  const bool is_bf16 = compute == base::DType::bf16;
  if (p.m <= 8) return is_bf16 ? launch<bfloat16, 1>(stream, p, kind) : launch<half, 1>(stream, p, kind);
  is_bf16 ? launch<bfloat16, 2>(stream, p, kind) : launch<half, 2>(stream, p, kind);
}

}  // namespace sinter::kernels::cuda
