// Optimizers against the reference.
#include "kernels/test_grid.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

TEST(CpuOptimizer, AdamwMatchesReference) {
  for (DType grad_format : {DType::f32, DType::bf16}) {
    for (DType state_format : {DType::f32, DType::bf16}) {
      for (DType copy_format : {DType::f32, DType::bf16, DType::f16}) {
        for (int64_t count : {1, 17, 1025, 40001}) {
          for (float go : {0.0f, 1.0f}) {
            Tensor control = core::make_tensor(allocator(), {2}, std::vector<float>{0.7f, go});
            check_against_reference(
                [&](const KernelTable& table) {
                  AdamwArgs args{.master = random_tensor({count}, DType::f32, 1),
                                 .grad = random_tensor({count}, grad_format, 2),
                                 .m = random_tensor({count}, state_format, 3),
                                 .v = random_tensor({count}, state_format, 4),
                                 .copy = zero_tensor({count}, copy_format),
                                 .control = control,
                                 .lr = 0.01f,
                                 .weight_decay = 0.1f,
                                 .step = 7,
                                 .key = {5, 6}};
                  table.axpby(stream(), {.x = args.v, .y = args.v, .alpha = 0.0f});  // v >= 0
                  table.adamw(stream(), args);
                  return std::vector<Tensor>{args.master, args.m, args.v, args.copy};
                },
                // a sum that falls on the other side of a rounding step may turn a bf16 state by one unit
                state_format == DType::bf16 || copy_format != DType::f32 ? 1.2e-2 : 1e-5,
                "adamw of " + std::to_string(count));
          }
        }
      }
    }
  }
}

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

TEST(CpuOptimizer, MuonMomentumMatchesReference) {
  for (DType grad_format : {DType::f32, DType::bf16}) {
    for (DType state_format : {DType::f32, DType::bf16}) {
      for (DType out_format : {DType::f32, DType::bf16}) {
        for (float go : {0.0f, 1.0f}) {
          Tensor control = core::make_tensor(allocator(), {2}, std::vector<float>{0.7f, go});
          check_against_reference(
              [&](const KernelTable& table) {
                MuonMomentumArgs args{.grad = random_tensor({3001}, grad_format, 1),
                                      .momentum = random_tensor({3001}, state_format, 2),
                                      .direction = random_tensor({3001}, out_format, 3),
                                      .control = control,
                                      .key = {5, 6}};
                table.muon_momentum(stream(), args);
                return std::vector<Tensor>{args.momentum, args.direction};
              },
              state_format == DType::bf16 || out_format == DType::bf16 ? 1.2e-2 : 1e-5, "muon momentum");
        }
      }
    }
  }
}

TEST(CpuOptimizer, SgdMatchesReference) {
  Tensor control = core::make_tensor(allocator(), {2}, std::vector<float>{0.7f, 1.0f});
  for (DType grad_format : {DType::f32, DType::bf16}) {
    for (bool has_velocity : {false, true}) {
      check_against_reference(
          [&](const KernelTable& table) {
            SgdArgs args{.master = random_tensor({3001}, DType::f32, 1),
                         .grad = random_tensor({3001}, grad_format, 2),
                         .copy = empty_tensor({3001}, DType::bf16),
                         .control = control,
                         .lr = 0.1f,
                         .momentum = 0.9f,
                         .weight_decay = 0.01f};
            if (has_velocity) args.velocity = random_tensor({3001}, DType::f32, 3);
            if (!has_velocity) args.copy = {};  // f32 training has none
            table.sgd(stream(), args);
            std::vector<Tensor> out{args.master};
            if (has_velocity) out.push_back(args.velocity);
            return out;
          },
          1e-5, "sgd");
    }
  }
}

}  // namespace
}  // namespace sinter::kernels
