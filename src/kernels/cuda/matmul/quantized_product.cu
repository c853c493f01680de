// Products of few rows with weights in blocks or codes: what is read of a weight is what it takes in memory.
//
// As small_product.cu, but rows of w are whole bytes of blocks that start anywhere. A warp copies 256 columns of its 16
// rows at a time into shared memory by pieces of 16 bytes, several such turns ahead. From there groups of 32 columns go
// to tensor cores as exact codes (quantized_group.cuh); each group's sums are scaled in f32 and added.
#include "kernels/cuda/matmul/quantized_group.cuh"
#include "kernels/cuda/matmul/small_product.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kTurnColumns = 256, kTurnGroups = kTurnColumns / kGroupColumns;
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

constexpr bool has_scales_apart(WeightFormat format) {
  using enum WeightFormat;
  return format == int4 || format == int8 || format == nf4 || format == fp4 || format == fp8_e4m3;
}
constexpr bool has_table(WeightFormat format) {
  return format == WeightFormat::nf4 || format == WeightFormat::fp4 || format == WeightFormat::mxfp4;
}

// What the sums of a group are multiplied by, and what each number of a takes off them: of the rows low and high. Of
// q6_k the two halves of a group have their own.
struct GroupScale {
  float scale[2], second[2], minimum[2];
};

// The scales of a turn of the rows low and high.
template <class T, WeightFormat kFormat>
struct TurnScales {
  static constexpr bool kIsK = kFormat == WeightFormat::q4_k || kFormat == WeightFormat::q5_k;
  static constexpr float kBiasOf = code_bias<T>(kFormat);
  // Apart: of 64 columns, two times 32; other lanes of the row have the others.
  float scale[2][2], zero[2][2];
  // In blocks.
  float d[2], lowest[2];
  uint32_t scales[2][2], minima[2][2];

