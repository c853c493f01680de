// Pairs of bf16 on AMX tiles: 32 rows by 32 columns of sums in four tiles, two tiles of a and two of b beside them.
//
// For each 16 units of K a panel holds two tiles of 1 KiB: of a, 16 rows of 16 units; of b, 16 units of 16 columns. A
// tile instruction adds the 32 products of a sum in the order of K, whatever the other rows, so rows stay independent.
#include "kernels/cpu/matmul/matmul_amx.h"

namespace sinter::kernels::cpu {
namespace {

// Two whole tiles of b from 32 rows of K, 32 columns of each at `rows`, `stride` bytes apart: rows 2 i and 2 i + 1
// interleaved are row i of both.
void interleave_rows(const char* rows, int64_t stride, uint32_t* tiles) {
  // Interleaving takes low or high halves of each 16 bytes: what is to come first is put into the low ones.
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  for (int i = 0; i < kSide; ++i, rows += 2 * stride, tiles += kSide) {
    __builtin_prefetch(rows + 2 * kSide * stride, 0, 2);
    __builtin_prefetch(rows + (2 * kSide + 1) * stride, 0, 2);
    const __m512i even = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(rows));
    const __m512i odd = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(rows + stride));
    _mm512_storeu_si512(tiles, _mm512_unpacklo_epi16(even, odd));
    _mm512_storeu_si512(tiles + kTileUnits, _mm512_unpackhi_epi16(even, odd));
  }
}

// Tiles of a hold lines as rows (kByLine), tiles of b hold units as rows.
template <bool kByLine, bool kContiguous>
void pack_tiles(const PackSource& source, const PackRange& range, uint32_t* panels) {
  BlockWalk<kContiguous, kWidth, 2 * kSide> at{range.num_lines, range.num_k};
  for (; !at.is_done(); at.next()) {
    uint32_t* tile = panels + at.line / kWidth * range.panel_stride + at.k * kSide;
    if (!kByLine && !kContiguous && range.num_lines - at.line >= kWidth && range.num_k - at.k >= 2 * kSide) {
      const int64_t stride = source.stride * PairsFromBf16::kBytes;
      interleave_rows(static_cast<const char*>(source.data) + (range.first_k + at.k) * stride +
                          (range.first_line + at.line) * PairsFromBf16::kBytes,
                      stride, tile);
      continue;
    }
    for (int w = 0; w < kWidth; w += kSide, tile += kTileUnits) {
      int64_t lines = range.num_lines - at.line - w;
      __m512i x[16];
      read_block<PairsFromBf16, kContiguous, kByLine>(source, range.first_line + at.line + w, lines < 0 ? 0 : lines,
                                                      range.first_k + at.k, range.num_k - at.k, x);
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) _mm512_storeu_si512(tile + i * kSide, x[i]);
    }
  }
}

template <bool kByLine>
void pack_panels(const PackSource& source, const PackRange& range, uint32_t* panels) {
  return source.k_is_contiguous ? pack_tiles<kByLine, true>(source, range, panels)
                                : pack_tiles<kByLine, false>(source, range, panels);
}

// Tiles of a: in a packed panel, or rows in place.
struct RowTiles {
  const char* upper;
  const char* lower;
  int64_t stride;  // bytes between rows
  int64_t step;    // bytes from one step of K to the next
  explicit RowTiles(const TileProduct& x)
      : upper(reinterpret_cast<const char*>(x.a)),
        lower(upper + (x.a_stride ? kSide * x.a_stride : kTileBytes)),
        stride(x.a_stride ? x.a_stride : kRowBytes),
        step(x.a_stride ? kRowBytes : 2 * kTileBytes) {}
  void next() {
    upper += step;
    lower += step;
  }
};

