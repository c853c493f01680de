// f32 on AMX tiles. A float is exactly the sum of three bf16: itself rounded, what is left of it rounded, and the rest.
// Of the nine products of two such sums the six largest are added; the others are below 2^-24 of the whole, as much as
// one rounding of f32. Tiles multiply bf16 at sixteen times the rate of f32 vectors, so that six of them are still
// faster; and a tile instruction rounds a sum once for 32 products where a chain of f32 rounds it 32 times.
//
// What differs from f32: a part below 2^-126 is taken for 0 (numbers below 2^-110 lose their last bits), and infinity,
// or a number above 3.39e38, becomes NaN.
//
// For each 32 elements of K a panel holds three parts, each of two tiles of 1 KiB as in matmul_amx.cc.
#include "kernels/cpu/matmul/matmul_amx.h"

namespace sinter::kernels::cpu {
namespace {

constexpr int kParts = 3;
constexpr int kPartUnits = 2 * kTileUnits;
constexpr int kStepUnits = kParts * kPartUnits;  // of a panel

inline __m512i to_bf16(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }
inline __m512 to_float(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

// 32 elements of one line, those of `low` first, as a row of a tile of each part.
inline void split_line(__m512 low, __m512 high, uint32_t* row) {
  for (int part = 0; part < kParts; ++part, row += kPartUnits) {
    const __m512i rounded = to_bf16(low, high);
    _mm512_storeu_si512(row, rounded);
    low = _mm512_sub_ps(low, to_float(_mm512_castsi512_si256(rounded)));
    high = _mm512_sub_ps(high, to_float(_mm512_extracti64x4_epi64(rounded, 1)));
  }
}

// Two elements of each of 16 lines: a row of a tile of each part.
inline void split_pairs(__m512 even, __m512 odd, uint32_t* row) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i upper_half = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int part = 0; part < kParts; ++part, row += kPartUnits) {
    const __m512i pairs = _mm512_permutexvar_epi16(order, to_bf16(even, odd));
    _mm512_storeu_si512(row, pairs);
    even = _mm512_sub_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
    odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(pairs, upper_half)));
  }
}

// Tiles of a hold lines as rows (kByLine), tiles of b hold pairs of K as rows.
template <bool kByLine, bool kContiguous>
void pack_parts(const PackSource& source, const PackRange& range, uint32_t* panels) {
  BlockWalk<kContiguous, kWidth, 2 * kSide> at{range.num_lines, range.num_k};
  for (; !at.is_done(); at.next()) {
    uint32_t* tile = panels + at.line / kWidth * range.panel_stride + at.k / (2 * kSide) * kStepUnits;
    for (int w = 0; w < kWidth; w += kSide, tile += kTileUnits) {
      const int64_t lines = range.num_lines - at.line - w, first = range.first_line + at.line + w;
      const int64_t k = range.first_k + at.k, num_k = range.num_k - at.k;
      __m512i x[2][kSide];
      for (int half = 0; half < 2; ++half) {
        const int64_t left = num_k - half * kSide;
        read_block<FloatsFromF32, kContiguous, kByLine>(source, first, lines < 0 ? 0 : lines, k + half * kSide,
                                                        left < 0 ? 0 : left, x[half]);
      }
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) {
        if constexpr (kByLine) {
          split_line(_mm512_castsi512_ps(x[0][i]), _mm512_castsi512_ps(x[1][i]), tile + i * kSide);
        } else {
          const __m512i* pair = &x[i / 8][2 * i % 16];
          split_pairs(_mm512_castsi512_ps(pair[0]), _mm512_castsi512_ps(pair[1]), tile + i * kSide);
        }
      }
    }
  }
}

template <bool kByLine>
void pack_panels(const PackSource& source, const PackRange& range, uint32_t* panels) {
  return source.k_is_contiguous ? pack_parts<kByLine, true>(source, range, panels)
                                : pack_parts<kByLine, false>(source, range, panels);
}

// register kSum += register kA * register kB; the intrinsic takes no constants but literals.
template <int kSum, int kA, int kB>
inline void add_product() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kA), "i"(kB));
}

// What a step adds to the tile of sums in register kSum. `a` and `b`: tiles of the first part.
//
// One sum at a time, in few registers: where a core has few tiles to rename into (decisions/0007) four at once
// take longer, though they load less. A register set to zero after its last use takes none.
template <int kSum>
inline void add_step(const uint32_t* a, const uint32_t* b) {
  _tile_loadd(6, b, kRowBytes);
  _tile_loadd(4, a + 2 * kPartUnits, kRowBytes);
  add_product<kSum, 4, 6>();
  _tile_zero(4);
  _tile_loadd(5, a + kPartUnits, kRowBytes);
  add_product<kSum, 5, 6>();
  _tile_loadd(4, a, kRowBytes);
  add_product<kSum, 4, 6>();
  _tile_zero(6);
  _tile_loadd(7, b + 2 * kPartUnits, kRowBytes);
  add_product<kSum, 4, 7>();
  _tile_zero(7);
  _tile_loadd(6, b + kPartUnits, kRowBytes);
  add_product<kSum, 4, 6>();
  _tile_zero(4);
  add_product<kSum, 5, 6>();
  _tile_zero(5);
  _tile_zero(6);
}

