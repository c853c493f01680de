// Models from one form into another: GGUF files of any type, and plain Hugging Face folders. One tensor is in memory at
// a time; a run that was killed goes on where it stopped.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "models/part_reader.h"

namespace sinter::quant {

// How much an error in each column of a weight matters: mean squares of what it is multiplied by, by the tensor's name
// in a GGUF file; of experts one after the other.
using Importance = std::map<std::string, std::vector<float>>;

// Numbers that a file keeps of what quantizing cost, as keys of type f64.
inline constexpr const char* kQualityKeys[] = {"sinter.quality.perplexity", "sinter.quality.original_perplexity",
                                               "sinter.quality.mean_kl", "sinter.quality.kl_99_9",
                                               "sinter.quality.same_top"};

struct GgufOptions {
  std::string type;               // of quant/mixes.h; "": plain tensors as the model stores them, f16 for others
  Importance importance;          // empty: all columns alike
  bool reserves_quality = false;  // sets kQualityKeys to 0, for io::replace_f64
};

struct Progress {
  size_t done = 0, count = 0;
  std::string tensor;
  uint64_t bytes_done = 0, bytes = 0;
};
using OnQuantized = std::function<void(const Progress&)>;

struct WrittenTensor {
  std::string name, type;
  uint64_t bytes = 0;
};

// The model, a folder or a GGUF file, as the file `out`. Throws base::Error for a type that is not known and for what a
// GGUF cannot say.
std::vector<WrittenTensor> write_gguf(const std::string& model, const std::string& out, const GgufOptions& options,
                                      const OnQuantized& on_progress = {});

// The model as a plain folder: config.json, safetensors, tokenizer, chat templates. Quantized weights become numbers of
// `dtype`; "" keeps plain ones as they are stored, and makes others f16.
void write_folder(const std::string& model, const std::string& out, const std::string& dtype,
                  const OnQuantized& on_progress = {});

// Tokenizer, chat templates and generation_config.json of a model into a folder.
void copy_tokenizer(const models::PartReader& reader, const std::string& out);

}  // namespace sinter::quant
