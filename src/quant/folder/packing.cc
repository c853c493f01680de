#include "quant/folder/packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"

namespace sinter::quant {
namespace {

template <class T>
PackedTensor make(const std::string& name, base::DType dtype, std::vector<int64_t> shape,
                  const std::vector<T>& values) {
  PackedTensor t{name, dtype, std::move(shape), {}};
  t.bytes.resize(values.size() * sizeof(T));
  std::memcpy(t.bytes.data(), values.data(), t.bytes.size());
  return t;
}

// Codes one after the other as a string of bits, lowest first: `count` of them, `stride` apart, into words that are
// `word_stride` apart.
void pack_bits(const uint8_t* codes, int64_t count, int64_t stride, int bits, uint32_t* words, int64_t word_stride) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t bit = i * bits, word = bit / 32, shift = bit % 32;
    const uint64_t value = static_cast<uint64_t>(codes[i * stride]) << shift;
    words[word * word_stride] |= static_cast<uint32_t>(value);
    if (shift + bits > 32) words[(word + 1) * word_stride] |= static_cast<uint32_t>(value >> 32);
  }
}

// (rows, groups) f32 as (groups, rows) f16.
PackedTensor turned_scales(const std::string& name, const IntegerWeight& w) {
  std::vector<float> turned(w.scales.size());
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t g = 0; g < w.num_groups; ++g)
      turned[static_cast<size_t>(g * w.rows + r)] = w.scales[static_cast<size_t>(r * w.num_groups + g)];
  }
  return pack_plain(name, base::DType::f16, {w.num_groups, w.rows}, turned);
}

// Places of eight neighbouring columns in a word of AWQ.
constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

}  // namespace

std::vector<PackedTensor> pack_gptq(const std::string& module, const IntegerWeight& w, int bits) {
  const int64_t words = w.columns * bits / 32, zero_words = w.rows * bits / 32;
  std::vector<uint32_t> codes(static_cast<size_t>(words * w.rows)),
      zeros(static_cast<size_t>(w.num_groups * zero_words));
  base::parallel_for(w.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      pack_bits(w.codes.data() + r * w.columns, w.columns, 1, bits, codes.data() + r, w.rows);
  });
  // Version 1 stores them one too small; none is 0, so nothing is borrowed from a neighbour.
  std::vector<uint8_t> stored(w.zeros.size());
  std::transform(w.zeros.begin(), w.zeros.end(), stored.begin(), [](uint8_t z) { return static_cast<uint8_t>(z - 1); });
  for (int64_t g = 0; g < w.num_groups; ++g)
    pack_bits(stored.data() + g, w.rows, w.num_groups, bits, zeros.data() + g * zero_words, 1);
  return {make(module + ".qweight", base::DType::i32, {words, w.rows}, codes),
          make(module + ".qzeros", base::DType::i32, {w.num_groups, zero_words}, zeros),
          turned_scales(module + ".scales", w), make(module + ".g_idx", base::DType::i32, {w.columns}, w.group_of)};
}

std::vector<PackedTensor> pack_awq(const std::string& module, const IntegerWeight& w) {
  const int64_t words = w.rows / 8;
  auto pack = [&](int64_t count, auto code) {
    std::vector<uint32_t> packed(static_cast<size_t>(count * words));
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t word = 0; word < words; ++word) {
        uint32_t value = 0;
        for (int j = 0; j < 8; ++j) value |= static_cast<uint32_t>(code(word * 8 + kAwqOrder[j], i)) << (4 * j);
        packed[static_cast<size_t>(i * words + word)] = value;
      }
    }
    return packed;
  };
  const auto codes =
      pack(w.columns, [&](int64_t r, int64_t c) { return w.codes[static_cast<size_t>(r * w.columns + c)]; });
  const auto zeros =
      pack(w.num_groups, [&](int64_t r, int64_t g) { return w.zeros[static_cast<size_t>(r * w.num_groups + g)]; });
  return {make(module + ".qweight", base::DType::i32, {w.columns, words}, codes),
          make(module + ".qzeros", base::DType::i32, {w.num_groups, words}, zeros),
          turned_scales(module + ".scales", w)};
}

std::vector<PackedTensor> pack_fp8(const std::string& module, std::vector<float>& numbers, int64_t rows,
                                   int64_t columns, int64_t block) {
  constexpr float kLargest = 448;
  const int64_t height = block > 0 ? block : 1, width = block > 0 ? block : columns;
  const int64_t down = (rows + height - 1) / height, across = (columns + width - 1) / width;
  std::vector<float> scales(static_cast<size_t>(down * across));
  std::vector<base::f8e4m3> codes(numbers.size());
  base::parallel_for(down, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin * across; b < end * across; ++b) {
      const int64_t row = b / across * height, column = b % across * width;
      const int64_t last_row = std::min(rows, row + height), last_column = std::min(columns, column + width);
      float largest = 0;
      for (int64_t r = row; r < last_row; ++r) {
        for (int64_t c = column; c < last_column; ++c) {
          const float x = numbers[static_cast<size_t>(r * columns + c)];
          SINTER_CHECK(std::isfinite(x), "'{}': row {}, column {} is {}; expected a finite number", module, r, c, x);
          largest = std::max(largest, std::fabs(x));
        }
      }
      const float scale = largest > 0 ? largest / kLargest : 1.0f;
      scales[static_cast<size_t>(b)] = scale;
      for (int64_t r = row; r < last_row; ++r) {
        for (int64_t c = column; c < last_column; ++c) {
          const auto i = static_cast<size_t>(r * columns + c);
          codes[i] = base::f8e4m3(std::clamp(numbers[i] / scale, -kLargest, kLargest));
          numbers[i] = static_cast<float>(codes[i]) * scale;
        }
      }
    }
  });
  const bool has_blocks = block > 0;
  return {make(module + ".weight", base::DType::f8e4m3, {rows, columns}, codes),
          make(module + (has_blocks ? ".weight_scale_inv" : ".weight_scale"), base::DType::f32,
               {down, has_blocks ? across : 1}, scales)};
}

PackedTensor pack_plain(const std::string& name, base::DType dtype, std::vector<int64_t> shape,
                        const std::vector<float>& values) {
  PackedTensor t{name, dtype, std::move(shape), {}};
  if (dtype == base::DType::f16) {
    for (float x : values)
      SINTER_CHECK(std::isfinite(static_cast<float>(base::f16(x))) || !std::isfinite(x),
                   "'{}' holds {}, which is too large for f16; choose --type fp8, which keeps bf16", name, x);
  }
  t.bytes.resize(values.size() * base::dtype_bytes(dtype));
  base::convert_elements(base::DType::f32, values.data(), dtype, t.bytes.data(), values.size());
  return t;
}

}  // namespace sinter::quant
