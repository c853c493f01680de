#include "models/transformer.h"

#include "base/error.h"
#include "base/rng.h"
#include "ops/activation.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/mlp.h"
#include "ops/norm.h"
#include "spec/rope.h"

namespace sinter::models {
namespace {

// Uses of dropout in a block; the stream of random numbers is (layer, use, step).
enum DropoutUse : uint64_t { kEmbeddingDrop, kAttentionDrop, kAttentionOutDrop, kMlpOutDrop };

kernels::RandomKey random_key(const DropoutKey& key, uint64_t layer, uint64_t use) {
  return {key.seed, base::mix_bits(base::mix_bits(key.step, layer), use)};
}

// Around the gradients of a layer's matrices, wherever the tape makes them. A block that runs again in the backward
// pass makes all of its gradients there.
void record_hook(const Context& context, int64_t layer, const std::function<void(int64_t)>& hook, bool is_block) {
  const bool is_at_once = is_block && context.tape->mode() == autograd::Recompute::full;
  context.tape->record([tape = context.tape, layer, &hook, is_at_once] {
    if (is_at_once) return hook(layer);
    tape->later([layer, &hook] { hook(layer); });
  });
}

// The batch's noise on the embeddings that this rank holds, while it trains. Gradients pass it as they are.
void add_noise(const Context& context, const RaggedBatch& batch, const TransformerPart& part,
               const Tensor& embeddings) {
  if (!context.is_recording() || !batch.noise.scales) return;
  const int64_t rows = embeddings.rows(), first = part.tensor ? part.tensor->first_row(batch.num_tokens) : 0;
  context.kernels.row_noise(context.stream, {.streams = batch.noise.streams.slice(first, rows),
                                             .scales = batch.noise.scales.slice(first, rows),
                                             .y = embeddings});
}

}  // namespace

Transformer::Transformer(const spec::ModelSpec& spec, ParameterStore& store, const TransformerPart& part)
    : spec_(spec), local_(spec), store_(store), part_(part) {
  if (part.tensor) {
    local_.num_heads = part.tensor->heads().num_heads;
    local_.num_kv_heads = part.tensor->heads().num_kv_heads;
  }
  if (part.has_embedding) {
    embedding_ = &store.get("embedding.weight");
    position_ = store.find("position.weight");
  }
  if (part.has_head) {
    if (spec.tied_head) embedding_ = &store.get("embedding.weight");
    final_norm_ = &store.get("final_norm.weight");
    final_norm_bias_ = store.find("final_norm.bias");
    head_ = store.find("head.weight");
  }
  const int64_t begin = part.layers.begin, end = part.layers.count < 0 ? spec.num_layers : begin + part.layers.count;
  for (int64_t l = begin; l < end; ++l) blocks_.push_back(make_block("layers." + std::to_string(l) + ".", l));
  for (int64_t j = 0; part.has_head && j < spec.mtp_heads; ++j) {
    mtp_blocks_.push_back(make_block("mtp." + std::to_string(j) + ".", spec.num_layers + 1 + j));
  }
  if (spec.rope.kind != spec::RopeKind::none && spec.rope.kind != spec::RopeKind::dynamic) {
    inv_freq_ = core::make_tensor(core::runtime(store.options().device).allocator(), {1, spec.head_dim / 2},
                                  spec::rope_inv_freq(spec.rope, spec.head_dim, spec.max_positions));
  }
}

Transformer::Block Transformer::make_block(const std::string& prefix, int64_t layer) const {
  auto find = [&](const char* name) { return store_.find(prefix + name); };
  const bool is_sparse = spec_.is_sparse(layer);
  return {.layer = layer,
          .norm1 = find("attention_norm.weight"),
          .norm1_bias = find("attention_norm.bias"),
          .qkv = find("attention.qkv.weight"),
          .qkv_bias = find("attention.qkv.bias"),
          .q_norm = find("attention.q_norm.weight"),
          .k_norm = find("attention.k_norm.weight"),
          .out = find("attention.out.weight"),
          .out_bias = find("attention.out.bias"),
          .norm2 = find("mlp_norm.weight"),
          .norm2_bias = find("mlp_norm.bias"),
          .up = find(is_sparse ? "moe.up.weight" : "mlp.up.weight"),
          .up_bias = find("mlp.up.bias"),
          .down = find(is_sparse ? "moe.down.weight" : "mlp.down.weight"),
          .down_bias = find("mlp.down.bias"),
          .router = find("moe.router.weight")};
}

Tensor Transformer::make_cos_sin(const Context& context, const RaggedBatch& batch) const {
  if (spec_.rope.kind == spec::RopeKind::none) return {};
  Tensor inv_freq = inv_freq_;
  if (!inv_freq) {  // dynamic: the speed depends on each sequence's length
    SINTER_CHECK(static_cast<int64_t>(batch.host_contexts.size()) == batch.num_sequences,
                 "[rope] dynamic scaling needs the length of each of {} sequences, found {}", batch.num_sequences,
                 batch.host_contexts.size());
    std::vector<float> rows;
    for (int32_t length : batch.host_contexts) {
      std::vector<float> row = spec::rope_inv_freq(spec_.rope, spec_.head_dim, length);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    inv_freq = core::make_tensor(context.memory, {batch.num_sequences, spec_.head_dim / 2}, rows);
  }
  return ops::rope_table(context, batch, inv_freq, spec_.head_dim, spec::rope_scale(spec_.rope));
}

Variable Transformer::drop(const Context& context, const Variable& x, float p, const Shared& shared,
                           uint64_t use) const {
  const DropoutKey& key = shared.dropout;
  if (!key.is_on || p == 0.0f) return x;
  const int64_t tokens = shared.batch.num_tokens, first_row = part_.tensor ? part_.tensor->first_row(tokens) : 0;
  if (shared.batch.context) {
    const Tensor rows = shared.batch.context->rows.slice(first_row, x.value.rows());
    return ops::dropout_rows(context, x, p, {key.seed, use}, rows);
  }
  const uint64_t first = key.first_token + static_cast<uint64_t>(first_row);
  return ops::dropout(context, x, p, {key.seed, use}, first * static_cast<uint64_t>(spec_.hidden));
}

// Whether a sublayer's last product adds the stream: nothing may come between them, and a router wants to see the sum
// unrounded.
bool Transformer::adds_residual(const Context& context, const Parameter& last, const Variable& residual,
                                const Shared& shared) const {
  if (part_.tensor) return false;  // the residual is added to a sum over ranks
  const bool drops = shared.dropout.is_on && spec_.dropout.residual > 0;
  return !drops && ops::adds_residual(context, last, residual.value.rows());
}

Transformer::Stream Transformer::attention_part(const Context& context, const Block& block, const Variable& h,
                                                const Variable& residual, const Shared& shared) const {
  const Variable rows = enter(context, h);  // (T, C)
  Variable qkv;                             // (T, W)
  if (shared.cos_sin && !block.q_norm) {
    qkv = ops::rotated_linear(context, rows, *block.qkv, block.qkv_bias, shared.cos_sin, local_);
  } else {
    qkv = ops::linear(context, rows, *block.qkv, block.qkv_bias);
    if (block.q_norm) qkv = ops::head_norm(context, qkv, *block.q_norm, *block.k_norm, local_);
    if (shared.cos_sin) ops::rope(context, qkv.value, shared.cos_sin, local_);
  }
  kernels::AttentionShape shape{.num_heads = local_.num_heads,
                                .num_kv_heads = local_.num_kv_heads,
                                .head_dim = spec_.head_dim,
                                .window = spec_.window_of(block.layer),
                                .scale = spec_.scale_of(block.layer)};
  if (shared.dropout.is_on) {
    shape.dropout = spec_.dropout.attention;
    shape.key = random_key(shared.dropout, static_cast<uint64_t>(block.layer), kAttentionDrop);
    shape.first_token = static_cast<int64_t>(shared.dropout.first_token);
    shape.total_heads = spec_.num_heads;
    if (part_.tensor) shape.first_head = part_.tensor->heads().first_head;
  }
  Variable mixed = part_.context
                       ? part_.context->attention(context, qkv, shared.cos_sin, shared.batch, shape)
                       : ops::attention(context, qkv, shared.cos_sin, shared.batch, shape, block.layer);  // (T, H D)
  if (!block.router && adds_residual(context, *block.out, residual, shared)) {
    return {ops::linear(context, mixed, *block.out, block.out_bias, residual), {}};
  }
  Variable out = leave(context, ops::linear(context, mixed, *block.out, added_once(block.out_bias)));  // (T, C)
  out = drop(context, out, spec_.dropout.residual, shared,
             random_key(shared.dropout, static_cast<uint64_t>(block.layer), kAttentionOutDrop).stream);
  return {out, residual};
}

Transformer::Stream Transformer::mlp_part(const Context& context, const Block& block, const Variable& h,
                                          const Tensor& unrounded, const Variable& residual,
                                          const Shared& shared) const {
  auto drop_mlp = [&](const Variable& out) {
    return drop(context, out, spec_.dropout.residual, shared,
                random_key(shared.dropout, static_cast<uint64_t>(block.layer), kMlpOutDrop).stream);
  };
  if (block.router) {
    std::function<void(const Tensor&)> on_logits;
    if (on_router_logits) on_logits = [&](const Tensor& logits) { on_router_logits(block.layer, logits); };
    // Experts are cut inside, so that all that flows back from them is in parts; the balance loss's gradient is one
    // rank's part.
    ops::BalanceLoss balance = shared.balance;
    if (part_.tensor && !part_.tensor->adds_bias()) balance.scale = {};
    if (part_.context) {
      balance.sum_counts = [this](const Tensor& counts) { part_.context->group().all_reduce(counts); };
      balance.share = 1.0f / static_cast<float>(part_.context->size());
    }
    ops::Experts experts;
    if (part_.expert) {
      experts = [this, &block](const Context& inner, const Variable& rows, const Tensor& offsets) {
        return part_.expert->mlp(inner, rows, offsets, *block.up, *block.down, spec_);
      };
    }
    const Tensor wide = part_.tensor ? part_.tensor->gather_rows(context, unrounded) : unrounded;
    Variable mixed = ops::moe(context, enter(context, h), wide, {*block.router, *block.up, *block.down}, spec_, balance,
                              on_logits, experts);
    return {drop_mlp(leave(context, mixed)), residual};
  }
  const bool adds = adds_residual(context, *block.down, residual, shared);
  const ops::MlpWeights weights{*block.up, block.up_bias, *block.down, added_once(block.down_bias)};
  auto mlp = spec_.gated_mlp ? ops::gated_mlp : ops::plain_mlp;
  Variable down = mlp(context, enter(context, h), weights, spec_.activation, adds ? residual : Variable{});
  down = leave(context, down);  // (T, C)
  if (adds) return {down, {}};
  return {drop_mlp(down), residual};
}

Transformer::Stream Transformer::block_body(const Context& context, const Block& block, const Stream& stream,
                                            const Shared& shared) const {
  ops::NormResult first =
      ops::norm(context, stream.x, stream.residual, *block.norm1, block.norm1_bias, spec_.norm, spec_.norm_eps);
  Stream attended = attention_part(context, block, first.y, first.sum, shared);
  Tensor unrounded;  // (T, C) f32, for the router
  if (block.router && attended.x.value.dtype() != core::DType::f32) {
    unrounded = ops::norm_in_f32(context, attended.x.value, attended.residual.value, *block.norm2, block.norm2_bias,
                                 spec_.norm, spec_.norm_eps);
  }
  ops::NormResult second =
      ops::norm(context, attended.x, attended.residual, *block.norm2, block.norm2_bias, spec_.norm, spec_.norm_eps);
  return mlp_part(context, block, second.y, unrounded, second.sum, shared);
}

Transformer::Stream Transformer::run_block(const Context& context, const Block& block, Stream stream,
                                           const Shared& shared) const {
  begin_layer(context, block.layer);
  if (!context.is_recording() || context.tape->mode() != autograd::Recompute::full) {
    Stream result = block_body(context, block, stream, shared);
    end_layer(context, block.layer);
    return result;
  }
  std::vector<Variable> inputs{stream.x};
  if (stream.residual.value) inputs.push_back(stream.residual);
  auto outputs = ops::checkpoint(
      context, inputs,
      [this, &block, shared](const Context& inner, const std::vector<Variable>& in) -> std::vector<Variable> {
        // The balance loss was added by the first run; its gradient belongs to the second.
        Shared again{shared.batch,
                     shared.dropout,
                     shared.cos_sin,
                     {inner.is_recording() ? Tensor() : shared.balance.loss, shared.balance.scale}};
        Stream result = block_body(inner, block, {in[0], in.size() > 1 ? in[1] : Variable{}}, again);
        std::vector<Variable> out{result.x};
        if (result.residual.value) out.push_back(result.residual);
        return out;
      });
  end_layer(context, block.layer);
  return {outputs[0], outputs.size() > 1 ? outputs[1] : Variable{}};
}

void Transformer::begin_layer(const Context& context, int64_t layer) const {
  if (hooks.before_forward) hooks.before_forward(layer);
  if (context.is_recording() && hooks.after_backward)
    record_hook(context, layer, hooks.after_backward, layer >= 0 && layer < spec_.num_layers);
}

void Transformer::end_layer(const Context& context, int64_t layer) const {
  if (hooks.after_forward) hooks.after_forward(layer);
  if (context.is_recording() && hooks.before_gradients)
    record_hook(context, layer, hooks.before_gradients, layer >= 0 && layer < spec_.num_layers);
  if (context.is_recording() && hooks.before_backward) {
    context.tape->record([this, layer] { hooks.before_backward(layer); });
  }
}

Variable Transformer::enter(const Context& context, const Variable& h) const {
  return part_.tensor ? part_.tensor->enter(context, h) : h;
}

Variable Transformer::leave(const Context& context, const Variable& part) const {
  return part_.tensor ? part_.tensor->leave(context, part) : part;
}

Parameter* Transformer::added_once(Parameter* bias) const {
  return part_.tensor && !part_.tensor->adds_bias() ? nullptr : bias;
}

void Transformer::head_loss(const Context& context, const Variable& hidden, const Tensor& targets,
                            const LossPlaces& places) const {
  if (!part_.tensor) {
    ops::linear_cross_entropy(context, hidden, head(), targets, places.scale, places.losses, places.weights);
    return;
  }
  part_.tensor->linear_cross_entropy(context, enter(context, hidden), head(), targets, places.scale, places.losses,
                                     places.weights);
}

Variable Transformer::final_norm(const Context& context, const Stream& stream, Variable* trunk) const {
  ops::NormResult result =
      ops::norm(context, stream.x, stream.residual, *final_norm_, final_norm_bias_, spec_.norm, spec_.norm_eps);
  if (trunk) *trunk = result.sum;
  return result.y;
}

Transformer::Stream Transformer::run_layers(const Context& given, const Shared& shared, const Variable& input) const {
  Context context = given;
  context.compute = store_.options().compute;
  const DropoutKey& key = shared.dropout;
  context.adapter_dropout = {key.is_on && context.is_recording(), key.seed, key.step, key.first_token};
  Stream stream{input, {}};
  if (part_.has_embedding) {
    begin_layer(context, -1);
    Variable x = part_.tensor ? part_.tensor->embedding(context, shared.batch, *embedding_, position_)
                              : ops::embedding(context, shared.batch, *embedding_, position_);  // (T, C)
    add_noise(context, shared.batch, part_, x.value);
    x = drop(context, x, spec_.dropout.embedding, shared, random_key(shared.dropout, 0, kEmbeddingDrop).stream);
    stream.x = x;
    end_layer(context, -1);
  }
  SINTER_CHECK(static_cast<bool>(stream.x.value), "[transformer] layers {} and on need the stream of the stage before",
               part_.layers.begin);
  for (const Block& block : blocks_) stream = run_block(context, block, std::move(stream), shared);
  return stream;
}

Variable Transformer::stage(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout,
                            const Variable& input, const ops::BalanceLoss& balance) const {
  const Stream stream = run_layers(context, {batch, dropout, make_cos_sin(context, batch), balance}, input);
  return stream.residual.value ? ops::add(context, stream.x, stream.residual) : stream.x;
}

Variable Transformer::forward(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout,
                              Variable* trunk, const ops::BalanceLoss& balance) const {
  const Stream stream = run_layers(context, {batch, dropout, make_cos_sin(context, batch), balance}, {});
  begin_layer(context, spec_.num_layers);
  Variable hidden = final_norm(context, stream, trunk);
  end_layer(context, spec_.num_layers);
  return hidden;
}

Variable Transformer::extra_hidden(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout,
                                   const Variable& trunk, size_t j) const {
  SINTER_CHECK(j < mtp_blocks_.size(), "[transformer] extra head {} of {}", j, mtp_blocks_.size());
  const Shared shared{batch, dropout, make_cos_sin(context, batch), {}};
  return final_norm(context, run_block(context, mtp_blocks_[j], {trunk, {}}, shared), nullptr);
}

Tensor Transformer::logits(const Context& context, const Tensor& hidden) const {
  SINTER_CHECK(!part_.tensor, "[logits] the head is cut among {} ranks; none has the logits of all {} tokens",
               part_.tensor->size(), spec_.vocab_size);
  Tensor y = context.make({hidden.rows(), spec_.vocab_size}, core::DType::f32);
  ops::linear_forward(context, hidden, head(), nullptr, {}, y);
  return y;
}

void Transformer::loss(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout,
                       const LossPlaces& places, const Variable& input) const {
  SINTER_CHECK(static_cast<bool>(batch.targets), "[loss] the batch has no targets");
  Variable trunk;
  // Extra heads are trained with, never read from: without targets for them they are left out.
  const size_t num_extra = places.mtp_targets.empty() ? 0 : mtp_blocks_.size();
  SINTER_CHECK(places.mtp_targets.size() >= num_extra && places.mtp_losses.size() >= num_extra,
               "[loss] targets for {} extra heads of {}", places.mtp_targets.size(), num_extra);
  const Stream stream = run_layers(context, {batch, dropout, make_cos_sin(context, batch), places.balance}, input);
  begin_layer(context, spec_.num_layers);
  Variable hidden = final_norm(context, stream, num_extra > 0 ? &trunk : nullptr);
  head_loss(context, hidden, batch.targets, places);
  for (size_t j = 0; j < num_extra; ++j) {
    Variable ahead = extra_hidden(context, batch, dropout, trunk, j);
    head_loss(context, ahead, places.mtp_targets[j],
              {.scale = places.mtp_scale, .losses = places.mtp_losses[j], .weights = places.weights});
  }
  end_layer(context, spec_.num_layers);
}

}  // namespace sinter::models
