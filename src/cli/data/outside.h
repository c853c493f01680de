// What the data pipeline gets from the layers above it: evaluation items of task files, a trained model as a scorer.
#pragma once
#include <string>
#include <vector>

#include "data/dedup/decontaminate.h"
#include "data/pipeline/recipe.h"

namespace sinter::cli {

// Questions and right answers of evaluation tasks (docs/evaluation.md), without examples. `data_folder`: where their
// files lie; "" = $SINTER_EVAL_DATA, else data/eval. Throws base::Error for unknown tasks and missing files.
std::vector<data::EvalItem> evaluation_items(const std::vector<std::string>& tasks, const std::string& data_folder);

// Fills what a recipe names and the pipeline cannot open itself: task_items, scorer.
void fill_from_outside(data::PipelineRecipe& recipe);

}  // namespace sinter::cli
