// Plain folders whose matrices are rounded to fp8 while they are loaded: half the memory of bf16, and half the bytes
// that decoding reads.
#pragma once
#include <set>
#include <string>

#include "io/tensor_folder.h"
#include "models/parameter_store.h"

namespace sinter::models {

// The linear layers of the blocks, experts too; embeddings, norms, routers and the head keep their format. Stored
// transposed (GPT-2) they stay as they are.
std::set<std::string> fp8_tensors(const spec::ModelSpec& spec);
// Reads these as e4m3 with a scale for each row (its largest value / 448), one tensor at a time, and the others as they
// are. They must stand apart in the store.
void load_in_fp8(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder);

}  // namespace sinter::models
