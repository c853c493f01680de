// What every op needs besides its operands: where to run, where to put results, whether to record.
#pragma once
#include "autograd/tape.h"
#include "kernels/table.h"

namespace sinter::ops {

using autograd::Parameter;
using autograd::Saved;
using autograd::Tape;
using autograd::Variable;
using core::DType;
using core::Shape;
using core::Tensor;
using kernels::RandomKey;

class Fp8Layers;  // ops/fp8.h

// What elements the adapters' dropout draws: the batch's first token's number in the step, over all ranks.
struct AdapterDropout {
  bool is_on = false;
  uint64_t seed = 0, step = 0, first_token = 0;
};

struct Context {
  const kernels::KernelTable& kernels;
  core::Stream& stream;
  core::Allocator& memory;         // activations and gradients of activations
  Tape* tape = nullptr;            // null: inference, nothing is kept
  const Fp8Layers* fp8 = nullptr;  // which linear layers run in fp8; null: none
  DType compute = DType::f32;      // of activations; the transformer sets it from its store
  AdapterDropout adapter_dropout = {};

  Tensor make(Shape shape, DType dtype) const { return Tensor(memory, shape, dtype); }
  bool is_recording() const { return tape != nullptr; }
  // A result: with a gradient slot when recording.
  Variable make_variable(Tensor value) const {
    return tape ? Tape::make_variable(std::move(value)) : Variable{std::move(value), nullptr, nullptr};
  }
  bool may_drop() const { return tape && tape->mode() == autograd::Recompute::selective; }
};

// Adds `grad` to the gradient gathering in x; the first one is moved in without a copy.
void accumulate(const Context& context, const Variable& x, Tensor grad);
// The gathered gradient, handed over. Throws when none arrived (a bug of ours).
Tensor take_gradient(const std::shared_ptr<autograd::GradSlot>& slot, const char* op);
// A parameter's gradient that kernels are about to add to: zero first, when it is stale. Nothing when frozen.
void begin_gradient(const Context& context, Parameter& parameter);
// Adds the sum of dy's rows to a bias's gradient. Nothing when there is no bias or it is frozen.
void add_bias_gradient(const Context& context, const Tensor& dy, Parameter* bias);

// Runs body on the inputs without recording, and again with recording when its gradients are needed: the memory between
// is only the inputs. body must be a pure function of its inputs.
using Body = std::function<std::vector<Variable>(const Context&, const std::vector<Variable>&)>;
std::vector<Variable> checkpoint(const Context& context, const std::vector<Variable>& inputs, Body body);

}  // namespace sinter::ops
