#include "train/copy_thread.h"

#include <gtest/gtest.h>

#include <vector>

namespace sinter::train {
namespace {

using core::DType;
using core::Tensor;

Tensor filled(int64_t count, float first, DType dtype = DType::f32) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  const Tensor made = core::make_tensor<float>(core::runtime({}).allocator(), {count}, values);
  if (dtype == DType::f32) return made;
  const Tensor out(core::runtime({}).allocator(), {count}, dtype);
  base::convert_elements(DType::f32, made.raw(), dtype, out.raw(), values.size());
  return out;
}

TEST(CopyThread, CopiesConvertAndAddInTheOrderOfTheCalls) {
  CopyThread copies;
  constexpr int64_t kCount = 100'000;
  const Tensor a = filled(kCount, 0), b = filled(kCount, 5), sum = filled(kCount, -1),
               half = filled(kCount, 0, DType::bf16);
  std::vector<comm::Handle> works;
  works.push_back(copies.start(a, sum));
  works.push_back(copies.start(b, sum, true));
  works.push_back(copies.start(b, sum, true));
  works.push_back(copies.start(sum, half));
  works.back()->wait();
  for (comm::Handle& work : works) EXPECT_TRUE(work->advance());  // in order, so all are done
  const std::vector<float> found = core::to_host<float>(sum), rounded = core::to_host_floats(half);
  for (size_t i = 0; i < found.size(); ++i) {
    const float expected = 3 * static_cast<float>(i) + 10;
    ASSERT_EQ(found[i], expected) << i;
    ASSERT_NEAR(rounded[i], expected, expected / 128) << i;
  }
  EXPECT_GT(copies.busy_seconds(), 0);
}

TEST(CopyThread, AHandleThatGoesWaitsForItsTensors) {
  CopyThread copies;
  Tensor to = filled(1'000'000, -1);
  { copies.start(filled(1'000'000, 0), to); }
  EXPECT_EQ(to.data<float>()[999'999], 999'999.0f);
}

}  // namespace
}  // namespace sinter::train
