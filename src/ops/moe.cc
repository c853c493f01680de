#include "ops/moe.h"

#include "ops/activation.h"
#include "ops/linear.h"

namespace sinter::ops {
namespace {

// Which rows go to which expert. The tensors stay on the device.
struct Routing {
  Tensor probs;          // (T, E) f32
  Tensor experts;        // (T, k) i32
  Variable weights;      // (T, k) f32
  Tensor group_offsets;  // (E + 1) i32
  Tensor all_offsets;    // (E + 1) i32: of all ranks that share the tokens; group_offsets itself where there is one
  Tensor row_of_slot;    // (T k) i32
  Tensor slot_of_row;    // (T k) i32
};

// The router's product in f32 from the master weights and, where they are given, unrounded rows, whatever the compute
// format: close calls between experts should not hang on rounding more than they must.
Variable router_logits(const Context& context, const Variable& x, const Tensor& unrounded, Parameter& router) {
  auto to_f32 = [](const Context& where, const Tensor& t) {
    if (t.dtype() == DType::f32) return t;
    Tensor wide = where.make(t.shape(), DType::f32);
    where.kernels.axpby(where.stream, {.x = t, .y = wide});
    return wide;
  };
  auto weight_of = [to_f32](const Context& where, const Parameter& p) {  // (E, C); frozen in 16 bits it has no master
    return p.master ? p.master : to_f32(where, p.weight.data);
  };
  const Tensor weight = weight_of(context, router);
  Tensor y = context.make({x.value.rows(), weight.size(0)}, DType::f32);
  context.kernels.matmul(
      context.stream,
      {.a = unrounded ? unrounded : to_f32(context, x.value), .b = {.data = weight}, .c = y, .transpose_b = true});
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable place = x.place();
  context.tape->record([context, to_f32, weight_of, saved = x.save(), place, slot = result.slot, &router] {
    Tensor dy = take_gradient(slot, "router"), x_wide = to_f32(context, saved.get());
    const DType dtype = saved.get().dtype();
    Tensor dx = context.make(x_wide.shape(), DType::f32);
    context.kernels.matmul(context.stream, {.a = dy, .b = {.data = weight_of(context, router)}, .c = dx});
    if (router.grad) {
      context.kernels.matmul(context.stream, {.a = dy,
                                              .b = {.data = x_wide},
                                              .c = router.grad.tensor(),
                                              .transpose_a = true,
                                              .accumulate = router.grad.accumulates(),
                                              .c_squares = router.grad.squares()});
      router.grad.wrote_with_squares();
    }
    if (dtype != DType::f32) {
      Tensor rounded = context.make(dx.shape(), dtype);
      context.kernels.axpby(context.stream, {.x = dx, .y = rounded});
      dx = rounded;
    }
    accumulate(context, place, std::move(dx));
  });
  return result;
}

Routing route(const Context& context, const Variable& logits, const spec::MoeSpec& moe, const BalanceLoss& balance) {
  const int64_t T = logits.value.rows(), E = moe.num_experts, k = moe.experts_per_token;
  Routing r{.probs = context.make({T, E}, DType::f32),
            .experts = context.make({T, k}, DType::i32),
            .weights = context.make_variable(context.make({T, k}, DType::f32)),
            .group_offsets = context.make({E + 1}, DType::i32),
            .row_of_slot = context.make({T * k}, DType::i32),
            .slot_of_row = context.make({T * k}, DType::i32)};
  context.kernels.router_forward(context.stream, {.experts_per_token = k,
                                                  .norm_topk_prob = moe.norm_topk_prob,
                                                  .logits = logits.value,
                                                  .probs = r.probs,
                                                  .experts = r.experts,
                                                  .weights = r.weights.value});
  context.kernels.expert_sort(context.stream, {.experts = r.experts,
                                               .group_offsets = r.group_offsets,
                                               .row_of_slot = r.row_of_slot,
                                               .slot_of_row = r.slot_of_row});
  r.all_offsets = r.group_offsets;
  Tensor scale = balance.scale;
  // The kernels divide sums over all ranks by the tokens of one, twice: in the shares of slots and in the means.
  const float factor = balance.share * balance.share;
  if (balance.sum_counts && (balance.loss || scale)) {
    r.all_offsets = context.make({E + 1}, DType::i32);
    core::runtime(context.stream.device)
        .copy_within(r.all_offsets.raw(), r.group_offsets.raw(), r.group_offsets.bytes(), context.stream);
    balance.sum_counts(r.all_offsets);
    if (scale) {
      Tensor scaled = context.make({1}, DType::f32);
      context.kernels.axpby(context.stream, {.x = scale, .y = scaled, .alpha = factor});
      scale = scaled;
    }
  }
  if (balance.loss && !balance.sum_counts) {
    context.kernels.balance_loss(context.stream,
                                 {.probs = r.probs, .group_offsets = r.group_offsets, .loss = balance.loss});
  } else if (balance.loss) {
    const Tensor own = context.make({1}, DType::f32);
    context.kernels.fill(context.stream, {own, 0.0f});
    context.kernels.balance_loss(context.stream, {.probs = r.probs, .group_offsets = r.all_offsets, .loss = own});
    context.kernels.axpby(context.stream, {.x = own, .y = balance.loss, .alpha = factor, .beta = 1});
  }
  if (!context.is_recording()) return r;
  context.tape->record([context, logits, r, norm_topk_prob = moe.norm_topk_prob, scale] {
    Tensor dlogits = context.make(logits.value.shape(), logits.value.dtype());
    context.kernels.router_backward(context.stream, {.norm_topk_prob = norm_topk_prob,
                                                     .dweights = take_gradient(r.weights.slot, "router"),
                                                     .probs = r.probs,
                                                     .experts = r.experts,
                                                     .weights = r.weights.value,
                                                     .group_offsets = r.all_offsets,
                                                     .balance_scale = scale,
                                                     .dlogits = dlogits});
    accumulate(context, logits, std::move(dlogits));
  });
  return r;
}

// Copies each token's row to the k places of its experts; the gradient sums them back.
Variable gather(const Context& context, const Variable& x, const Routing& r) {
  const int64_t C = x.value.size(-1);
  Tensor rows = context.make({r.slot_of_row.num_elements(), C}, x.value.dtype());
  context.kernels.expert_gather(context.stream, {.x = x.value, .slot_of_row = r.slot_of_row, .y = rows});
  Variable result = context.make_variable(std::move(rows));
  if (!context.is_recording()) return result;
  Variable place = x.place();
  context.tape->record([context, place, slot = result.slot, row_of_slot = r.row_of_slot, shape = x.value.shape()] {
    Tensor drows = take_gradient(slot, "expert_gather");
    Tensor dx = context.make(shape, drows.dtype());
    context.kernels.expert_combine(context.stream, {.x = drows, .row_of_slot = row_of_slot, .y = dx});
    accumulate(context, place, std::move(dx));
  });
  return result;
}

Variable combine(const Context& context, const Variable& rows, const Routing& r) {
  const int64_t T = r.weights.value.size(0), C = rows.value.size(-1);
  Tensor y = context.make({T, C}, rows.value.dtype());
  context.kernels.expert_combine(context.stream,
                                 {.x = rows.value, .row_of_slot = r.row_of_slot, .weights = r.weights.value, .y = y});
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  context.tape->record([context, rows, slot = result.slot, r] {
    Tensor dy = take_gradient(slot, "expert_combine");
    Tensor drows = context.make(rows.value.shape(), rows.value.dtype());
    Tensor dweights = context.make(r.weights.value.shape(), DType::f32);
    context.kernels.expert_combine_backward(context.stream, {.dy = dy,
                                                             .x = rows.value,
                                                             .row_of_slot = r.row_of_slot,
                                                             .weights = r.weights.value,
                                                             .dx = drows,
                                                             .dweights = dweights});
    accumulate(context, rows, std::move(drows));
    accumulate(context, r.weights, std::move(dweights));
  });
  return result;
}

}  // namespace

Variable expert_mlp(const Context& context, const Variable& rows, const Tensor& group_offsets, Parameter& up,
                    Parameter& down, const spec::ModelSpec& spec) {
  Variable wide = expert_linear(context, rows, up, group_offsets);            // (R, 2F)
  Variable act = activation(context, wide, spec.activation, spec.gated_mlp);  // (R, F)
  return expert_linear(context, act, down, group_offsets);                    // (R, C)
}

Variable moe(const Context& context, const Variable& x, const Tensor& unrounded, const MoeWeights& weights,
             const spec::ModelSpec& spec, const BalanceLoss& balance,
             const std::function<void(const Tensor& logits)>& on_logits, const Experts& experts) {
  Variable logits = router_logits(context, x, unrounded, weights.router);  // (T, E) f32
  if (on_logits) on_logits(logits.value);
  Routing routing = route(context, logits, spec.moe, balance);
  Variable rows = gather(context, x, routing);  // (T k, C)
  Variable down = experts ? experts(context, rows, routing.group_offsets)
                          : expert_mlp(context, rows, routing.group_offsets, weights.up, weights.down, spec);
  return combine(context, down, routing);
}

}  // namespace sinter::ops
