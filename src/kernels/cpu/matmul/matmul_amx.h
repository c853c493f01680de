// What the two products on AMX tiles share: 32 rows by 32 columns of sums in four tile registers, panels of 32 lines.
// Included by files compiled for AMX only; internal linkage for the reason given in matmul_tile.h.
#pragma once
#include "kernels/cpu/matmul/matmul_round_bf16.h"
#include "kernels/cpu/matmul/matmul_tile.h"
#include "kernels/cpu/matmul/tiles_amx.h"

namespace sinter::kernels::cpu {
namespace {

constexpr int kSide = 16;  // rows of a tile, and units in a row of it
constexpr int kTileUnits = kSide * kSide;
constexpr int kWidth = 2 * kSide;  // lines of a panel
constexpr int kRowBytes = kSide * 4;
constexpr int kTileBytes = kSide * kRowBytes;

inline void release_tiles() {
  _tile_release();
  fence_streams();
}

// Asks for what comes next, a few lines at a time: a tile load that waits for memory would hold up the products.
inline void ask_ahead(Ahead& ahead) {
  for (int64_t i = 0; i < ahead.lines_per_step && ahead.at; ++i) {
    __builtin_prefetch(ahead.at, 0, 2);
    ahead.at += 64;
    if (++ahead.lines_done < ahead.lines) continue;
    ahead.at += ahead.stride - 64 * ahead.lines;
    ahead.lines_done = 0;
    if (--ahead.rows == 0) ahead.at = nullptr;
  }
}

inline void copy_rows(const float* from, int64_t from_stride, float* to, int64_t to_stride, int rows) {
  for (int r = 0; r < rows; ++r) {
    _mm512_storeu_ps(to + r * to_stride, _mm512_loadu_ps(from + r * from_stride));
    _mm512_storeu_ps(to + r * to_stride + kSide, _mm512_loadu_ps(from + r * from_stride + kSide));
  }
}

// Calls `multiply`, which loads and stores sums 16 rows at a time.
inline void multiply_whole_tiles(const TileProduct& x, Ahead& ahead,
                                 void (*multiply)(const TileProduct&, float* tile, int64_t stride_bytes, Ahead&)) {
  // The compiler does not know that tile instructions read memory: what was written before must be there.
  asm volatile("" ::: "memory");
  if (x.num_rows % kSide == 0) return multiply(x, x.tile, x.tile_stride * 4, ahead);
  // Tiles are stored whole: rows that are not the caller's go to a buffer.
  alignas(64) float sums[kWidth * kWidth];
  if (x.continues) copy_rows(x.tile, x.tile_stride, sums, kWidth, x.num_rows);
  asm volatile("" ::"r"(sums) : "memory");
  multiply(x, sums, kWidth * 4, ahead);
  asm volatile("" ::"r"(sums) : "memory");
  copy_rows(sums, kWidth, x.tile, x.tile_stride, x.num_rows);
}

inline void transpose_tile(const float* tile, int64_t tile_stride, float* to) {
  for (int r = 0; r < kWidth; r += kSide) {
    for (int c = 0; c < kWidth; c += kSide) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) x[i] = _mm512_loadu_si512(tile + (r + i) * tile_stride + c);
      Block512::transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < kSide; ++i) _mm512_storeu_si512(to + (c + i) * kWidth + r, x[i]);
    }
  }
}

// kTimes: instructions that a product of bf16 stands for.
template <int kTimes>
double spin_tiles(int64_t steps) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < steps; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return static_cast<double>(steps) * 4 * kSide * kSide * 2 * kSide * 2 / kTimes;
}

}  // namespace
}  // namespace sinter::kernels::cpu
