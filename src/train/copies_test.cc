#include "train/copies.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/dtype.h"
#include "core/host_memory.h"

namespace sinter::train {
namespace {

using core::DType;
using core::Tensor;

// On the CPU by a thread; where there is a GPU also between its memory and the host's.
class CopiesOn : public ::testing::TestWithParam<core::DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == core::DeviceKind::cuda && !core::cuda_runtime(0)) GTEST_SKIP() << core::why_no_cuda(0);
    host_ = core::make_host_memory("", device_);
    copies_ = Copies::make(device_);
  }
  // On the host, as the device reaches it.
  Tensor filled(int64_t count, float first, DType dtype = DType::f32) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
    Tensor out(*host_, {count}, dtype);
    base::convert_elements(DType::f32, values.data(), dtype, out.raw(), values.size());
    return out;
  }
  Tensor on_device(int64_t count, DType dtype = DType::f32) {
    return {core::runtime(device_).allocator(), {count}, dtype};
  }
  void finish() { core::runtime(device_).synchronize(core::runtime(device_).stream()); }

  const core::Device device_{GetParam(), 0};
  std::unique_ptr<core::Allocator> host_;
  std::unique_ptr<Copies> copies_;
};

TEST_P(CopiesOn, ConvertAndAddInTheOrderOfTheCalls) {
  constexpr int64_t kCount = 100'000;
  const Tensor a = filled(kCount, 0), b = filled(kCount, 5), sum = filled(kCount, -1), back = on_device(kCount),
               half = on_device(kCount, DType::bf16);
  std::vector<comm::Handle> works;
  works.push_back(copies_->start(a, sum));
  works.push_back(copies_->start(b, sum, true));
  works.push_back(copies_->start(b, sum, true));
  works.push_back(copies_->start(sum, half));
  works.push_back(copies_->start(sum, back));
  works.back()->wait();
  finish();
  for (comm::Handle& work : works) EXPECT_TRUE(work->advance());  // in order, so all are done
  const std::vector<float> found = core::to_host<float>(back), rounded = core::to_host_floats(half);
  for (size_t i = 0; i < found.size(); ++i) {
    const float expected = 3 * static_cast<float>(i) + 10;
    ASSERT_EQ(found[i], expected) << i;
    ASSERT_NEAR(rounded[i], expected, expected / 128) << i;
  }
  EXPECT_GT(copies_->busy_seconds(), 0);
}

TEST_P(CopiesOn, AHandleThatGoesWaitsForItsTensors) {
  const Tensor to = on_device(1'000'000), from = filled(1'000'000, 0);
  { copies_->start(from, to); }
  EXPECT_EQ(core::to_host<float>(to)[999'999], 999'999.0f);
}

INSTANTIATE_TEST_SUITE_P(Devices, CopiesOn, ::testing::Values(core::DeviceKind::cpu, core::DeviceKind::cuda),
                         [](const auto& each) { return each.param == core::DeviceKind::cpu ? "Cpu" : "Cuda"; });

}  // namespace
}  // namespace sinter::train
