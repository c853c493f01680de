// Products of activations rounded to 8 bits with weights in blocks: whole numbers are multiplied, exactly, and a scale
// is applied once for each block. Several times as fast as taking the weights apart into plain numbers; the rounding of
// the activations moves logits by about a hundredth of their deviation (docs/quantization.md).
//
// Every 32 numbers of a row of activations share a scale, largest / 127. Sums are kept in eight lanes of f32: lane j
// takes columns 4j to 4j + 3 of every 32, blocks in order, by fused multiply-add, and the lanes are added as a tree. So
// every instruction set gives the same bits, and a row's result depends neither on the other rows nor on threads.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cpu {

// Whether the product is of this kind: integer products are allowed (kernels/choices.h), every part is in a format with
// an integer kernel (q8_0, q4_0, q4_k, q5_k, q6_k), and the call is a layer's product.
bool is_integer_product(const MatmulArgs& args);
// c of one expert, without groups.
void integer_matmul(const MatmulArgs& args, int64_t expert);

// ---- for the kernels of each instruction set and their test ---------------------------------------------------------

// Rows of activations in 8 bits. K is a multiple of 32.
struct RoundedRows {
  const int8_t* codes = nullptr;  // (M, K)
  const float* scales = nullptr;  // (M, K / 32)
  const float* sums = nullptr;    // (M, K / 32): scale times the sum of the codes
  int64_t columns = 0;
};
// One row of activations to codes, scales and sums.
void round_row(const float* x, int64_t columns, int8_t* codes, float* scales, float* sums);

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

// The same of two rows of a weight, `row_bytes` apart: out[2 i + r] for activations first + i, i < count <=
// kPairedRowsAtOnce, and row r.
inline constexpr int64_t kPairedRowsAtOnce = 8;
using IntegerPairKernel = void (*)(const uint8_t* weights, int64_t row_bytes, const RoundedRows& rows, int64_t first,
                                   int64_t count, float* out);
IntegerPairKernel avx512_vnni_pair_kernel(base::WeightFormat format);
// Null where this machine has none.
IntegerPairKernel integer_pair_kernel(base::WeightFormat format);

}  // namespace sinter::kernels::cpu
