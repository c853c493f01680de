// The seam between the blocked matrix product (matmul_product.cc) and its microkernels, one file per instruction set.
//
// A microkernel multiplies packed panels. Panels are made of 4-byte units: a float, or two bf16 that follow each other
// in K (of a number itself, or of one of the three parts that add up to a float). A panel of a holds `rows` rows of
// op(a), a panel of b holds `columns` columns of op(b), both with K running slowest, so that any range of K (in steps
// of `step_units`) is one contiguous piece. What is missing to a full panel or to a full step of K is zero.
//
// Every sum over K is one chain, in the order of K, that neither the panel's position nor the blocking of K changes:
// multiply() carries on from the sums it finds in `tile`. A row's result therefore depends on K alone.
#pragma once
#include <cstdint>

#include "base/dtype.h"

namespace sinter::kernels::cpu {

inline constexpr int64_t kUnitBytes = 4;  // of a panel

// A matrix to pack, seen along one of its outer axes ("lines": rows of op(a), columns of op(b)) and K.
struct PackSource {
  const void* data = nullptr;
  base::DType dtype = base::DType::f32;
  int64_t stride = 0;  // elements between lines when K is contiguous, else between steps of K
  bool k_is_contiguous = true;
};

// Lines [first_line, first_line + num_lines) and K elements [first_k, first_k + num_k), into panels `panel_stride`
// units apart, the first at `panels`.
struct PackRange {
  int64_t first_line, num_lines;
  int64_t first_k, num_k;
  int64_t panel_stride;
};

// c = alpha * tile (+ bias) (+ added) for a block of c.
struct TileOutput {
  const float* tile;
  int64_t tile_stride;
  int64_t rows, columns;
  void* c;
  int64_t c_stride;
  base::DType dtype;  // of c and bias
  const void* bias;   // of the first column, or null
  float alpha;
  const void* added;  // rows c_stride apart, in c's format: c itself, or null
  // c is too large for a cache: a kernel that `can_stream` writes f32 and whole lines of bf16 past it.
  bool streams;
};

// tile (num_rows x kernel's columns, full width) = (continues ? tile : 0) + a b over `units` units. Rows of the tile
// past num_rows are left alone.
struct TileProduct {
  int num_rows;
  int64_t units;
  const uint32_t* a;
  int64_t a_stride;  // 0: a is a packed panel; else rows of a in place, this many bytes apart
  const uint32_t* b;
  float* tile;
  int64_t tile_stride;
  bool continues;
  bool keeps_b;  // it is b that meets other panels next and should stay in the first-level cache, else a
};

// Memory that will be read next, `rows` rows of `lines` cache lines: a kernel may ask for it while it multiplies,
// `lines_per_step` lines in a step of `step_units` units. It then moves `at` on; null: nothing (more) to ask for.
// Where rows are packed, and so lie in one piece, it may as well ask once in every unit, `bytes_per_unit` further on.
struct Ahead {
  const char* at = nullptr;
  int64_t rows = 0, lines = 0, stride = 0;  // stride in bytes
  int64_t lines_per_step = 0;
  int64_t lines_done = 0;  // of the row
  int64_t bytes_per_unit = 0;
};

struct MatmulKernel {
  const char* name;
  int rows;           // of a panel of a
  int columns;        // of a panel of b
  int step_k;         // panels hold whole steps of K: this many elements of each line
  int step_units;     // ... in this many units
  int slice_units;    // of K that one panel of a and one of b leave in the first-level cache; 0: not cut into slices
  int rows_in_place;  // a need not be packed where its lines are contiguous in K and a multiple of this many; 0: always
  void (*pack_a)(const PackSource&, const PackRange&, uint32_t* panels);
  void (*pack_b)(const PackSource&, const PackRange&, uint32_t* panels);
  void (*multiply)(const TileProduct&, Ahead&);
  // The same with a panel of b that holds the elements themselves, [k][column], which are made units on the way; null:
  // that must be done before.
  void (*multiply_narrow)(const TileProduct&, base::DType, Ahead&);
  int narrow_rows;  // with more of them that is better done once, before
  void (*finish)(const TileOutput&);
  // to (columns x rows) = the transpose of a tile, both with full rows; null: the kernel's products are not turned.
  void (*transpose)(const float* tile, int64_t tile_stride, float* to);
  // The sum of the squares of a block of floats, in an order fixed by the kernel.
  float (*sum_squares)(const float* x, int64_t stride, int64_t rows, int64_t columns);
  bool can_stream;
  // Called in each thread around a run of multiply() and finish() calls: tile registers must be configured and given
  // back, and what was streamed must be seen by others.
  void (*enter)();
  void (*leave)();
  // Runs the multiply instruction on registers alone about `steps` times and returns the floating-point operations
  // done: the ceiling of this instruction set on one core.
  double (*spin)(int64_t steps);
};

// Each returns null where the program was built for another architecture; whether this CPU can run them is asked from
// base::cpu_features().
const MatmulKernel* portable_f32_kernel();
const MatmulKernel* avx2_f32_kernel();
const MatmulKernel* avx512_f32_kernel();
const MatmulKernel* avx512_bf16_kernel();
const MatmulKernel* amx_bf16_kernel();
const MatmulKernel* amx_f32_kernel();

}  // namespace sinter::kernels::cpu
