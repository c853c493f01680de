// Weights as the tensors that a module has in folders of Hugging Face: GPTQ, AWQ and fp8. The layouts are in
// docs/quantization.md; models/quantized reads them.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "quant/folder/integer_weight.h"

namespace sinter::quant {

struct PackedTensor {
  std::string name;  // "model.layers.0.mlp.up_proj.qweight"
  base::DType dtype = base::DType::f32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

// qweight, qzeros, scales, g_idx of version 1. Rows and columns are multiples of 32 / bits (3 bits: of 32).
std::vector<PackedTensor> pack_gptq(const std::string& module, const IntegerWeight& weight, int bits);
// qweight, qzeros, scales of version "gemm". 4 bits, rows are multiples of 8.
std::vector<PackedTensor> pack_awq(const std::string& module, const IntegerWeight& weight);

// Weights in e4m3 and f32 multipliers: of each row (weight_scale), or of blocks of the matrix (weight_scale_inv).
// `numbers` become what a reader will find.
std::vector<PackedTensor> pack_fp8(const std::string& module, std::vector<float>& numbers, int64_t rows,
                                   int64_t columns, int64_t block);

// Plain numbers in a format. Throws base::Error where f16 cannot hold them.
PackedTensor pack_plain(const std::string& name, base::DType dtype, std::vector<int64_t> shape,
                        const std::vector<float>& values);

}  // namespace sinter::quant
