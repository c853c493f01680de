// parallel.layout = "auto" and "tune": the layout of a run from the planner, or from trying its best few.
#pragma once
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "spec/recipe.h"

namespace sinter::train {

// What fills an absent model.vocab_size: that of the tokenizer, where it is on this machine; else throws base::Error.
int64_t vocabulary_of(const spec::Recipe& recipe);

// Valid layouts of a recipe on so many ranks that fit the device by the planner's memory, fastest first by its time.
// Data, tensor, pipeline and context axes and ZeRO are free; the rest is the recipe's. Throws base::Error when none is.
std::vector<spec::ParallelSpec> rank_layouts(const spec::Recipe& recipe, const spec::ModelSpec& model, int64_t ranks,
                                             double device_bytes);

// Collective. The layout that a run takes. `try_layout` trains some steps under one and returns seconds a step.
using TryLayout = std::function<double(const spec::Recipe& recipe)>;
spec::ParallelSpec choose_layout(const spec::Recipe& recipe, comm::Communicator& comm, const TryLayout& try_layout);

}  // namespace sinter::train
