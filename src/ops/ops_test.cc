#include <gtest/gtest.h>

#include "base/rng.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace sinter::ops {
namespace {

constexpr int64_t kRows = 5, kWidth = 8;

Tensor random_tensor(core::Shape shape, uint64_t seed) {
  const base::CounterRng rng{seed, 31};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = rng.normal(i);
  return core::make_tensor(core::runtime({}).allocator(), shape, values);
}

Parameter make_parameter(const char* name, core::Shape shape, uint64_t seed) {
  Parameter p;
  p.name = name;
  p.weight.data = p.master = random_tensor(shape, seed);
  p.grad = autograd::Gradient(random_tensor(shape, seed + 100));  // stale: the first gradient of a step overwrites it
  return p;
}

// A norm leaves the column sums of the gradient it writes with the bias of the product before it. A gradient that comes
// after it to the same place must reach the bias too.
TEST(Linear, ABiasGetsTheGradientsOfAllReadersOfItsSum) {
  Parameter weight = make_parameter("weight", {kWidth, kWidth}, 1), bias = make_parameter("bias", {kWidth}, 2),
            other = make_parameter("other", {kWidth, kWidth}, 3), scale = make_parameter("scale", {kWidth}, 4);
  const Tensor x = random_tensor({kRows, kWidth}, 5);
  const std::vector<float> to_product = core::to_host<float>(random_tensor({kRows, kWidth}, 6)),
                           to_norm = core::to_host<float>(random_tensor({kRows, kWidth}, 7));
  core::DeviceRuntime& device = core::runtime({});
  // The sum of both readers' results, each times fixed numbers; with `wants_gradients` those of the parameters too.
  auto objective = [&](bool wants_gradients) {
    autograd::Tape tape(autograd::Recompute::none);
    const Context context{kernels::kernels_for({}), device.stream(), device.allocator(),
                          wants_gradients ? &tape : nullptr};
    Variable y = linear(context, autograd::Tape::make_variable(x), weight, &bias);
    Variable product = linear(context, y, other, nullptr);
    Variable normed = norm(context, y, {}, scale, nullptr, spec::NormKind::rms, 1e-5f).y;
    double sum = 0;
    const std::vector<float> a = core::to_host<float>(product.value), b = core::to_host<float>(normed.value);
    for (size_t i = 0; i < a.size(); ++i) {
      sum += static_cast<double>(a[i]) * static_cast<double>(to_product[i]);
      sum += static_cast<double>(b[i]) * static_cast<double>(to_norm[i]);
    }
    if (wants_gradients) {
      product.slot->grad = core::make_tensor(device.allocator(), {kRows, kWidth}, to_product);
      normed.slot->grad = core::make_tensor(device.allocator(), {kRows, kWidth}, to_norm);
      tape.backward();
    }
    return sum;
  };
  objective(true);
  const std::vector<float> gradient = core::to_host<float>(bias.grad.tensor());
  float* b = bias.master.data<float>();
  for (size_t c = 0; c < kWidth; ++c) {
    const float before = b[c], step = 1e-2f;
    b[c] = before + step;
    const double above = objective(false);
    b[c] = before - step;
    const double below = objective(false);
    b[c] = before;
    EXPECT_NEAR(gradient[c], (above - below) / (2 * static_cast<double>(step)), 2e-2) << "column " << c;
  }
}

}  // namespace
}  // namespace sinter::ops
