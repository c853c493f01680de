#include "ops/fp8.h"

#include "base/error.h"
#include "ops/mlp.h"

namespace sinter::ops {
namespace {

using kernels::Fp8Output;
using kernels::Fp8Scaling;

constexpr int64_t kMultiple = 16;  // of every size of an fp8 product
constexpr DType kForward = DType::f8e4m3, kBackward = DType::f8e5m2;
// Gradients may grow by this from one step to the next before they saturate; e5m2 has range to spare.
constexpr float kGradientRoom = 8;

bool is_ours(const Parameter& weight) {
  const Tensor& w = weight.weight.data;
  return w.shape().rank() == 2 && w.dtype() != DType::f32 && w.size(0) % kMultiple == 0 && w.size(1) % kMultiple == 0;
}

enum class Order { values, transposed, both };

// New memory for an fp8 matrix, filled by write(output).
template <class Write>
Fp8Output make_fp8(const Context& context, Shape shape, DType dtype, const Tensor& scaling, Order order,
                   Write&& write) {
  Fp8Output output{.scaling = scaling};
  if (order != Order::transposed) output.values = context.make(shape, dtype);
  if (order != Order::values) output.transposed = context.make({shape[1], shape[0]}, dtype);
  context.fp8->write(context.kernels, context.stream, output, write);
  return output;
}

Fp8Output quantize(const Context& context, const Tensor& x, DType dtype, const Tensor& scaling, Order order) {
  return make_fp8(context, {x.rows(), x.size(-1)}, dtype, scaling, order,
                  [&](const Fp8Output& y) { context.kernels.fp8_quantize(context.stream, {.x = x, .y = y}); });
}

// What a forward makes of its input: the transpose too when backward reads it and x is not made again by then.
Order order_for(const Context& context, const Variable& x) {
  return context.is_recording() && !x.remade ? Order::both : Order::values;
}

// y (R, N) = x W^T + b from the rounded x.
void multiply_forward(const Context& context, const Fp8Output& x, const Parameter* bias, const Fp8Layers::Layer& layer,
                      const Tensor& y) {
  context.kernels.matmul(context.stream, {.a = x.values,
                                          .b = {.data = layer.weight},
                                          .c = y,
                                          .transpose_b = true,
                                          .bias = bias ? bias->weight.data : Tensor(),
                                          .a_scale = layer.x_scaling,
                                          .b_scale = layer.weight_scaling,
                                          .fast_accumulation = true});
}

// dx (R, K) = dy W.
void multiply_input_gradient(const Context& context, const Tensor& dy, const Fp8Layers::Layer& layer,
                             const Tensor& dx) {
  context.kernels.matmul(context.stream, {.a = dy,
                                          .b = {.data = layer.weight_transposed},
                                          .c = dx,
                                          .transpose_b = true,
                                          .a_scale = layer.dy_scaling,
                                          .b_scale = layer.weight_scaling});
}

// dW (N, K) = dy^T x; adds when the step has a gradient already.
void multiply_weight_gradient(const Context& context, const Tensor& dy_transposed, const Tensor& x_transposed,
                              const Fp8Layers::Layer& layer, Parameter& weight) {
  if (!weight.grad) return;
  context.kernels.matmul(context.stream, {.a = dy_transposed,
                                          .b = {.data = x_transposed},
                                          .c = weight.grad.tensor(),
                                          .transpose_b = true,
                                          .accumulate = weight.grad.accumulates(),
                                          .a_scale = layer.dy_scaling,
                                          .b_scale = layer.x_scaling});
  weight.grad.wrote();
}

// x^T in fp8 at backward: as the forward kept it, or from x made again.
struct SavedInput {
  Saved x;
  Tensor transposed;
  Tensor get(const Context& context, const Tensor& scaling) const {
    if (transposed) return transposed;
    return quantize(context, x.get(), kForward, scaling, Order::transposed).transposed;
  }
};
SavedInput save_input(const Variable& x, const Fp8Output& rounded) {
  return rounded.transposed ? SavedInput{{}, rounded.transposed} : SavedInput{x.save(), {}};
}

}  // namespace

Fp8Layers::Fp8Layers(core::Device device, const std::vector<const Parameter*>& weights) {
  int64_t elements = 0;
  for (const Parameter* weight : weights) {
    if (!is_ours(*weight)) continue;
    weights_.push_back(weight);
    elements += 2 * weight->weight.data.num_elements();
  }
  core::Allocator& memory = core::runtime(device).allocator();
  const auto count = static_cast<int64_t>(weights_.size());
  std::vector<float> rows;
  for (int64_t s = 0; s < 3 * count; ++s) {
    std::vector<float> row(Fp8Scaling::kSize, 0.0f);
    row[Fp8Scaling::kInverse] = row[Fp8Scaling::kScale] = 1.0f;
    row[Fp8Scaling::kLimit] = s % 3 == 2 ? base::f8e5m2::kLargest / kGradientRoom : base::f8e4m3::kLargest;
    rows.insert(rows.end(), row.begin(), row.end());
  }
  scalings_ = core::make_tensor(memory, {3 * count, Fp8Scaling::kSize}, rows);
  values_ = Tensor(memory, {elements}, kForward);
  int64_t offset = 0;  // multiples of 256 elements, as both sizes are multiples of 16
  for (int64_t i = 0; i < count; ++i) {
    const Tensor& w = weights_[static_cast<size_t>(i)]->weight.data;
    auto row = [&](int64_t k) { return scalings_.slice(3 * i + k, 1).reshape({Fp8Scaling::kSize}); };
    const int64_t n = w.num_elements();
    layers_[weights_[static_cast<size_t>(i)]] = {values_.slice(offset, n).reshape({w.size(0), w.size(1)}),
                                                 values_.slice(offset + n, n).reshape({w.size(1), w.size(0)}), row(0),
                                                 row(1), row(2)};
    offset += 2 * n;
  }
}

const Fp8Layers::Layer* Fp8Layers::find(const Parameter& weight, int64_t rows) const {
  if (rows % kMultiple != 0) return nullptr;
  auto found = layers_.find(&weight);
  return found == layers_.end() ? nullptr : &found->second;
}

void Fp8Layers::begin_step(const kernels::KernelTable& kernels, core::Stream& stream) {
  if (weights_.empty()) return;
  if (has_seen_a_step_) {
    kernels.fp8_rescale(stream, {scalings_});
    is_calibrated_ = true;
  }
  has_seen_a_step_ = true;
  for (const Parameter* weight : weights_) {
    const Layer& layer = layers_.at(weight);
    write(kernels, stream, {layer.weight_scaling, layer.weight, layer.weight_transposed},
          [&](const Fp8Output& y) { kernels.fp8_quantize(stream, {.x = weight->weight.data, .y = y}); });
  }
}

void Fp8Layers::resume() {  // a checkpoint from before the first step has seen nothing either
  const std::vector<float> rows = core::to_host<float>(scalings_);
  for (size_t row = 0; row < rows.size(); row += Fp8Scaling::kSize) {
    if (rows[row + Fp8Scaling::kLargest] != 0 || rows[row + Fp8Scaling::kHistory] != 0) has_seen_a_step_ = true;
  }
}

size_t Fp8Layers::bytes() const { return scalings_.bytes() + values_.bytes(); }

const Fp8Layers::Layer* find_fp8(const Context& context, const Parameter& weight, int64_t rows) {
  return context.fp8 ? context.fp8->find(weight, rows) : nullptr;
}

Variable fp8_linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                    const Fp8Layers::Layer& layer) {
  const int64_t R = x.value.rows(), N = layer.weight.size(0), K = layer.weight.size(1);
  const DType dtype = x.value.dtype();
  Tensor y = context.make({R, N}, dtype);
  Fp8Output rounded = quantize(context, x.value, kForward, layer.x_scaling, order_for(context, x));
  multiply_forward(context, rounded, bias, layer, y);
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable place = x.place();
  context.tape->record(
      [context, saved = save_input(x, rounded), place, slot = result.slot, &weight, bias, &layer, R, K, dtype] {
        Tensor dy = take_gradient(slot, "linear");
        add_bias_gradient(context, dy, bias);
        Fp8Output rounded_dy = quantize(context, dy, kBackward, layer.dy_scaling, Order::both);
        dy = Tensor();
        Tensor dx = place.slot ? context.make({R, K}, dtype) : Tensor();
        if (dx) multiply_input_gradient(context, rounded_dy.values, layer, dx);
        rounded_dy.values = Tensor();
        multiply_weight_gradient(context, rounded_dy.transposed, saved.get(context, layer.x_scaling), layer, weight);
        if (dx) accumulate(context, place, std::move(dx));
      });
  return result;
}

