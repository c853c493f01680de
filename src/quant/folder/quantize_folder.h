// Hugging Face folders with quantized linear layers: GPTQ, AWQ, fp8. One block of the model is in memory at a time, and
// the calibration text's stream with it; a killed run goes on behind its last whole block.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "quant/folder/integer_weight.h"
#include "quant/quantize.h"

namespace sinter::quant {

struct FolderOptions {
  enum Method { gptq, awq, fp8 } method = gptq;
  IntegerForm form;             // of gptq and awq
  int64_t fp8_block = 0;        // blocks of so many rows and columns with one scale; 0: a scale for each row
  int64_t window = 256;         // tokens of the text that are read together
  double damp = 0.05;           // of the inputs' matrix, by its mean diagonal
  std::vector<int32_t> tokens;  // of the calibration text; fp8 needs none
  int32_t prefix_token = -1;    // begins each window of it
};

// Writes the folder `out`. Throws base::Error for a model whose shapes the form cannot hold, naming the tensor.
void write_quantized_folder(const std::string& model, const std::string& out, const FolderOptions& options,
                            const OnQuantized& on_progress = {});

}  // namespace sinter::quant
