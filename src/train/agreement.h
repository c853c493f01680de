// What must be the same on all ranks before a run begins: otherwise they train apart and save a mixture of models.
#pragma once
#include "comm/communicator.h"
#include "data/loader.h"
#include "spec/recipe.h"

namespace sinter::train {

// Throw comm::JointError naming the rank and what it has another of. Keys that may differ: train.device, train.threads,
// data.cache.
void check_same_recipe(comm::Communicator& comm, const spec::Recipe& recipe);
// What the sources hold, a line each: counts, vocabulary, tokenizer and a hash of some windows.
std::string describe_data(const data::Loader& loader);
// By counts, vocabulary, tokenizer and some windows of each source.
void check_same_data(comm::Communicator& comm, const data::Loader& loader);

}  // namespace sinter::train
