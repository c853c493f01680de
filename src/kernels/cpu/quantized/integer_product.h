// Products of activations rounded to 8 bits with weights in blocks: whole numbers are multiplied, exactly, and a scale
// is applied once for each 32 columns. Several times as fast as taking the weights apart into plain numbers; the
// rounding of the activations moves logits by about a hundredth of their deviation (docs/quantization.md).
//
// Every 32 numbers of a row of activations share a scale, largest / 127. Sums are kept in eight lanes of f32: lane j
// takes blocks of 32 columns j, j + 8, j + 16, ... in order, by fused multiply-add (the scaled product, then the
// minimum), and the lanes are added as a tree. So every instruction set gives the same bits, and a row's result depends
// neither on the other rows nor on threads.
//
// With AVX-512 VNNI 32 rows of a weight are interleaved to a strip (integer_strip.h), which needs no sums across a
// vector and next to no work to take codes and scales apart. Where a weight is kept for many products
// (WeightView::derived) it is brought into strips once, of the same size as its blocks, and what lay in a mapped file
// is dropped; else strips are made for the cache and forgotten where there are several rows of activations, and single
// rows of the weight are multiplied as they are read where there are few.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cpu {

// Whether the product is of this kind: integer products are allowed (kernels/choices.h), every part is in a format with
// an integer kernel (integer_form.h), and the call is a layer's product over at least kGroupColumns columns: narrower
// ones are cheap as they are, and sums of few products average little of the rounding out.
bool is_integer_product(const MatmulArgs& args);
// c of one expert, without groups.
void integer_matmul(const MatmulArgs& args, int64_t expert);

// ---- for the kernels of each instruction set and their test ---------------------------------------------------------

// Rows of activations in 8 bits, padded with zeros to whole groups of 256 columns.
struct RoundedRows {
  const int8_t* codes = nullptr;    // (M, stride)
  const float* scales = nullptr;    // (M, stride / 32)
  const float* sums = nullptr;      // (M, stride / 32): scale times the sum of the codes
  const int32_t* halves = nullptr;  // (M, stride / 256, 2, 8): sums of codes of the first and last 16 of each block
  int64_t columns = 0, stride = 0;
};
inline constexpr int64_t kGroupColumns = 256;
inline int64_t padded_columns(int64_t columns) { return (columns + kGroupColumns - 1) / kGroupColumns * kGroupColumns; }
// One row of activations; `columns` is a multiple of 32. Writes the padding too.
void round_row(const float* x, int64_t columns, int8_t* codes, float* scales, float* sums, int32_t* halves);

// out[i] = the product of one row of a weight with activations first + i, i < count <= kRowsAtOnce.
inline constexpr int64_t kRowsAtOnce = 4;
using IntegerRowKernel = void (*)(const uint8_t* weights, const RoundedRows& rows, int64_t first, int64_t count,
                                  float* out);
// Null for formats without one, or where this machine's kind has none.
IntegerRowKernel portable_integer_kernel(base::WeightFormat format);
IntegerRowKernel avx2_integer_kernel(base::WeightFormat format);
IntegerRowKernel avx512_vnni_integer_kernel(base::WeightFormat format);
// The best for this machine.
IntegerRowKernel integer_kernel(base::WeightFormat format);

// The same of kPackedRows rows of a weight at a time, from a strip (integer_strip.h).
inline constexpr int64_t kPackedRows = 32, kPackedActivations = 6;
struct IntegerStripKernel {
  // At most kPackedRows rows, `row_bytes` apart, into strip_bytes() bytes aligned to 64; missing rows are 0.
  void (*pack)(const uint8_t* weights, int64_t row_bytes, int64_t rows, int64_t columns, void* strip) = nullptr;
  // out[i * kPackedRows + r] for activations first + i, i < count <= kPackedActivations, and row r.
  void (*multiply)(const void* strip, const RoundedRows& rows, int64_t first, int64_t count, float* out) = nullptr;
  explicit operator bool() const { return pack != nullptr; }
};
IntegerStripKernel avx512_vnni_strip_kernel(base::WeightFormat format);
// None where this machine has none.
IntegerStripKernel integer_strip_kernel(base::WeightFormat format);

}  // namespace sinter::kernels::cpu
