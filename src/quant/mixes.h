// The types of GGUF files by name, and which format each tensor gets in them: llama.cpp's rules, so that a file of a
// name has the size and the quality that people know by it.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/weight_format.h"
#include "models/gguf_export.h"

namespace sinter::quant {

struct Mix {
  const char* name;    // "q4_k_m"
  uint32_t file_type;  // general.file_type
  base::WeightFormat format;
  base::DType dtype = base::DType::f32;  // of a plain one
  const char* bits;                      // of a weight, about, for help
};
std::span<const Mix> mixes();
const Mix* find_mix(const std::string& name);

struct TensorFormat {
  base::WeightFormat format = base::WeightFormat::plain;
  base::DType dtype = base::DType::f32;
};
// The format of one tensor. Rows that are no whole blocks get a format of smaller blocks, or f16.
TensorFormat format_of(const Mix& mix, const models::GgufExportTensor& tensor, const spec::ModelSpec& spec,
                       bool has_importance);

}  // namespace sinter::quant
