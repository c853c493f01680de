// The block formats of base/blocks.h against ggml's own answers (tests/golden/gguf/blocks.safetensors).
#include "base/blocks.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cstring>

#include "base/error.h"
#include "base/source_dir.h"
#include "io/safetensors.h"

namespace sinter::io {
namespace {

using base::WeightFormat;

std::string upper(std::string_view name) {
  std::string text(name);
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Equal bits, any NaN for any NaN.
void expect_decodes_to(WeightFormat format, const TensorEntry& blocks, const TensorEntry& expected) {
  const int64_t count = expected.num_elements();
  std::vector<float> values(static_cast<size_t>(count));
  base::dequantize_blocks(format, blocks.bytes.data(), nullptr, values.data(), count);
  const auto* answer = reinterpret_cast<const float*>(expected.bytes.data());
  int64_t differing = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool both_nan = values[static_cast<size_t>(i)] != values[static_cast<size_t>(i)] && answer[i] != answer[i];
    if (!both_nan && std::memcmp(&values[static_cast<size_t>(i)], &answer[i], sizeof(float)) != 0) ++differing;
  }
  EXPECT_EQ(differing, 0) << base::name_of(format) << " from " << blocks.name << ", of " << count;
}

TEST(Blocks, DecodeToTheSameBitsAsGgml) {
  const SafetensorsFile golden(base::source_dir() + "/tests/golden/gguf/blocks.safetensors");
  int num_formats = 0;
  for (const base::WeightFormatInfo& info : base::weight_formats()) {
    const std::string name = upper(info.name);
    const TensorEntry* blocks = golden.find(name + ".q");
    if (!blocks || !info.can_decode) continue;
    ++num_formats;
    ASSERT_EQ(static_cast<int64_t>(blocks->bytes.size()),
              base::bytes_of(info.format, golden.find(name + ".dequant")->num_elements()));
    expect_decodes_to(info.format, *blocks, *golden.find(name + ".dequant"));
    expect_decodes_to(info.format, *golden.find(name + ".raw"), *golden.find(name + ".raw_dequant"));
  }
  EXPECT_EQ(num_formats, 18);
}

TEST(Blocks, RefuseAFormatThatCannotBeRead) {
  float y[256];
  std::vector<uint8_t> bytes(66);
  EXPECT_THROW(base::dequantize_blocks(WeightFormat::iq2_xxs, bytes.data(), nullptr, y, 256), base::Error);
}

}  // namespace
}  // namespace sinter::io
