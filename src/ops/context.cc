#include "ops/context.h"

#include "base/error.h"

namespace sinter::ops {

void accumulate(const Context& context, const Variable& x, Tensor grad) {
  if (!x.slot) return;
  if (!x.slot->grad) {
    x.slot->grad = std::move(grad);
  } else {
    context.kernels.axpby(context.stream, {.x = grad, .y = x.slot->grad, .alpha = 1.0f, .beta = 1.0f});
    if (x.slot->has_bias_gradient) {
      context.kernels.column_sum(context.stream, {.x = grad, .y = x.slot->bias->grad, .accumulate = true});
    }
  }
}

Tensor take_gradient(const Variable& y, const char* op) {
  SINTER_CHECK(y.slot && y.slot->grad, "[{}] backward reached an output that has no gradient", op);
  return std::move(y.slot->grad);
}

namespace {

// A value that waits for its backward, here or in the host's memory.
struct Kept {
  Tensor value;
  core::Shape shape;
  bool is_away = false;

  static Kept of(const Context& context, const Tensor& value) {
    core::Allocator* host = context.tape->host();
    if (!host) return {value, value.shape(), false};
    core::DeviceRuntime& device = core::runtime(value.device());
    Kept kept{Tensor(*host, value.shape(), value.dtype()), value.shape(), true};
    device.copy_to_host(kept.value.raw(), value.raw(), value.bytes(), device.stream());
    device.synchronize(device.stream());
    return kept;
  }
  Tensor get(const Context& context) const {
    if (!is_away) return value;
    const Tensor here = context.make(shape, value.dtype());
    core::DeviceRuntime& device = core::runtime(here.device());
    device.copy_to_device(here.raw(), value.raw(), here.bytes(), device.stream());
    return here;
  }
};

}  // namespace

std::vector<Variable> checkpoint(const Context& context, const std::vector<Variable>& inputs, Body body) {
  Context plain = context;
  plain.tape = nullptr;
  std::vector<Variable> detached;
  for (const Variable& x : inputs) detached.push_back({x.value, nullptr, nullptr});
  std::vector<Variable> outputs = body(plain, detached);
  for (Variable& y : outputs) y = context.make_variable(std::move(y.value));
  // The closure must not keep the outputs' values alive, only the places of their gradients.
  std::vector<std::shared_ptr<autograd::GradSlot>> slots;
  for (const Variable& y : outputs) slots.push_back(y.slot);
  std::vector<Kept> kept;
  std::vector<Variable> places;
  for (const Variable& x : inputs) {
    kept.push_back(Kept::of(context, x.value));
    places.push_back({{}, x.slot, nullptr});
  }
  context.tape->record([context, kept = std::move(kept), places, slots, body = std::move(body)] {
    Tape tape(autograd::Recompute::none);
    Context inner = context;
    inner.tape = &tape;
    std::vector<Variable> again;
    for (size_t i = 0; i < kept.size(); ++i) {
      const Tensor value = kept[i].get(context);
      again.push_back(places[i].slot ? Tape::make_variable(value) : Variable{value, nullptr, nullptr});
    }
    std::vector<Variable> results = body(inner, again);
    for (size_t i = 0; i < results.size(); ++i) results[i].slot->grad = std::move(slots[i]->grad);
    results.clear();
    tape.backward();
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i].slot && again[i].slot->grad) accumulate(context, places[i], std::move(again[i].slot->grad));
    }
  });
  return outputs;
}

}  // namespace sinter::ops
