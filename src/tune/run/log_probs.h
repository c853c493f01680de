// Log-probabilities of given tokens by a model, as training computes them, and the reference they are held against.
#pragma once
#include <vector>

#include "data/batch.h"
#include "models/open_model.h"
#include "spec/tune_recipe.h"

namespace sinter::tune {

// Of every target of a batch (T), 0 where there is none. Allocates what it needs beside the training's plan.
std::vector<float> token_logprobs(const models::Transformer& transformer, const data::MicroBatch& batch);

// The same by the model without its adapters: the reference that an adapter is held against.
std::vector<float> reference_logprobs(const models::Transformer& transformer, const data::MicroBatch& batch);

// Whether the model with its adapter off is the recipe's reference: a new adapter, and nothing else that trains.
bool has_adapter_reference(const spec::TuneRecipe& recipe);
// The reference where it is another model: tune.reference, or the model before tuning. Throws base::Error where its
// tokens are not those of `model`.
models::OpenModel open_reference(const spec::TuneRecipe& recipe, const models::Transformer& model);

}  // namespace sinter::tune
