// Packed weights of Hugging Face folders to weight parts (core/weight_view.h) and to plain numbers: GPTQ, AWQ,
// compressed-tensors, fp8, bitsandbytes, MXFP4, NVFP4. The layouts are in docs/quantization.md.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/weight_view.h"
#include "io/safetensors.h"

namespace sinter::models::quantized {

// A weight's tensors by the ending of their names; null: not there.
struct PackedTensors {
  std::string name;  // of the module, for errors: "model.layers.0.mlp.up_proj"
  const io::TensorEntry *codes = nullptr, *scales = nullptr, *zeros = nullptr, *groups = nullptr;
  const io::TensorEntry* global_scale = nullptr;
};

// rows x columns of the weight. All throw base::Error naming the tensor when shapes do not fit.
struct Size {
  int64_t rows = 0, columns = 0;
};

// A part whose codes are 4 or 8 bits wide (2 and 3 bits become 4).
//
// `bits` 2, 3, 4 or 8. version 1 stores zero points one too small. group <= 0: one group.
core::WeightPart unpack_gptq(const PackedTensors& t, Size size, int bits, int64_t group, int version);
core::WeightPart unpack_awq(const PackedTensors& t, Size size, int64_t group);
// compressed-tensors "pack-quantized": 4 or 8 bits along the inputs.
core::WeightPart unpack_packed_integers(const PackedTensors& t, Size size, int bits, int64_t group);
// i8 or e4m3 numbers with scales of the whole tensor, of rows, of groups of columns, or of blocks of the matrix.
core::WeightPart unpack_bytes(const PackedTensors& t, Size size, int64_t block_rows, int64_t block_columns,
                              double factor = 1.0);
// bitsandbytes' 4-bit codes over the flattened tensor; `scales` are its absmax as plain numbers.
core::WeightPart unpack_bitsandbytes(const PackedTensors& t, Size size, core::WeightFormat format,
                                     std::span<const float> scales, int64_t block);
// codes u8 (rows, columns / 2), the first of a pair in the low half, scales u8 (rows, columns / 32): ggml's blocks.
core::WeightPart unpack_mxfp4(const PackedTensors& t, Size size);
// codes as there, scales e4m3 (rows, columns / 16). `divides`: by global_scale (compressed-tensors), else times it.
core::WeightPart unpack_nvfp4(const PackedTensors& t, Size size, bool divides);

}  // namespace sinter::models::quantized
