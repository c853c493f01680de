// An adapter's terms added into the weights they stand beside: a model like any other.
#pragma once
#include <string>
#include <vector>

#include "models/parameter_store.h"
#include "tune/adapter/peft.h"

namespace sinter::tune {

// values (of the whole weight `info`) become those with its adapters among `tensors` added; for a module that was saved
// whole, those of the adapter.
void merge_into(std::vector<float>& values, const spec::ParameterSpec& info, const std::vector<AdapterTensor>& tensors);

struct MergeOptions {
  base::DType dtype = base::DType::bf16;  // of the model that is written
};
struct MergeResult {
  int64_t tensors = 0, changed = 0;  // stored tensors, and those that an adapter had a part in
};
// Writes the folder `out`: the base's config, tokenizer and weights with the adapter in them. Holds one stored tensor
// at a time. `base` may be empty: the one that the adapter names, from its folder. Throws base::Error when `out` is
// there.
MergeResult merge_adapter(const std::string& base, const std::string& adapter, const std::string& out,
                          const MergeOptions& options);
// The base an adapter folder names. Throws base::Error when there is no such folder.
std::string base_of(const std::string& adapter);

}  // namespace sinter::tune
