#include "ops/attention.h"

#include "base/error.h"
#include "kernels/fused.h"

namespace sinter::ops {

Tensor rope_table(const Context& context, const core::RaggedBatch& batch, const Tensor& inv_freq, int64_t head_dim,
                  float scale) {
  Tensor cos_sin = context.make({batch.num_tokens, head_dim}, DType::f32);
  context.kernels.rope_table(context.stream, {.positions = batch.positions,
                                              .sequence_of = batch.sequence_of,
                                              .inv_freq = inv_freq,
                                              .scale = scale,
                                              .cos_sin = cos_sin});
  return cos_sin;
}

kernels::RopeArgs rope_args(const spec::ModelSpec& spec, const Tensor& cos_sin, const Tensor& x) {
  return {.num_rotated = spec.num_heads + spec.num_kv_heads, .head_dim = spec.head_dim, .x = x, .cos_sin = cos_sin};
}

void rope(const Context& context, const Tensor& qkv, const Tensor& cos_sin, const spec::ModelSpec& spec) {
  context.kernels.rope(context.stream, rope_args(spec, cos_sin, qkv));
}

Variable attention(const Context& context, const Variable& qkv, const Tensor& cos_sin, const core::RaggedBatch& batch,
                   const kernels::AttentionShape& shape, int64_t cache_layer) {
  const int64_t T = qkv.value.rows(), H = shape.num_heads, D = shape.head_dim;
  SINTER_CHECK(qkv.value.size(-1) == (H + 2 * shape.num_kv_heads) * D, "[attention] rows are {} wide; expected {}",
               qkv.value.size(-1), (H + 2 * shape.num_kv_heads) * D);
  SINTER_CHECK(!(context.is_recording() && batch.kv), "[attention] no gradient through cached keys");
  kernels::AttentionForwardArgs args{.shape = shape, .batch = &batch, .qkv = qkv.value};
  if (batch.kv) {
    args.cache = batch.kv->cache->layer(cache_layer);
    args.block_tables = batch.kv->block_tables;
    context.kernels.kv_write(context.stream, {.num_heads = H,
                                              .num_kv_heads = shape.num_kv_heads,
                                              .head_dim = D,
                                              .qkv = qkv.value,
                                              .slots = batch.kv->slots,
                                              .cache = args.cache});
  }
  args.out = context.make({T, H * D}, qkv.value.dtype());
  if (context.is_recording()) args.lse = context.make({H, T}, DType::f32);
  context.kernels.attention_forward(context.stream, args);
  Variable result = context.make_variable(args.out);
  if (!context.is_recording()) return result;
  context.tape->record(
      [context, qkv, cos_sin, &batch, shape, out = args.out, lse = args.lse, slot = result.slot, H, T] {
        Tensor dout = take_gradient(slot, "attention");
        Tensor dqkv = context.make(qkv.value.shape(), qkv.value.dtype());
        const kernels::AttentionBackwardArgs gradient{.shape = shape,
                                                      .batch = &batch,
                                                      .qkv = qkv.value,
                                                      .out = out,
                                                      .lse = lse,
                                                      .dout = dout,
                                                      .delta = context.make({H, T}, DType::f32),
                                                      .dqkv = dqkv};
        kernels::rotated_attention_backward(context.kernels, context.stream, {gradient, cos_sin});
        accumulate(context, qkv, std::move(dqkv));
      });
  return result;
}

}  // namespace sinter::ops