Variable fp8_swiglu_mlp(const Context& context, const Variable& x, const MlpWeights& weights,
                        const Fp8MlpLayers& layers) {
  const int64_t R = x.value.rows(), C = x.value.size(-1), F = layers.down.weight.size(1);
  const DType dtype = x.value.dtype();
  SINTER_CHECK(layers.up.weight.size(0) == 2 * F,
               "[mlp] {} rows in '{}' for {} columns in '{}'; expected twice as many", layers.up.weight.size(0),
               weights.up.name, F, weights.down.name);
  auto activate = [context, R, F, &down = layers.down](const Tensor& gate_up, Order order) {
    return make_fp8(context, {R, F}, kForward, down.x_scaling, order, [&](const Fp8Output& y) {
      context.kernels.fp8_swiglu_forward(context.stream, {.x = gate_up, .y = y});
    });
  };
  Tensor gate_up = context.make({R, 2 * F}, dtype);
  Fp8Output rounded = quantize(context, x.value, kForward, layers.up.x_scaling, order_for(context, x));
  multiply_forward(context, rounded, nullptr, layers.up, gate_up);
  rounded.values = Tensor();
  const bool keeps_act = context.is_recording() && !context.may_drop();
  Fp8Output act = activate(gate_up, keeps_act ? Order::both : Order::values);  // (R, F)
  Tensor y = context.make({R, layers.down.weight.size(0)}, dtype);
  multiply_forward(context, act, weights.down_bias, layers.down, y);
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable place = x.place();
  context.tape->record([context, saved = save_input(x, rounded), act = act.transposed, activate, gate_up, place,
                        slot = result.slot, weights, up = &layers.up, down = &layers.down, R, C, F, dtype] {
    Tensor dy = take_gradient(slot, "mlp");
    add_bias_gradient(context, dy, weights.down_bias);
    Fp8Output rounded_dy = quantize(context, dy, kBackward, down->dy_scaling, Order::both);
    dy = Tensor();
    Tensor dact = context.make({R, F}, dtype);
    multiply_input_gradient(context, rounded_dy.values, *down, dact);
    rounded_dy.values = Tensor();
    multiply_weight_gradient(context, rounded_dy.transposed,
                             act ? act : activate(gate_up, Order::transposed).transposed, *down, weights.down);
    rounded_dy.transposed = Tensor();
    Fp8Output dgate_up =
        make_fp8(context, {R, 2 * F}, kBackward, up->dy_scaling, Order::both, [&](const Fp8Output& dx) {
          context.kernels.fp8_swiglu_backward(context.stream, {.dy = dact, .x = gate_up, .dx = dx});
        });
    dact = Tensor();
    Tensor dx = place.slot ? context.make({R, C}, dtype) : Tensor();
    if (dx) multiply_input_gradient(context, dgate_up.values, *up, dx);
    dgate_up.values = Tensor();
    multiply_weight_gradient(context, dgate_up.transposed, saved.get(context, up->x_scaling), *up, weights.up);
    if (dx) accumulate(context, place, std::move(dx));
  });
  return result;
}

}  // namespace sinter::ops
