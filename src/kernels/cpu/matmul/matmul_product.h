// The blocked driver: one product c = alpha op(a) op(b) (+ bias) (+ c) on all threads.
#pragma once
#include "base/threads.h"
#include "kernels/cpu/matmul/matmul_kernel.h"

namespace sinter::kernels::cpu {

// b packed ahead, whole K: panels of the kernel's units, or, where these take more room than b's elements, panels that
// keep the elements as [k][column] and cost no more to read: widened block by block, or by the products themselves
// where rows are few.
struct PackedPanels {
  const void* data = nullptr;  // null: not packed ahead
  bool is_narrow = false;
};

// A piece of c.
struct Block {
  int64_t row, num_rows, column, num_columns;
};

// Work on every piece of c, done by the thread that makes it, in the place of writing c.
struct PieceWork {
  // The piece comes soon: what will be read for it can be asked for.
  base::FunctionRef<void(const Block&)> ask;
  // Here it is, in the format of c, its rows `stride` elements apart: in a cache, or in c itself. With `streams` what
  // is not read soon can be written past the caches.
  base::FunctionRef<void(const Block&, const void* values, int64_t stride, bool streams)> take;
};

struct Product {
  int64_t m = 0, n = 0, k = 0;
  PackSource a, b;
  PackedPanels packed_b;
  void* c = nullptr;     // (m, n), or (n, m) when turned
  int64_t c_stride = 0;  // elements between its rows
  bool c_is_turned = false;
  base::DType c_dtype = base::DType::f32;
  const void* bias = nullptr;  // (n) in the format of c
  float alpha = 1.0f;
  bool accumulate = false;
  const void* addend = nullptr;  // added in the place of c where it accumulates: as c
  bool is_gradient = false;      // c will not be read soon, except to add to it
  float* c_squares = nullptr;    // becomes the sum of the squares of c, which is f32
  const PieceWork* pieces = nullptr;
};

// Whether c is nothing but the sums.
inline bool is_plain(const Product& p) {
  return p.c_dtype == base::DType::f32 && !p.accumulate && p.alpha == 1.0f && !p.bias;
}

// Whether units take more room than elements: 16-bit formats under an f32 kernel, f32 as three parts.
inline bool are_units_wider(const MatmulKernel& kernel, base::DType dtype) {
  return kernel.step_units * kUnitBytes > kernel.step_k * static_cast<int64_t>(base::dtype_bytes(dtype));
}

// Units of K in a panel.
inline int64_t panel_units(const MatmulKernel& kernel, int64_t k) {
  return (k + kernel.step_k - 1) / kernel.step_k * kernel.step_units;
}

// Elements in a panel of b that keeps them: whole steps of K.
inline int64_t narrow_panel_elements(const MatmulKernel& kernel, int64_t k) {
  return panel_units(kernel, k) / kernel.step_units * kernel.step_k * kernel.columns;
}

void run_product(const MatmulKernel& kernel, const Product& product);

}  // namespace sinter::kernels::cpu
