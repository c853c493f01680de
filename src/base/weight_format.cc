#include "base/weight_format.h"

#include <cassert>
#include <iterator>

namespace sinter::base {
namespace {

using enum WeightFormat;
constexpr auto kInside = WeightScales::in_blocks;

// In the order of the enumeration.
constexpr WeightFormatInfo kFormats[] = {
    {plain, "plain", -1, 1, 0, WeightScales::none, true},
    {q4_0, "q4_0", 2, 32, 18, kInside, true},
    {q4_1, "q4_1", 3, 32, 20, kInside, true},
    {q5_0, "q5_0", 6, 32, 22, kInside, true},
    {q5_1, "q5_1", 7, 32, 24, kInside, true},
    {q8_0, "q8_0", 8, 32, 34, kInside, true},
    {q2_k, "q2_k", 10, 256, 84, kInside, true},
    {q3_k, "q3_k", 11, 256, 110, kInside, true},
    {q4_k, "q4_k", 12, 256, 144, kInside, true},
    {q5_k, "q5_k", 13, 256, 176, kInside, true},
    {q6_k, "q6_k", 14, 256, 210, kInside, true},
    {iq4_nl, "iq4_nl", 20, 32, 18, kInside, true},
    {iq4_xs, "iq4_xs", 23, 256, 136, kInside, true},
    {mxfp4, "mxfp4", 39, 32, 17, kInside, true},
    {nvfp4, "nvfp4", 40, 64, 36, kInside, true},
    {q1_0, "q1_0", 41, 128, 18, kInside, true},
    {q2_0, "q2_0", 42, 64, 18, kInside, true},
    {tq1_0, "tq1_0", 34, 256, 54, kInside, true},
    {tq2_0, "tq2_0", 35, 256, 66, kInside, true},
    {iq1_s, "iq1_s", 19, 256, 50, kInside, false},
    {iq1_m, "iq1_m", 29, 256, 56, kInside, false},
    {iq2_xxs, "iq2_xxs", 16, 256, 66, kInside, false},
    {iq2_xs, "iq2_xs", 17, 256, 74, kInside, false},
    {iq2_s, "iq2_s", 22, 256, 82, kInside, false},
    {iq3_xxs, "iq3_xxs", 18, 256, 98, kInside, false},
    {iq3_s, "iq3_s", 21, 256, 110, kInside, false},
    {nf4, "nf4", -1, 64, 32, WeightScales::apart, true},
    {fp4, "fp4", -1, 64, 32, WeightScales::apart, true},
    {int4, "int4", -1, 2, 1, WeightScales::apart, true},
    {int8, "int8", -1, 1, 1, WeightScales::apart, true},
    {fp8_e4m3, "fp8_e4m3", -1, 1, 1, WeightScales::apart, true},
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (static_cast<size_t>(kFormats[i].format) != i) return false;
  }
  return true;
}
static_assert(is_in_order());

}  // namespace

std::span<const WeightFormatInfo> weight_formats() { return kFormats; }

const WeightFormatInfo& info_of(WeightFormat format) { return kFormats[static_cast<size_t>(format)]; }

const WeightFormatInfo* find_weight_format(std::string_view name) {
  for (const WeightFormatInfo& info : kFormats) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

const WeightFormatInfo* find_ggml_weight_format(int64_t ggml_type) {
  for (const WeightFormatInfo& info : kFormats) {
    if (info.ggml_type >= 0 && info.ggml_type == ggml_type) return &info;
  }
  return nullptr;
}

int64_t bytes_of(WeightFormat format, int64_t elements) {
  const WeightFormatInfo& info = info_of(format);
  // Rows of codes with scales apart need not fill whole blocks, only whole bytes.
  if (info.scales == WeightScales::apart) return elements * info.block_bytes / info.block_elements;
  assert(format != WeightFormat::plain && elements % info.block_elements == 0);
  return elements / info.block_elements * info.block_bytes;
}

}  // namespace sinter::base
