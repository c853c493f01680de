// How a product is cut into blocks and tasks. Speed only: no result depends on it.
#pragma once
#include "kernels/cpu/matmul/matmul_product.h"

namespace sinter::kernels::cpu {

inline constexpr int64_t kLineBytes = 64;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

// A task keeps panels of one side, which it packs itself, in its core's second-level cache and lets the panels of the
// other side, packed once for everyone, in place or packed ahead, pass by.
struct Blocking {
  bool keeps_rows;        // the side that is kept: panels of a, else of b
  int64_t units;          // of K in a block
  int64_t rows, columns;  // in a block of c, multiples of a panel
  int64_t task_rows;      // of one task, a multiple of a panel
  int64_t task_panels;    // of b, of one task
};

// Whether the kernel reads rows of a where they stand: whole lines of whole tiles.
bool reads_in_place(const MatmulKernel& kernel, const Product& p);

// Whether narrow panels of b are read as they stand: of so few rows widening them again for every panel of rows costs
// less than writing them down widened.
bool reads_narrow(const MatmulKernel& kernel, const Product& p);

// Whether to compute c's transpose and turn its tiles at the end: where K goes across the rows of both sides, panels of
// a must be transposed and those of b need not be, so that the smaller side had better be a.
bool is_better_turned(const MatmulKernel& kernel, const Product& p);

// sums_in_c: sums over K can wait in c from one block of it to the next.
Blocking choose_blocking(const MatmulKernel& kernel, const Product& p, bool sums_in_c);

}  // namespace sinter::kernels::cpu
