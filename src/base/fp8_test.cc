#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

#include "base/dtype.h"
#include "base/file.h"
#include "base/source_dir.h"

namespace sinter::base {
namespace {

TEST(Fp8, RoundsAsPyTorchDoes) {
  std::istringstream lines(read_file(base::source_dir() + "/tests/golden/fp8_casts.txt"));
  std::string number, e4m3, e5m2;
  int compared = 0;
  while (lines >> number >> e4m3 >> e5m2) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(std::stoul(number, nullptr, 16)));
    if (e4m3 != "-") {
      EXPECT_EQ(f8e4m3(value).bits, std::stoul(e4m3, nullptr, 16)) << value;
      ++compared;
    }
    if (e5m2 != "-") {
      EXPECT_EQ(f8e5m2(value).bits, std::stoul(e5m2, nullptr, 16)) << value;
      ++compared;
    }
  }
  EXPECT_GT(compared, 2000);
}

template <class Format>
void check_round_trip(int num_finite) {
  int finite = 0;
  for (int bits = 0; bits < 256; ++bits) {
    Format stored;
    stored.bits = static_cast<uint8_t>(bits);
    const float value = static_cast<float>(stored);
    if (!std::isfinite(value)) continue;
    ++finite;
    EXPECT_EQ(Format(value).bits, stored.bits) << value;
  }
  EXPECT_EQ(finite, num_finite);
}

TEST(Fp8, EveryFiniteNumberSurvivesTheRoundTrip) {
  check_round_trip<f8e4m3>(254);
  check_round_trip<f8e5m2>(248);
}

TEST(Fp8, LargeNumbersSaturateAndNanStaysNan) {
  for (float large : {448.0f, 449.0f, 1e9f, HUGE_VALF}) {
    EXPECT_EQ(static_cast<float>(f8e4m3(large)), 448.0f);
    EXPECT_EQ(static_cast<float>(f8e4m3(-large)), -448.0f);
  }
  for (float large : {57344.0f, 61440.0f, 1e9f, HUGE_VALF}) EXPECT_EQ(static_cast<float>(f8e5m2(-large)), -57344.0f);
  EXPECT_TRUE(std::isnan(static_cast<float>(f8e4m3(NAN))));
  EXPECT_TRUE(std::isnan(static_cast<float>(f8e5m2(-NAN))));
}

TEST(Fp8, ElementsConvertBetweenFormats) {
  const float values[] = {1.0f, -0.3f, 500.0f};
  f8e4m3 stored[3];
  convert_elements(DType::f32, values, DType::f8e4m3, stored, 3);
  float back[3];
  convert_elements(DType::f8e4m3, stored, DType::f32, back, 3);
  EXPECT_EQ(back[0], 1.0f);
  EXPECT_EQ(back[1], -0.3125f);
  EXPECT_EQ(back[2], 448.0f);
}

}  // namespace
}  // namespace sinter::base
