// Models in GGUF files: metadata to ModelSpec, tensors to weights as they lie there.
#pragma once
#include <memory>

#include "io/gguf.h"
#include "models/parameter_store.h"

namespace sinter::models {

// What the metadata and the shapes of the tensors say. Throws base::Error naming the file and the key: for an
// architecture that is not known, keys that are missing or out of range, and keys that would change the model's answers
// and are not supported.
spec::ModelSpec gguf_model_spec(const io::GgufFile& file);

// Names of the tensors to be kept apart from the flat buffers (StoreOptions::apart): those that the file has in blocks.
std::set<std::string> gguf_tensors_apart(const spec::ModelSpec& spec, const io::GgufFile& file);

// Gives every tensor of the store its weights. Blocks stay where they lie in the file, whose maps the store then keeps
// alive, but for Q and K whose rows the file has in another order, and on other devices than the CPU: these are copied.
// Throws base::Error naming a tensor that is missing, of another shape, or that the model has no place for.
void load_gguf_weights(ParameterStore& store, const spec::ModelSpec& spec, std::shared_ptr<const io::GgufFile> file);

// One piece of a stored tensor as plain numbers: (rows, columns), or (rows).
std::vector<float> read_gguf_part(const io::GgufFile& file, const spec::ModelSpec& spec,
                                  const spec::ParameterSpec& info, const spec::ParameterPart& part);

// Where row r of a head's rows stands in the file (spec::FamilyInfo::has_paired_rows_in_gguf).
inline int64_t paired_row(int64_t r, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  return r < half ? 2 * r : 2 * (r - half) + 1;
}

}  // namespace sinter::models
