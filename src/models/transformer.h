// The transformer, once for all families: the spec decides which parts a block has. Training passes packed sequences
// and a tape; serving passes prefill and decode mixed, with a paged cache and no tape.
#pragma once
#include <functional>
#include <vector>

#include "models/parameter_store.h"
#include "ops/attention.h"
#include "ops/context.h"
#include "ops/moe.h"
#include "parallel/context.h"
#include "parallel/expert.h"
#include "parallel/tensor.h"
#include "spec/model_spec.h"
#include "spec/schedule.h"

namespace sinter::models {

using autograd::Variable;
using core::RaggedBatch;
using ops::Context;

// What a training forward draws its random numbers by; p of every dropout comes from the spec.
struct DropoutKey {
  bool is_on = false;
  uint64_t seed = 0;
  uint64_t step = 0;         // a new mask every step
  uint64_t first_token = 0;  // number of the batch's first token in the step over all ranks and micro-batches
};

// Where a training forward leaves its losses. All tensors on the device.
struct LossPlaces {
  Tensor scale;                     // (1) f32: gradient of the total with respect to one token's loss
  Tensor losses;                    // (T) f32 out
  Tensor weights;                   // (T) f32 or empty: multiplies each token's loss, and so its gradient
  std::vector<Tensor> mtp_targets;  // per extra head (T) i32: targets further ahead
  std::vector<Tensor> mtp_losses;   // per extra head (T) f32 out
  Tensor mtp_scale;                 // (1) f32, with extra heads
  ops::BalanceLoss balance;         // of the mixture-of-experts layers
};

// The part of a model that a transformer runs: a pipeline stage, or all of it.
struct TransformerPart {
  spec::LayerRange layers{0, -1};  // count < 0: all
  bool has_embedding = true;       // begins with tokens, else with the stream of the stage before
  bool has_head = true;            // ends with final norm, head and extra heads, else with the stream
  // The ranks that share every layer; null: this one has all heads and columns. Must outlive the transformer.
  const parallel::TensorAxis* tensor = nullptr;
  // Those that share every sequence, and those that hold other experts; null: all is here.
  const parallel::ContextAxis* context = nullptr;
  const parallel::ExpertAxis* expert = nullptr;
};

// Called around every block with its layer (-1 for the embeddings, num_layers for final norm and head, then the extra
// heads'): what gathers weights before they are used and reduces gradients when they are complete. Any may be empty.
// With Recompute::full a block runs forward again between before_backward and after_backward.
struct BlockHooks {
  std::function<void(int64_t layer)> before_forward, after_forward;
  std::function<void(int64_t layer)> before_backward, after_backward;  // only with a tape
  // Before the first gradient of a block's matrices is written: right after before_backward, or where the backward pass
  // is split (Tape::split_weights) at the head of the block's later work. The embeddings' and the head's may be written
  // before it.
  std::function<void(int64_t layer)> before_gradients;
};

class Transformer {
 public:
  // Keeps references to both; the store must hold this spec's tensors, those of the part.
  Transformer(const spec::ModelSpec& spec, ParameterStore& store, const TransformerPart& part = {});

  // The residual stream after the last block, normalised: (T, C). `trunk` (may be null) receives it before the norm.
  Variable forward(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout,
                   Variable* trunk = nullptr, const ops::BalanceLoss& balance = {}) const;
  // What extra head j reads its logits from: (T, C), from the trunk.
  Variable extra_hidden(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout,
                        const Variable& trunk, size_t j) const;
  // Logits of rows of hidden states: (R, C) -> (R, V) f32. Extra heads share the head. Not where ranks share it.
  Tensor logits(const Context& context, const Tensor& hidden) const;
  // Of a part without head: the residual stream after its last block, (T, C). `input` (T, C): the stream of the stage
  // before, for a part without embedding; its gradient gathers there.
  Variable stage(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout, const Variable& input,
                 const ops::BalanceLoss& balance = {}) const;
  // Forward and the loss of every supervised token; with a tape also the head's gradients. Then tape->backward(), until
  // which the batch must live.
  // `input` as for stage().
  void loss(const Context& context, const RaggedBatch& batch, const DropoutKey& dropout, const LossPlaces& places,
            const Variable& input = {}) const;

