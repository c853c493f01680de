// What the plain fp8 loops promise; the CUDA kernels are held against them in test_cuda.
#include <gtest/gtest.h>

#include <limits>

#include "kernels/cases/tensors.h"

namespace sinter::kernels {
namespace {

using testing::random_tensor;
using testing::stream;

Tensor make_scaling(float scale, float limit) {
  std::vector<float> row(Fp8Scaling::kSize, 0.0f);
  row[Fp8Scaling::kScale] = scale;
  row[Fp8Scaling::kInverse] = 1 / scale;
  row[Fp8Scaling::kLimit] = limit;
  return core::make_tensor(testing::allocator(), {Fp8Scaling::kSize}, row);
}

TEST(Fp8Reference, RoundsInBothOrdersAndFindsTheLargest) {
  Tensor x = random_tensor({16, 32}, base::DType::bf16, 1);
  x.data<base::bf16>()[37] = base::bf16(-9.0f);
  Tensor scaling = make_scaling(16.0f, 448.0f);
  Tensor values(testing::allocator(), {16, 32}, base::DType::f8e4m3);
  Tensor transposed(testing::allocator(), {32, 16}, base::DType::f8e4m3);
  reference_table()->fp8_quantize(stream(), {x, {scaling, values, transposed}});
  for (int64_t r = 0; r < 16; ++r) {
    for (int64_t c = 0; c < 32; ++c) {
      const base::f8e4m3 expected(static_cast<float>(x.data<base::bf16>()[r * 32 + c]) * 16.0f);
      EXPECT_EQ(values.data<base::f8e4m3>()[r * 32 + c].bits, expected.bits);
      EXPECT_EQ(transposed.data<base::f8e4m3>()[c * 16 + r].bits, expected.bits);
    }
  }
  EXPECT_EQ(scaling.data<float>()[Fp8Scaling::kLargest], 9.0f);
}

TEST(Fp8Reference, ScaleKeepsTheLargestOfTheHistoryInRange) {
  Tensor scaling = make_scaling(1.0f, 448.0f);
  auto step = [&](float largest) {
    scaling.data<float>()[Fp8Scaling::kLargest] = largest;
    reference_table()->fp8_rescale(stream(), {scaling.reshape({1, Fp8Scaling::kSize})});
    EXPECT_EQ(scaling.data<float>()[Fp8Scaling::kLargest], 0.0f);
    const float scale = scaling.data<float>()[Fp8Scaling::kScale];
    EXPECT_EQ(scaling.data<float>()[Fp8Scaling::kInverse] * scale, 1.0f);
    return scale;
  };
  EXPECT_EQ(step(0.0f), 1.0f) << "nothing seen yet";
  EXPECT_EQ(step(448.0f), 1.0f);
  EXPECT_EQ(step(3.0f), 1.0f) << "448 is remembered";
  EXPECT_EQ(step(450.0f), 0.5f);
  EXPECT_EQ(step(std::numeric_limits<float>::quiet_NaN()), 0.5f) << "NaN must not reach the history";
  EXPECT_EQ(step(HUGE_VALF), 0.5f);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(step(3.0f), 0.5f);
  EXPECT_EQ(step(3.0f), 128.0f) << "16 steps later 450 is forgotten: 3 * 128 = 384 fits, 768 would not";
  EXPECT_GT(step(1e-42f), 0.0f);
}

TEST(Fp8Reference, NanIsTheLargestOfAll) {
  Tensor x = random_tensor({16, 16}, base::DType::bf16, 2);
  x.data<base::bf16>()[5] = base::bf16(NAN);
  x.data<base::bf16>()[6] = base::bf16(HUGE_VALF);
  Tensor scaling = make_scaling(1.0f, 448.0f);
  reference_table()->fp8_quantize(stream(), {x, {.scaling = scaling}});
  EXPECT_TRUE(std::isnan(scaling.data<float>()[Fp8Scaling::kLargest]));
}

TEST(Fp8Reference, ProductIsThatOfTheScaledFactors) {
  Tensor a = random_tensor({16, 48}, base::DType::f8e5m2, 3), b = random_tensor({32, 48}, base::DType::f8e4m3, 4);
  Tensor a_scale = core::make_tensor<float>(testing::allocator(), {1}, {0.25f}),
         b_scale = core::make_tensor<float>(testing::allocator(), {1}, {8.0f});
  Tensor c(testing::allocator(), {16, 32}, base::DType::f32);
  reference_table()->matmul(
      stream(), {.a = a, .b = {.data = b}, .c = c, .transpose_b = true, .a_scale = a_scale, .b_scale = b_scale});
  auto widen = [](const Tensor& t, float scale) {
    std::vector<float> values = core::to_host_floats(t);
    for (float& v : values) v *= scale;
    return core::make_tensor(testing::allocator(), t.shape(), values);
  };
  Tensor expected(testing::allocator(), {16, 32}, base::DType::f32);
  reference_table()->matmul(stream(),
                            {.a = widen(a, 0.25f), .b = {.data = widen(b, 8.0f)}, .c = expected, .transpose_b = true});
  testing::expect_close(c, expected, 1e-6, "product");
}

TEST(Fp8Reference, SwigluEqualsTheActivationRoundedAfterwards) {
  Tensor x = random_tensor({32, 96}, base::DType::f32, 5), dy = random_tensor({32, 48}, base::DType::f32, 6);
  auto fp8 = [](core::Shape shape, base::DType dtype) { return Tensor(testing::allocator(), shape, dtype); };
  Tensor act(testing::allocator(), {32, 48}, base::DType::f32), dx(testing::allocator(), {32, 96}, base::DType::f32);
  const KernelTable& k = *reference_table();
  k.activation_forward(stream(), {.x = x, .y = act});
  k.activation_backward(stream(), {.dy = dy, .x = x, .dx = dx});
  Fp8Output expected{make_scaling(32, 448), fp8({32, 48}, base::DType::f8e4m3), fp8({48, 32}, base::DType::f8e4m3)};
  Fp8Output actual{make_scaling(32, 448), fp8({32, 48}, base::DType::f8e4m3), fp8({48, 32}, base::DType::f8e4m3)};
  k.fp8_quantize(stream(), {act, expected});
  k.fp8_swiglu_forward(stream(), {x, actual});
  EXPECT_TRUE(testing::bit_equal(actual.values, expected.values));
  EXPECT_TRUE(testing::bit_equal(actual.transposed, expected.transposed));
  EXPECT_TRUE(testing::bit_equal(actual.scaling, expected.scaling));
  Fp8Output dexpected{make_scaling(64, 57344), fp8({32, 96}, base::DType::f8e5m2), fp8({96, 32}, base::DType::f8e5m2)};
  Fp8Output dactual{make_scaling(64, 57344), fp8({32, 96}, base::DType::f8e5m2), fp8({96, 32}, base::DType::f8e5m2)};
  k.fp8_quantize(stream(), {dx, dexpected});
  k.fp8_swiglu_backward(stream(), {dy, x, dactual});
  EXPECT_TRUE(testing::bit_equal(dactual.values, dexpected.values));
  EXPECT_TRUE(testing::bit_equal(dactual.transposed, dexpected.transposed));
}

}  // namespace
}  // namespace sinter::kernels
