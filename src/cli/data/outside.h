// What the data pipeline gets from the layers above it: evaluation items of task files, a trained model as a scorer, a
// tokenizer's files.
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

// The tokenizer's files beside the shards, where a run trained on them finds it and its model has it. `eos` names the
// token that ends a document where it is not "".
void write_tokenizer_beside(const std::string& shard, const std::string& tokenizer, const std::string& eos = "");

}  // namespace sinter::cli
