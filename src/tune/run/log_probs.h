// Log-probabilities of given tokens by a model, as training computes them.
#pragma once
#include <vector>

#include "data/batch.h"
#include "models/transformer.h"

namespace sinter::tune {

// Of every target of a batch (T), 0 where there is none. Allocates what it needs beside the training's plan.
std::vector<float> token_logprobs(const models::Transformer& transformer, const data::MicroBatch& batch);

// The same by the model without its adapters: the reference that an adapter is held against.
std::vector<float> reference_logprobs(const models::Transformer& transformer, const data::MicroBatch& batch);

}  // namespace sinter::tune
