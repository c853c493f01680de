// Folders of golden answers for GGUF files and quantized folders: whole models with logits, tokens and perplexity of
// the dequantized weights, broken files, and packed words alone.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/verify.h"
#include "io/safetensors.h"

namespace sinter::eval {

// Whether any such case lies in the folder or below it.
bool is_quantized_golden(const std::string& folder);
// Checks them all; a check's name begins with its case. A case that cannot be read fails alone, with the reason. What
// the program does not have is a skipped line; files of no known kind are named in a warning.
std::vector<VerifyCheck> verify_quantized_golden(const std::string& folder, const VerifyOptions& options);
// Files blocks.safetensors in the folder or below it.
std::vector<std::string> find_block_files(const std::string& folder);

// The kinds of cases, each in a file of its own. All read the folder `folder` alone and append to `checks`.
//
// NAME.TYPE.gguf with NAME.TYPE.json, NAME.TYPE.safetensors and tokens.json beside it.
void verify_gguf_model(const std::string& file, const VerifyOptions& options, std::vector<VerifyCheck>& checks);
// index.json and the files it names: which a reader must refuse or take.
void verify_gguf_broken(const std::string& folder, std::vector<VerifyCheck>& checks);
// golden.json with "dequantized_sha256", or of a base without it, and golden.safetensors. The second version of a
// GPTQ folder (NAME-v2) has its logits in NAME-v1 where it has none.
void verify_quantized_folder(const std::string& folder, const VerifyOptions& options, std::vector<VerifyCheck>& checks);

// Packed words and numbers alone. blocks.safetensors: GGUF's block formats; packing.safetensors: integers of GPTQ, AWQ
// and compressed-tensors; fp4.safetensors: MXFP4 and NVFP4; kv.safetensors: formats of the KV cache.
void verify_block_formats(const std::string& file, const VerifyOptions& options, std::vector<VerifyCheck>& checks);
void verify_packed_words(const std::string& file, std::vector<VerifyCheck>& checks);
void verify_four_bit_floats(const std::string& file, std::vector<VerifyCheck>& checks);
void verify_kv_formats(const std::string& file, const VerifyOptions& options, std::vector<VerifyCheck>& checks);

// Parts of model cases. `answers` holds promptK and `logits` + K, greedy and greedy_margin (names given).
struct ModelAnswers {
  std::string model;      // path
  std::string case_name;  // "llama.q4_0"
  std::string logits;     // "exact", "logits"
  std::string greedy, greedy_margin, greedy_prompt;
  double perplexity = 0;  // 0: none
  std::string text;       // file of its text
  // Not empty: activations may be rounded to 8 bits, and each prompt's logits differ by at most so much.
  std::vector<double> rounding;
};
void verify_model_answers(const ModelAnswers& answers, const io::SafetensorsFile& golden, const VerifyOptions& options,
                          std::vector<VerifyCheck>& checks);

}  // namespace sinter::eval
