// Rotary positions and causal attention over packed QKV rows.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// Cosines and sines of every token of the batch (T, D) f32, shared by all layers.
Tensor rope_table(const Context& context, const core::RaggedBatch& batch, const Tensor& inv_freq, int64_t head_dim,
                  float scale);

// Rotates Q and K in place: the result shares the input's memory.
Variable rope(const Context& context, const Variable& qkv, const Tensor& cos_sin, const spec::ModelSpec& spec);

// The parts of rope(): the kernel's arguments for rows x, and its backward put on the tape for rows that are rotated.
kernels::RopeArgs rope_args(const spec::ModelSpec& spec, const Tensor& cos_sin, const Tensor& x);
Variable record_rope(const Context& context, const Variable& qkv, const Tensor& cos_sin, const spec::ModelSpec& spec);

// qkv (T, W) -> (T, H D). With batch.kv, keys and values are first written to layer `cache_layer` of the cache and then
// read from it; without, they are the batch's own.
Variable attention(const Context& context, const Variable& qkv, const core::RaggedBatch& batch,
                   const kernels::AttentionShape& shape, int64_t cache_layer);

}  // namespace sinter::ops
