#include "tune/run/scalar_head.h"

#include "core/host_copy.h"
#include "ops/linear.h"

namespace sinter::tune {
namespace {

autograd::Parameter* bias_of(const ScalarHead& head, models::ParameterStore& store) {
  return head.bias.empty() ? nullptr : &store.get(head.bias);
}

}  // namespace

std::vector<spec::ParameterSpec> scalar_head_table(const ScalarHead& head, const spec::ModelSpec& model,
                                                   float deviation, const std::string& hf_prefix) {
  std::vector<spec::ParameterSpec> table;
  auto add = [&](const std::string& name, base::Shape shape) {
    spec::ParameterSpec p;
    p.name = name;
    p.shape = shape;
    p.parts = {{hf_prefix + name, 0, 1}};
    p.role = spec::ParameterRole::adapter;  // no tensor of the model's own
    p.init = deviation > 0 && shape.rank() > 1 ? spec::InitKind::normal : spec::InitKind::zeros;
    p.init_std = deviation;
    p.decays = shape.rank() > 1;
    p.layer = model.num_layers;
    table.push_back(std::move(p));
  };
  add(head.weight, {1, model.hidden});
  if (!head.bias.empty()) add(head.bias, {1});
  return table;
}

core::Tensor scalar_forward(const ops::Context& context, const ScalarHead& head, const models::Transformer& transformer,
                            const autograd::Variable& hidden) {
  models::ParameterStore& store = transformer.store();
  const core::Tensor values = context.make({hidden.value.rows(), 1}, core::DType::f32);
  ops::linear_forward(context, hidden.value, store.get(head.weight), nullptr, {}, values);
  return values;
}

std::vector<float> read_scalars(const ScalarHead& head, const models::Transformer& transformer,
                                const core::Tensor& values) {
  std::vector<float> scalars = core::to_host<float>(values);
  if (const autograd::Parameter* bias = bias_of(head, transformer.store())) {
    const float added = core::to_host_floats(bias->weight.data)[0];
    for (float& scalar : scalars) scalar += added;
  }
  return scalars;
}

void record_scalar_backward(const ops::Context& context, const ScalarHead& head, const models::Transformer& transformer,
                            const autograd::Variable& hidden, const core::Tensor& slopes) {
  models::ParameterStore& store = transformer.store();
  autograd::Parameter *weight = &store.get(head.weight), *bias = bias_of(head, store);
  context.tape->record([context, hidden, slopes, weight, bias] {
    const core::Tensor gradient = context.make(hidden.value.shape(), hidden.value.dtype());
    ops::linear_backward(context, slopes, hidden.value, *weight, bias, {}, gradient);
    ops::accumulate(context, hidden, gradient);
  });
}

std::vector<std::byte> write_slopes(std::span<const float> values, const core::Tensor& slopes) {
  std::vector<std::byte> bytes(slopes.bytes());
  base::convert_elements(core::DType::f32, values.data(), slopes.dtype(), bytes.data(), values.size());
  core::DeviceRuntime& device = core::runtime(slopes.device());
  device.copy_to_device(slopes.raw(), bytes.data(), bytes.size(), device.stream());
  return bytes;
}

std::vector<float> token_scalars(const ScalarHead& head, const models::Transformer& transformer,
                                 const data::MicroBatch& host) {
  core::DeviceRuntime& device = core::runtime(transformer.store().options().device);
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  const ops::Context context{kernels::kernels_for(device.stream().device), device.stream(), device.allocator()};
  const autograd::Variable hidden = transformer.forward(context, batch, {});
  return read_scalars(head, transformer, scalar_forward(context, head, transformer, hidden));
}

}  // namespace sinter::tune
