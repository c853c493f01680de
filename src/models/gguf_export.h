// A model's metadata and tensors as a GGUF file has them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/gguf_writer.h"
#include "spec/model_spec.h"
#include "spec/parameters.h"
#include "tokenizer/tokenizer.h"

namespace sinter::models {

// A tensor of the file: a piece of a stored tensor, or the same piece of all experts.
struct GgufExportTensor {
  std::string name;
  const spec::ParameterSpec* info = nullptr;
  std::vector<const spec::ParameterPart*> parts;  // one, or one for each expert
  int64_t paired_heads = 0;                       // spec::paired_heads_in_gguf

  int64_t rows() const { return parts[0]->rows; }
  int64_t columns() const { return info->shape.rank() == 1 ? 1 : info->shape[-1]; }
  // (rows), (rows, columns) or (experts, rows, columns)
  std::vector<int64_t> shape() const;
};
// In the order of use. Points into the table. Throws base::Error for a tensor that GGUF has no name for.
std::vector<GgufExportTensor> gguf_tensors(const spec::ModelSpec& spec, const std::vector<spec::ParameterSpec>& table);
// Puts the rows of one part into the file's order.
std::vector<float> to_gguf_order(const GgufExportTensor& tensor, std::vector<float> values);
// Llama 3's scaling of RoPE as the divisors that a file lists (rope_freqs.weight); empty for others.
std::vector<float> gguf_rope_divisors(const spec::ModelSpec& spec);

// Sets general.* but the file type, and the architecture's keys. Throws base::Error for what a GGUF cannot say.
void set_model_metadata(io::GgufWriter& writer, const spec::ModelSpec& spec, const std::string& name);
// The tokenizer of `vocab_size` ids, and chat templates by name.
void set_tokenizer_metadata(io::GgufWriter& writer, const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec,
                            const std::map<std::string, std::string>& chat_templates);

}  // namespace sinter::models