  // Asked for before the codes are waited for: memory is as far away for one as for all.
  __device__ __forceinline__ void ask(const RowSource* sources, int turn, int k, int lane) {
    if constexpr (has_scales_apart(kFormat)) {
      constexpr float kMiddle = kFormat == WeightFormat::int8 ? 128.0f : kFormat == WeightFormat::int4 ? 8.0f : 0.0f;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = min(turn * kTurnColumns + (lane % 4 * 2 + i) * kGroupColumns, k - kGroupColumns);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const RowSource& source = sources[lane / 4 + 8 * h];
          const unsigned group = __umulhi(static_cast<unsigned>(column), source.group_inverse);
          scale[h][i] = source.scales[group];
          zero[h][i] = has_minimum(kFormat) && source.zeros ? source.zeros[group] : kMiddle;
        }
      }
    }
  }
  __device__ __forceinline__ void read(int h, const uint8_t* turn) {
    if constexpr (kIsK) {
      const uint4 head = *reinterpret_cast<const uint4*>(turn);
      d[h] = half_at(turn), lowest[h] = half_at(turn + 2);
      scales[h][0] = head.y & 0x3f3f3f3fu;
      minima[h][0] = head.z & 0x3f3f3f3fu;
      scales[h][1] = (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
      minima[h][1] = (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
    } else if constexpr (kFormat == WeightFormat::q6_k) {
      d[h] = half_at(turn + 208);
    }
  }
  __device__ __forceinline__ void of_group(int h, const uint8_t* turn, int group, GroupScale& out) const {
    using enum WeightFormat;
    if constexpr (has_scales_apart(kFormat)) {
      out.scale[h] =
          __shfl_sync(0xffffffffu, scale[h][group % 2], static_cast<int>(threadIdx.x % 32 & ~3u) + group / 2);
      if constexpr (has_minimum(kFormat)) {
        const float z =
            __shfl_sync(0xffffffffu, zero[h][group % 2], static_cast<int>(threadIdx.x % 32 & ~3u) + group / 2);
        out.minimum[h] = out.scale[h] * (z + (kFormat == int8 ? -128.0f : kBiasOf));
      }
    } else if constexpr (kIsK) {
      const int shift = group % 4 * 8;
      out.scale[h] = d[h] * static_cast<float>(scales[h][group / 4] >> shift & 255u);
      out.minimum[h] =
          fmaf(out.scale[h], kBiasOf, lowest[h] * static_cast<float>(minima[h][group / 4] >> shift & 255u));
    } else if constexpr (kFormat == q6_k) {
      const auto* own = reinterpret_cast<const int8_t*>(turn + 192 + group * 2);
      out.scale[h] = d[h] * static_cast<float>(own[0]);
      out.second[h] = d[h] * static_cast<float>(own[1]);
    } else if constexpr (kFormat == mxfp4) {
      out.scale[h] = base::block::half_of_e8m0(turn[group * 17]);
    } else {
      out.scale[h] = half_at(turn + group * (kFormat == q8_0 ? 34 : 18));
    }
  }
};

__device__ inline void copy_bytes(uint8_t* to, const char* from, int begin, int end) {
#pragma unroll 1
  for (int i = begin; i < end; ++i) to[i] = static_cast<uint8_t>(from[i]);
}

template <class T, int kTiles, WeightFormat kFormat>
struct Reader {
  using Turn = Turns<kFormat>;
  static constexpr int kAtOnce = kTurnGroups / kTiles;  // groups of which a thread holds its numbers of a
  const ProductParams& p;
  const RowSource* sources;  // of the block's 16 rows, in shared memory
  const uint32_t* table;
  uint8_t* slots;  // the warp's
  int64_t row_bytes;
  int lane, first_row;

  __device__ __forceinline__ uint8_t* slot_row(int slot, int row) const {
    return slots + (slot * kProductRows + row) * Turn::kRowRoom;
  }
  // Two lanes copy a row's pieces in turn.
  __device__ __forceinline__ void load(const RowSource& own, int turn, int slot) const {
    const int64_t from = int64_t{turn} * Turn::kBytes, left = row_bytes - from;
    const char* begin = own.data + from;
    const int below = is_even(kFormat) ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(begin) & 15);
    const char* at = begin - below;
    const int pieces = (below + static_cast<int>(left < Turn::kBytes ? left : Turn::kBytes) + 15) / 16;
    const int64_t there = own.end - at;
    const bool is_cut = !is_even(kFormat) && there < pieces * 16;  // the last piece of all rows
    const int whole = pieces - (is_cut ? 1 : 0) - lane % 2;
    uint8_t* to = slot_row(slot, lane / 2) + lane % 2 * 16;
    const char* own_at = at + lane % 2 * 16;
#pragma unroll
    for (int i = 0; i < Turn::kPieces; i += 2) {
      if (i < whole) copy_async(to + i * 16, own_at + i * 16, true);
    }
    if (is_cut && lane % 2 == 0) copy_bytes(slot_row(slot, lane / 2), at, pieces * 16 - 16, static_cast<int>(there));
    copy_commit();
  }
  __device__ __forceinline__ const uint8_t* turn_of(int turn, int slot, int row) const {
    const uint8_t* at = slot_row(slot, row);
    if constexpr (is_even(kFormat)) return at;
    return at + (reinterpret_cast<uintptr_t>(sources[row].data + int64_t{turn} * Turn::kBytes) & 15);
  }
  __device__ __forceinline__ void load_x(int turn, int first, uint4 (&x)[kAtOnce][kTiles]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int column = turn * kTurnColumns + (first + i) * kGroupColumns;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const int m = first_row + t * 8 + lane / 4;
        x[i][t] = {};
        if (m < p.m && column < p.k)
          x[i][t] = load_ordered<kFormat>(static_cast<const T*>(p.x) + int64_t{m} * p.k + column, lane % 4);
      }
    }
  }
  __device__ __forceinline__ void multiply_group(const uint32_t (&low)[4], const uint32_t (&high)[4],
                                                 const GroupScale& by, const uint4& x, float (&sum)[4]) const {
    const uint32_t first[4] = {low[0], high[0], low[1], high[1]}, second[4] = {low[2], high[2], low[3], high[3]};
    float part[4] = {}, rest[4] = {};
    mma_16x8x16<T>(part, first, x.x, x.y);
    if constexpr (kFormat == WeightFormat::q6_k) {
      mma_16x8x16<T>(rest, second, x.z, x.w);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = fmaf(by.second[i / 2], rest[i], sum[i]);
    } else {
      mma_16x8x16<T>(part, second, x.z, x.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = fmaf(by.scale[i / 2], part[i], sum[i]);
    if constexpr (has_minimum(kFormat)) {
      constexpr uint32_t kOne = std::is_same_v<T, bfloat16> ? 0x3f803f80u : 0x3c003c00u;
      const uint32_t ones[4] = {kOne, kOne, kOne, kOne};
      float of_x[4] = {};  // the sums of a's numbers, in every row
      mma_16x8x16<T>(of_x, ones, x.x, x.y);
      mma_16x8x16<T>(of_x, ones, x.z, x.w);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] = fmaf(-by.minimum[i / 2], of_x[i], sum[i]);
    }
  }
  // Groups [first, first + kAtOnce) of a turn.
  __device__ __forceinline__ void multiply(const uint8_t* low_turn, const uint8_t* high_turn, int first, int groups,
                                           const TurnScales<T, kFormat>& scales, const uint4 (&x)[kAtOnce][kTiles],
                                           float (&sum)[kTiles][4]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int group = first + i;
      if (group >= groups) break;
      GroupScale by{};
      scales.of_group(0, low_turn, group, by);
      scales.of_group(1, high_turn, group, by);
      uint32_t low[4], high[4];
      decode_group<T, kFormat>(low_turn, group, lane % 4, table, low);
      decode_group<T, kFormat>(high_turn, group, lane % 4, table, high);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) multiply_group(low, high, by, x[i][t], sum[t]);
    }
  }
  __device__ __forceinline__ void run(float (&sum)[kTiles][4]) const {
    const int warp = threadIdx.x / 32, turns = (p.k + kTurnColumns - 1) / kTurnColumns;
    const RowSource own = sources[lane / 2];
#pragma unroll 1
    for (int i = 0; i < Turn::kSlots; ++i) {
      const int turn = warp + i * kProductWarps;
      if (turn < turns) {
        load(own, turn, i);
      } else {
        copy_commit();
      }
    }
    wait_for_previous();
    int slot = 0;
#pragma unroll 1
    for (int turn = warp; turn < turns; turn += kProductWarps) {
      TurnScales<T, kFormat> scales;
      uint4 x[kAtOnce][kTiles];
      scales.ask(sources, turn, p.k, lane);
      load_x(turn, 0, x);
      copy_wait<Turn::kSlots - 1>();
      __syncwarp();
      const uint8_t *low_turn = turn_of(turn, slot, lane / 4), *high_turn = turn_of(turn, slot, lane / 4 + 8);
      const int groups = min(kTurnGroups, (p.k - turn * kTurnColumns) / kGroupColumns);
      scales.read(0, low_turn);
      scales.read(1, high_turn);
#pragma unroll
      for (int first = 0; first < kTurnGroups; first += kAtOnce) {
        if (first > 0) load_x(turn, first, x);
        multiply(low_turn, high_turn, first, groups, scales, x, sum);
      }
      __syncwarp();
      if (const int next = turn + Turn::kSlots * kProductWarps; next < turns) {
        load(own, next, slot);
      } else {
        copy_commit();
      }
      slot = slot + 1 == Turn::kSlots ? 0 : slot + 1;
    }
    copy_wait<0>();
    const float low = sources[lane / 4].factor, high = sources[lane / 4 + 8].factor;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) sum[t][0] *= low, sum[t][1] *= low, sum[t][2] *= high, sum[t][3] *= high;
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

// Block b takes rows [16 t, 16 t + 16) of a with t = b % row_tiles: those that read the same rows of w run together.
// What kind of product it is, is asked before and after all the work.
template <class T, int kTiles>
__global__ void __launch_bounds__(kProductThreads, 2)
    quantized_product_kernel(const ProductParams p, ProductKind kind, int row_tiles) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ RowSource sources[kProductRows];
  __shared__ uint32_t table[16];
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
  }
  if (has_table(format) && threadIdx.x < 16) table[threadIdx.x] = table_entry<T>(format, static_cast<int>(threadIdx.x));
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
  constexpr size_t kWithStatic = kSharedBytes + 2048;
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
    if (is_apart ? group % kGroupColumns != 0 || !part.scales : blocks.columns % info.block_elements != 0) return false;
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
