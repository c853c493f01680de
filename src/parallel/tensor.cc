#include "parallel/tensor.h"

#include <algorithm>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/embedding.h"
#include "ops/norm.h"
#include "spec/parameters.h"

namespace sinter::parallel {

using core::DType;

TensorAxis::TensorAxis(comm::Communicator& group, const spec::ModelSpec& spec, bool splits_rows)
    : group_(group),
      splits_rows_(splits_rows && group.size() > 1),
      heads_(spec::local_heads(spec, group.size(), group.rank())),
      vocabulary_(spec::vocab_range(spec.vocab_size, group.size(), group.rank())),
      shares_kv_heads_(group.size() > spec.num_kv_heads) {
  SINTER_CHECK(vocabulary_.count > 0, "tensor parallelism over {} ranks leaves none of {} tokens to rank {}",
               group.size(), spec.vocab_size, group.rank());
}

Tensor TensorAxis::gather_rows(const Context& context, const Tensor& x) const {
  if (!splits_rows_ || !x) return x;
  Tensor all = context.make({x.rows() * size(), x.size(-1)}, x.dtype());
  group_.all_gather(x, all);
  return all;
}

Variable TensorAxis::enter(const Context& context, const Variable& x) const {
  Variable result = context.make_variable(gather_rows(context, x.value));
  if (!context.is_recording()) return result;
  if (context.may_drop()) {  // gathered again where it is needed
    result.remade = std::make_shared<autograd::Rematerialized>(
        [this, context, saved = x.save()] { return gather_rows(context, saved.get()); });
  }
  Variable place = x.place();
  context.tape->record([this, context, place, slot = result.slot, shape = x.value.shape()] {
    Tensor dy = ops::take_gradient(slot, "tensor_parallel");
    if (!splits_rows_) {
      group_.all_reduce(dy);
      ops::accumulate(context, place, std::move(dy));
      return;
    }
    Tensor dx = context.make(shape, dy.dtype());
    group_.reduce_scatter(dy, dx);
    ops::accumulate(context, place, std::move(dx));
  });
  return result;
}

Variable TensorAxis::leave(const Context& context, const Variable& x) const {
  Tensor y = x.value;
  if (splits_rows_) {
    SINTER_CHECK(x.value.rows() % size() == 0, "sequence parallelism: {} tokens of a micro-batch among {} ranks",
                 x.value.rows(), size());
    y = context.make({x.value.rows() / size(), x.value.size(-1)}, x.value.dtype());
    group_.reduce_scatter(x.value, y);
  } else {
    group_.all_reduce(y);
  }
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable place = x.place();
  context.tape->record([this, context, place, slot = result.slot] {
    Tensor dy = ops::take_gradient(slot, "tensor_parallel");
    ops::accumulate(context, place, gather_rows(context, dy));
  });
  return result;
}

Variable TensorAxis::embedding(const Context& context, const core::RaggedBatch& batch, Parameter& tokens,
                               Parameter* positions) const {
  const Tensor table = tokens.weight.data.slice(0, vocabulary_.count);
  Tensor y = context.make({batch.num_tokens, table.size(1)}, table.dtype());
  context.kernels.vocab_embedding_forward(context.stream, {batch.tokens, table, vocabulary_.begin, y});
  Variable part = context.make_variable(std::move(y));
  if (context.is_recording()) {
    context.tape->record([this, context, ids = batch.tokens, slot = part.slot, &tokens] {
      Tensor dy = ops::take_gradient(slot, "embedding");
      ops::begin_gradient(context, tokens);
      if (!tokens.grad) return;
      context.kernels.vocab_embedding_backward(
          context.stream, {ids, dy, vocabulary_.begin, tokens.grad.tensor().slice(0, vocabulary_.count)});
    });
  }
  if (positions && adds_bias()) {
    core::RaggedBatch places = batch;
    places.tokens = batch.positions;
    part = ops::add(context, ops::embedding(context, places, *positions, nullptr), part);
  }
  return leave(context, part);
}

void TensorAxis::linear_cross_entropy(const Context& context, const Variable& x, Parameter& weight,
                                      const Tensor& targets, const Tensor& scale, const Tensor& losses,
                                      const Tensor& weights) const {
  const int64_t T = x.value.rows(), V = vocabulary_.count, P = size();
  const DType dtype = x.value.dtype();
  const bool records = context.is_recording();
  // The largest rank's columns, so that all take equally many rows at a time.
  const int64_t chunk = spec::loss_chunk_rows(T, vocabulary_.padded, static_cast<int64_t>(base::dtype_bytes(dtype)));
  core::WeightView rows = weight.weight;
  rows.data = rows.data.slice(0, V);
  rows.derived = nullptr;
  Tensor logits = context.make({chunk, V}, dtype), own = context.make({chunk, 3}, DType::f32);
  Tensor terms = context.make({P * chunk, 3}, DType::f32), lse = context.make({chunk}, DType::f32);
  Tensor dx = records ? context.make(x.value.shape(), dtype) : Tensor();
  for (int64_t begin = 0; begin < T; begin += chunk) {
    const int64_t R = std::min(chunk, T - begin);
    const Tensor part = x.value.slice(begin, R), target = targets.slice(begin, R);
    const Tensor weight_rows = weights ? weights.slice(begin, R) : Tensor();
    const Tensor scores = logits.slice(0, R), all = terms.slice(0, P * R);
    context.kernels.matmul(context.stream, {.a = part, .b = rows, .c = scores, .transpose_b = true});
    context.kernels.softmax_terms(context.stream, {scores, target, vocabulary_.begin, own.slice(0, R)});
    group_.all_gather(own.slice(0, R), all);
    context.kernels.softmax_loss(
        context.stream, {all.reshape({P, R, 3}), target, lse.slice(0, R), losses.slice(begin, R), weight_rows});
    if (!records) continue;
    context.kernels.softmax_gradient(context.stream,
                                     {scores, target, vocabulary_.begin, lse.slice(0, R), scale, weight_rows});
    context.kernels.matmul(context.stream, {.a = scores, .b = rows, .c = dx.slice(begin, R)});
    if (!weight.grad) continue;
    context.kernels.matmul(context.stream, {.a = scores,
                                            .b = {.data = part},
                                            .c = weight.grad.tensor().slice(0, V),
                                            .transpose_a = true,
                                            .accumulate = weight.grad.accumulates()});
    weight.grad.wrote();
  }
  if (!records) return;
  Variable place = x.place();
  context.tape->record([context, place, dx] { ops::accumulate(context, place, dx); });
}

namespace {

bool is_qkv(const std::string& name) {
  return name.ends_with("attention.qkv.weight") || name.ends_with("attention.qkv.bias");
}

// Beside keys or values, which have adapters of their own behind the queries' where heads share them.
bool is_beside_kv(const spec::ParameterSpec& info) { return info.adapter.first_row > 0; }

}  // namespace

bool TensorAxis::has_partial_gradient(const spec::ParameterSpec& info) const {
  if (size() == 1) return false;
  const bool is_adapter = info.adapter.term != spec::AdapterTerm::none;
  if (is_adapter && info.tp_axis < 0) return true;  // its other factor is cut
  if (is_adapter) return shares_kv_heads_ && is_qkv(info.adapter.target) && is_beside_kv(info);
  if (is_qkv(info.name)) return shares_kv_heads_;
  if (info.tp_axis >= 0) return false;
  if (info.role == spec::ParameterRole::position || info.role == spec::ParameterRole::router) return true;
  const bool is_head_norm = info.name.ends_with("q_norm.weight") || info.name.ends_with("k_norm.weight");
  const bool is_row_cut_bias = info.name.ends_with("attention.out.bias") || info.name.ends_with("mlp.down.bias");
  return is_head_norm || is_row_cut_bias || splits_rows_;
}

void TensorAxis::sum_gradient(const Context& context, const spec::ParameterSpec& info, Parameter& parameter) const {
  if (!parameter.grad || !has_partial_gradient(info)) return;
  ops::begin_gradient(context, parameter);  // ranks that added nothing
  if (info.tp_axis < 0) {
    group_.all_reduce(parameter.grad.tensor());
    return;
  }
  // Rows [q | k | v]: queries are this rank's own, keys and values are shared.
  const int64_t rows = parameter.grad.tensor().size(0), D = rows / (heads_.num_heads + 2 * heads_.num_kv_heads);
  const int64_t shared = is_beside_kv(info) ? rows : 2 * heads_.num_kv_heads * D;
  if (!same_kv_head_) same_kv_head_ = group_.split(static_cast<int>(heads_.first_kv_head), group_.rank(), "kv head");
  same_kv_head_->all_reduce(parameter.grad.tensor().slice(rows - shared, shared));
}

}  // namespace sinter::parallel