void multiply_sums(const TileProduct& x, float* tile, int64_t stride_bytes, Ahead& shared_ahead) {
  Ahead ahead = shared_ahead, nothing;  // a copy can stay in registers
  const int num_row_tiles = x.num_rows > kSide ? 2 : 1;
  for (int j = 0; j < 2; ++j) {
    for (int i = 0; i < num_row_tiles; ++i) {
      char* sums = reinterpret_cast<char*>(tile) + i * kSide * stride_bytes + j * kRowBytes;
      if (x.continues) {
        _tile_loadd(0, sums, stride_bytes);
      } else {
        _tile_zero(0);
      }
      const bool is_last = j == 1 && i + 1 == num_row_tiles;
      const uint32_t *a = x.a + i * kTileUnits, *b = x.b + j * kTileUnits;
      for (const uint32_t* end = a + x.units * kWidth; a < end; a += kStepUnits, b += kStepUnits) {
        ask_ahead(is_last ? ahead : nothing);
        add_step<0>(a, b);
      }
      _tile_stored(0, sums, stride_bytes);
    }
  }
  shared_ahead = ahead;
}

void multiply_tiles(const TileProduct& x, Ahead& ahead) { multiply_whole_tiles(x, ahead, multiply_sums); }

// A panel of b that holds floats, [k][column], with 16 rows or fewer: tiles of so many rows take less time. The next
// tiles of b are split before the last ones are multiplied, so that both go on at once.
void multiply_floats(const TileProduct& x, base::DType, Ahead&) {
  TileConfig config;
  for (int i : {0, 1, 4, 5}) config.rows[i] = static_cast<uint8_t>(x.num_rows);  // sums and a
  configure_tiles(config);
  alignas(64) uint32_t parts[kStepUnits];
  const int64_t num_steps = x.units / (kParts * kSide);
  auto split = [&](int64_t step, int j) {
    const float* from = reinterpret_cast<const float*>(x.b) + step * 2 * kSide * kWidth + j * kSide;
    uint32_t* to = parts + j * kTileUnits;
    for (int i = 0; i < kSide; ++i, from += 2 * kWidth, to += kSide) {
      constexpr int kAhead = 2 * 2 * kSide * kWidth;  // two steps, which are a page each: no CPU looks beyond one
      __builtin_prefetch(from + kAhead);
      __builtin_prefetch(from + kAhead + kWidth);
      split_pairs(_mm512_loadu_ps(from), _mm512_loadu_ps(from + kWidth), to);
    }
    asm volatile("" ::"r"(parts) : "memory");  // the compiler does not know that tile instructions read it
  };
  char* sums = reinterpret_cast<char*>(x.tile);
  const int64_t stride_bytes = x.tile_stride * 4;
  asm volatile("" ::: "memory");
  if (x.continues) {
    _tile_loadd(0, sums, stride_bytes);
    _tile_loadd(1, sums + kRowBytes, stride_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  if (num_steps > 0) split(0, 0);
  const uint32_t* a = x.a;
  for (int64_t step = 0; step < num_steps; ++step, a += kStepUnits) {
    split(step, 1);
    add_step<0>(a, parts);
    if (step + 1 < num_steps) split(step + 1, 0);
    add_step<1>(a, parts + kTileUnits);
  }
  _tile_stored(0, sums, stride_bytes);
  _tile_stored(1, sums + kRowBytes, stride_bytes);
  configure_tiles();
}

}  // namespace

const MatmulKernel* amx_f32_kernel() {
  static constexpr MatmulKernel kKernel{
      .name = "amx, three bf16 to a float,",
      .rows = kWidth,
      .columns = kWidth,
      .step_k = 2 * kSide,
      .step_units = kParts * kSide,
      .slice_units = 2 * kParts * kSide,
      .rows_in_place = 0,
      .pack_a = pack_panels<true>,
      .pack_b = pack_panels<false>,
      .multiply = multiply_tiles,
      .multiply_narrow = multiply_floats,
      .narrow_rows = kSide,
      .finish = finish_tile<ToBf16Rounded>,
      .transpose = transpose_tile,
      .sum_squares = sum_squares_of_block,
      .can_stream = true,
      .enter = configure_tiles,
      .leave = release_tiles,
      .spin = spin_tiles<2 * kParts>,
  };
  return &kKernel;
}

}  // namespace sinter::kernels::cpu