  // The head and the loss of its rows: hidden (T, C) is what forward() gave. With a tape also the gradients; without,
  // it may be run first to see the losses that weights depend on. places: scale, losses, weights.
  void head_loss(const Context& context, const Variable& hidden, const Tensor& targets, const LossPlaces& places) const;

  const spec::ModelSpec& spec() const { return spec_; }
  const TransformerPart& part() const { return part_; }
  ParameterStore& store() const { return store_; }
  BlockHooks hooks;
  // Called in every forward with a router's logits (T, E) f32, before the experts are chosen by them; may change them.
  std::function<void(int64_t layer, const Tensor& logits)> on_router_logits;

 private:
  struct Block {
    int64_t layer = 0;
    Parameter *norm1 = nullptr, *norm1_bias = nullptr, *qkv = nullptr, *qkv_bias = nullptr, *q_norm = nullptr,
              *k_norm = nullptr, *out = nullptr, *out_bias = nullptr, *norm2 = nullptr, *norm2_bias = nullptr,
              *up = nullptr, *up_bias = nullptr, *down = nullptr, *down_bias = nullptr, *router = nullptr;
  };
  // What all blocks of one forward share.
  struct Shared {
    const RaggedBatch& batch;  // must outlive the backward pass
    DropoutKey dropout;
    Tensor cos_sin;  // (T, D) f32, or empty
    ops::BalanceLoss balance;
  };
  // The residual stream is x + residual.
  struct Stream {
    Variable x;         // (T, C): what the last sublayer adds, or the stream itself
    Variable residual;  // (T, C): the stream before it; empty where x is the stream
  };
  Block make_block(const std::string& prefix, int64_t layer) const;
  Tensor make_cos_sin(const Context& context, const RaggedBatch& batch) const;
  Stream run_block(const Context& context, const Block& block, Stream stream, const Shared& shared) const;
  Stream block_body(const Context& context, const Block& block, const Stream& stream, const Shared& shared) const;
  // The sublayers: from normalised rows h (T, C) and the stream they came from to the stream after.
  Stream attention_part(const Context& context, const Block& block, const Variable& h, const Variable& residual,
                        const Shared& shared) const;
  Stream mlp_part(const Context& context, const Block& block, const Variable& h, const Tensor& unrounded,
                  const Variable& residual, const Shared& shared) const;
  bool adds_residual(const Context& context, const Parameter& last, const Variable& residual,
                     const Shared& shared) const;
  Variable drop(const Context& context, const Variable& x, float p, const Shared& shared, uint64_t use) const;
  Stream run_layers(const Context& context, const Shared& shared, const Variable& input) const;
  Variable final_norm(const Context& context, const Stream& stream, Variable* trunk) const;
  // Calls of the hooks of a layer around what is done between them.
  void begin_layer(const Context& context, int64_t layer) const;
  void end_layer(const Context& context, int64_t layer) const;
  // Where a sublayer that ranks share begins and ends (parallel/tensor.h); nothing on one rank.
  Variable enter(const Context& context, const Variable& h) const;
  Variable leave(const Context& context, const Variable& part) const;
  // The bias of a row-cut product, on the one rank that adds it; else null.
  Parameter* added_once(Parameter* bias) const;
  Parameter& head() const { return spec_.tied_head ? *embedding_ : *head_; }

  const spec::ModelSpec spec_;
  spec::ModelSpec local_;  // with the heads of this rank
  ParameterStore& store_;
  const TransformerPart part_;
  Parameter *embedding_ = nullptr, *position_ = nullptr, *final_norm_ = nullptr, *final_norm_bias_ = nullptr,
            *head_ = nullptr;
  std::vector<Block> blocks_, mtp_blocks_;
  Tensor inv_freq_;  // (1, D/2) f32; empty for dynamic scaling, which makes its own per batch
};

}  // namespace sinter::models
