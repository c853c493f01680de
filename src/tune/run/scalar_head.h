// One number a token, read from the last hidden state by a row of weights: rewards and values.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "data/batch.h"
#include "models/transformer.h"
#include "spec/parameters.h"

namespace sinter::tune {

// Its tensors in a store: weight (1, C), and bias (1) or none. They train beside whatever else does.
struct ScalarHead {
  std::string weight, bias;  // names; bias may be ""
};
// `hf_prefix` stands before the names in files.
std::vector<spec::ParameterSpec> scalar_head_table(const ScalarHead& head, const spec::ModelSpec& model,
                                                   float deviation, const std::string& hf_prefix = "");

// (T, 1) f32 of every token, the bias left to read_scalars.
core::Tensor scalar_forward(const ops::Context& context, const ScalarHead& head, const models::Transformer& transformer,
                            const autograd::Variable& hidden);
// Those on the host, with the bias: in few bits it would round what it is added to.
std::vector<float> read_scalars(const ScalarHead& head, const models::Transformer& transformer,
                                const core::Tensor& values);
// Records the backward pass of slopes (T, 1) in the format of `hidden`, filled before the tape runs.
void record_scalar_backward(const ops::Context& context, const ScalarHead& head, const models::Transformer& transformer,
                            const autograd::Variable& hidden, const core::Tensor& slopes);
// Copies host floats (T) into slopes; returns the bytes, which must live until the stream has been waited for.
std::vector<std::byte> write_slopes(std::span<const float> values, const core::Tensor& slopes);

// Of every token of a batch (T), without a tape.
std::vector<float> token_scalars(const ScalarHead& head, const models::Transformer& transformer,
                                 const data::MicroBatch& batch);

}  // namespace sinter::tune
