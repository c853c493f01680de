// Rotary positions and causal attention over packed QKV rows.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// Cosines and sines of every token of the batch (T, D) f32, shared by all layers.
Tensor rope_table(const Context& context, const core::RaggedBatch& batch, const Tensor& inv_freq, int64_t head_dim,
                  float scale);

// Rotates queries and keys of rows (T, W) in place. Its gradient is a part of attention()'s.
void rope(const Context& context, const Tensor& qkv, const Tensor& cos_sin, const spec::ModelSpec& spec);
kernels::RopeArgs rope_args(const spec::ModelSpec& spec, const Tensor& cos_sin, const Tensor& x);

// qkv (T, W) -> (T, H D). With batch.kv, keys and values are first written to layer `cache_layer` of the cache and then
// read from it; without, they are the batch's own. With cos_sin the rows were rotated by these angles, and the gradient
// is that of the rows before.
Variable attention(const Context& context, const Variable& qkv, const Tensor& cos_sin, const core::RaggedBatch& batch,
                   const kernels::AttentionShape& shape, int64_t cache_layer);

}  // namespace sinter::ops