// Registers 0 and 1: the upper 16 rows' sums; 2 and 3: the lower.
void begin_upper_sums(const char* tile, int64_t stride_bytes, bool continues) {
  if (continues) {
    _tile_loadd(0, tile, stride_bytes);
    _tile_loadd(1, tile + kRowBytes, stride_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
}
void begin_lower_sums(const char* tile, int64_t stride_bytes, bool continues) {
  if (continues) {
    _tile_loadd(2, tile + kSide * stride_bytes, stride_bytes);
    _tile_loadd(3, tile + kSide * stride_bytes + kRowBytes, stride_bytes);
  } else {
    _tile_zero(2);
    _tile_zero(3);
  }
}
void store_upper_sums(char* tile, int64_t stride_bytes) {
  _tile_stored(0, tile, stride_bytes);
  _tile_stored(1, tile + kRowBytes, stride_bytes);
}
void store_lower_sums(char* tile, int64_t stride_bytes) {
  _tile_stored(2, tile + kSide * stride_bytes, stride_bytes);
  _tile_stored(3, tile + kSide * stride_bytes + kRowBytes, stride_bytes);
}

// Registers 4 and 5: a; 6 and 7: b. The side that comes from the second-level cache is not to push the other's slice
// out of the first.
//
// A register set to zero after its last use takes no tile of the core: where it has few to rename into
// (decisions/0007), loads run beside products only as far as tiles are free.
template <bool kKeepsB>
void multiply_two(const TileProduct& x, float* tile, int64_t stride_bytes, Ahead& shared_ahead) {
  Ahead ahead = shared_ahead;  // a copy can stay in registers
  char* sums = reinterpret_cast<char*>(tile);
  begin_upper_sums(sums, stride_bytes, x.continues);
  begin_lower_sums(sums, stride_bytes, x.continues);
  RowTiles a(x);
  const uint32_t* b = x.b;
  for (int64_t u = 0; u < x.units; u += kSide) {
    ask_ahead(ahead);
    if constexpr (kKeepsB) {
      _tile_stream_loadd(4, a.upper, a.stride);
      _tile_loadd(6, b, kRowBytes);
      _tile_loadd(7, b + kTileUnits, kRowBytes);
    } else {
      _tile_loadd(4, a.upper, a.stride);
      _tile_stream_loadd(6, b, kRowBytes);
      _tile_stream_loadd(7, b + kTileUnits, kRowBytes);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_zero(4);
    if constexpr (kKeepsB) {
      _tile_stream_loadd(5, a.lower, a.stride);
    } else {
      _tile_loadd(5, a.lower, a.stride);
    }
    _tile_dpbf16ps(2, 5, 6);
    _tile_zero(6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_zero(7);
    _tile_zero(5);
    a.next();
    b += 2 * kTileUnits;
  }
  store_upper_sums(sums, stride_bytes);
  store_lower_sums(sums, stride_bytes);
  shared_ahead = ahead;
}

// The same for 16 rows or fewer.
void multiply_one(const TileProduct& x, float* tile, int64_t stride_bytes, Ahead& ahead) {
  char* sums = reinterpret_cast<char*>(tile);
  begin_upper_sums(sums, stride_bytes, x.continues);
  RowTiles a(x);
  const uint32_t* b = x.b;
  for (int64_t u = 0; u < x.units; u += kSide) {
    ask_ahead(ahead);
    _tile_loadd(6, b, kRowBytes);
    _tile_loadd(4, a.upper, a.stride);
    _tile_loadd(7, b + kTileUnits, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    a.next();
    b += 2 * kTileUnits;
  }
  store_upper_sums(sums, stride_bytes);
}

void multiply_tiles(const TileProduct& x, Ahead& ahead) {
  multiply_whole_tiles(x, ahead,
                       x.num_rows <= kSide ? multiply_one
                       : x.keeps_b         ? multiply_two<true>
                                           : multiply_two<false>);
}

// A whole tile to bf16, a line of c at a time; everything else as the other kernels do it.
void finish_tiles(const TileOutput& shared_out) {
  const TileOutput out = shared_out;  // c cannot lie in a copy
  if (out.dtype != base::DType::bf16 || out.columns != kWidth) return finish_tile<ToBf16Rounded>(out);
  const auto* bias = static_cast<const uint16_t*>(out.bias);
  const __m512 alpha = _mm512_set1_ps(out.alpha);
  const __m512 bias_low = bias ? ToBf16::load(bias, 0xffff) : _mm512_setzero_ps();
  const __m512 bias_high = bias ? ToBf16::load(bias + kSide, 0xffff) : _mm512_setzero_ps();
  const float* tile = out.tile;
  auto* c = static_cast<uint16_t*>(out.c);
  const auto* added = static_cast<const uint16_t*>(out.added);
  for (int64_t r = 0; r < out.rows; ++r, tile += out.tile_stride, c += out.c_stride) {
    __m512 low = _mm512_mul_ps(alpha, _mm512_loadu_ps(tile)),
           high = _mm512_mul_ps(alpha, _mm512_loadu_ps(tile + kSide));
    if (bias) {
      low = _mm512_add_ps(low, bias_low);
      high = _mm512_add_ps(high, bias_high);
    }
    if (added) {
      low = _mm512_add_ps(low, ToBf16::load(added, 0xffff));
      high = _mm512_add_ps(high, ToBf16::load(added + kSide, 0xffff));
      added += out.c_stride;
    }
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    if (out.streams) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(c), rounded);
    } else {
      _mm512_storeu_si512(c, rounded);
    }
  }
}

}  // namespace

const MatmulKernel* amx_bf16_kernel() {
  static constexpr MatmulKernel kKernel{
      .name = "amx",
      .rows = kWidth,
      .columns = kWidth,
      .step_k = 2 * kSide,
      .step_units = kSide,
      .slice_units = 192,
      .rows_in_place = kSide,
      .pack_a = pack_panels<true>,
      .pack_b = pack_panels<false>,
      .multiply = multiply_tiles,
      .multiply_narrow = nullptr,
      .narrow_rows = 0,
      .finish = finish_tiles,
      .transpose = transpose_tile,
      .sum_squares = sum_squares_of_block,
      .can_stream = true,
      .enter = configure_tiles,
      .leave = release_tiles,
      .spin = spin_tiles<1>,
  };
  return &kKernel;
}

}  // namespace sinter::kernels::cpu
