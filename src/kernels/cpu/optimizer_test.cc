// What only the CPU's optimizers promise. Cases against the reference: kernels/cases.
#include "kernels/cases/tensors.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

TEST(CpuOptimizer, ACopyTooLargeForTheCachesIsRoundedAsASmallOne) {
  constexpr int64_t kCount = (int64_t{17} << 20) + 77, kPart = 5000;  // 34 MiB of bf16
  Tensor control = core::make_tensor(allocator(), {2}, std::vector<float>{1.0f, 1.0f});
  for (int64_t first : {int64_t{0}, int64_t{1}}) {  // on a line of the cache and off it
    AdamwArgs args{.master = zero_tensor({kCount}, DType::f32).slice(first, kCount - first),
                   .grad = empty_tensor({kCount}, DType::f32).slice(first, kCount - first),
                   .m = zero_tensor({kCount}, DType::f32).slice(first, kCount - first),
                   .v = zero_tensor({kCount}, DType::f32).slice(first, kCount - first),
                   .copy = zero_tensor({kCount}, DType::bf16).slice(first, kCount - first),
                   .control = control,
                   .lr = 0.01f};
    float* grad = args.grad.data<float>();
    for (int64_t i = 0; i < kCount - first; ++i) grad[i] = static_cast<float>(i % 1013 - 500) * 1e-3f;
    cpu_table()->adamw(stream(), args);
    for (int64_t at : {int64_t{0}, int64_t{8} << 20, kCount - first - kPart}) {
      Tensor expected = zero_tensor({kPart}, DType::bf16);
      cpu_table()->axpby(stream(), {.x = args.master.slice(at, kPart), .y = expected});
      EXPECT_TRUE(bit_equal(expected, args.copy.slice(at, kPart))) << "from " << at;
    }
  }
}

TEST(CpuOptimizer, StochasticRoundingIsFairOnAverage) {
  constexpr int64_t kCount = 40000;
  for (const KernelTable* table : {cpu_table(), reference_table()}) {
    Tensor m = empty_tensor({kCount}, DType::bf16), v = zero_tensor({kCount}, DType::bf16),
           grad = zero_tensor({kCount}, DType::f32);
    table->fill(stream(), {m, 1.0f});
    AdamwArgs args{.master = zero_tensor({kCount}, DType::f32),
                   .grad = grad,
                   .m = m,
                   .v = v,
                   .control = core::make_tensor(allocator(), {2}, std::vector<float>{1.0f, 1.0f}),
                   .beta1 = 0.999f,
                   .key = {5, 6}};
    table->adamw(stream(), args);  // 0.999 lies a quarter of the way from 0.99609375 to 1.0's lower neighbour
    std::vector<float> values = core::to_host_floats(m);
    double mean = 0;
    for (float x : values) mean += x / kCount;
    EXPECT_NEAR(mean, 0.999, 6e-5) << table->name;
  }
}

TEST(CpuOptimizer, AdamwTakesItsCorrectionsFromAFullControl) {
  auto run = [&](std::vector<float> control, int64_t step) {
    const auto size = static_cast<int64_t>(control.size());
    AdamwArgs args{.master = random_tensor({1000}, DType::f32, 1),
                   .grad = random_tensor({1000}, DType::f32, 2),
                   .m = zero_tensor({1000}, DType::f32),
                   .v = zero_tensor({1000}, DType::f32),
                   .control = core::make_tensor(allocator(), {size}, control),
                   .lr = 0.01f,
                   .step = step};
    cpu_table()->adamw(stream(), args);
    return args.master;
  };
  const auto c1 = static_cast<float>(1 / (1 - std::pow(static_cast<double>(0.9f), 5))),
             c2 = static_cast<float>(1 / std::sqrt(1 - std::pow(static_cast<double>(0.95f), 5)));
  EXPECT_TRUE(bit_equal(run({0.5f, 1.0f}, 5), run({0.5f, 1.0f, c1, c2, 1.0f, 1.0f}, 99)));
}

}  // namespace
}  // namespace sinter::kernels
