// Tile products of attention on AMX: 16 x 16 sums in a tile register, 32 bf16 of depth an instruction.
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/matmul/tiles_amx.h"

namespace sinter::kernels::cpu {
namespace {

void leave() { _tile_release(); }

constexpr int64_t kTileUnits = 16;

// Operands are set to zero after their last use, which gives their registers back: see matmul_amx.cc.

// Sums of 32 x 32: tiles 0 to 3; a in tiles 4 and 5, b in tiles 6 and 7.
void multiply_32x32(int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool accumulate) {
  size_t a_bytes = static_cast<size_t>(a_stride) * 4, b_bytes = static_cast<size_t>(b_stride) * 4;
  size_t c_bytes = static_cast<size_t>(c_stride) * 4;
  float* lower = c + 16 * c_stride;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, lower, c_bytes);
    _tile_loadd(3, lower + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < units; k += kTileUnits) {
    const uint32_t* b_row = b + k * b_stride;
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, b_row, b_bytes);
    _tile_loadd(7, b_row + 16, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_zero(4);
    _tile_loadd(5, a + 16 * a_stride + k, a_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_zero(6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_zero(7);
    _tile_zero(5);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, lower, c_bytes);
  _tile_stored(3, lower + 16, c_bytes);
}

// Sums of 16 x 32: tiles 0 and 1.
void multiply_16x32(int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool accumulate) {
  size_t a_bytes = static_cast<size_t>(a_stride) * 4, b_bytes = static_cast<size_t>(b_stride) * 4;
  size_t c_bytes = static_cast<size_t>(c_stride) * 4;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int64_t k = 0; k < units; k += kTileUnits) {
    const uint32_t* b_row = b + k * b_stride;
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, b_row, b_bytes);
    _tile_loadd(7, b_row + 16, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_zero(6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_zero(7);
    _tile_zero(4);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
}

// Sums of 16 x 16: tile 0.
void multiply_16x16(int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool accumulate) {
  size_t a_bytes = static_cast<size_t>(a_stride) * 4, b_bytes = static_cast<size_t>(b_stride) * 4;
  size_t c_bytes = static_cast<size_t>(c_stride) * 4;
  if (accumulate) {
    _tile_loadd(0, c, c_bytes);
  } else {
    _tile_zero(0);
  }
  for (int64_t k = 0; k < units; k += kTileUnits) {
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, b + k * b_stride, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_zero(4);
    _tile_zero(6);
  }
  _tile_stored(0, c, c_bytes);
}

void multiply(int64_t rows, int64_t columns, int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b,
              int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  for (int64_t n = 0; n < columns; n += 32) {
    bool is_wide = n + 32 <= columns;
    for (int64_t r = 0; r < rows; r += 32) {
      const uint32_t* a_rows = a + r * a_stride;
      float* c_rows = c + r * c_stride + n;
      if (!is_wide) {
        multiply_16x16(units, a_rows, a_stride, b + n, b_stride, c_rows, c_stride, accumulate);
        if (rows - r > 16) {
          multiply_16x16(units, a_rows + 16 * a_stride, a_stride, b + n, b_stride, c_rows + 16 * c_stride, c_stride,
                         accumulate);
        }
      } else if (rows - r > 16) {
        multiply_32x32(units, a_rows, a_stride, b + n, b_stride, c_rows, c_stride, accumulate);
      } else {
        multiply_16x32(units, a_rows, a_stride, b + n, b_stride, c_rows, c_stride, accumulate);
      }
    }
  }
}

}  // namespace

const PairKernel* amx_pairs() {
  static constexpr PairKernel kKernel{"amx", multiply, configure_tiles, leave};
  return &kKernel;
}

}  // namespace sinter::kernels::cpu
