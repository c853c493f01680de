#include "models/quantized/unpack.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "base/threads.h"

namespace sinter::models::quantized {
namespace {

using base::DType;
using core::Tensor;
using core::WeightFormat;
using core::WeightPart;

Tensor host_tensor(base::Shape shape, DType dtype) { return Tensor(core::runtime({}).allocator(), shape, dtype); }

const io::TensorEntry& need(const io::TensorEntry* entry, const PackedTensors& t, const char* what) {
  SINTER_CHECK(entry, "the weight '{}' has no {}", t.name, what);
  return *entry;
}

void check_shape(const io::TensorEntry& entry, std::initializer_list<int64_t> shape) {
  const std::vector<int64_t> expected(shape);
  SINTER_CHECK(entry.shape == expected, "tensor '{}' has the shape {}; expected {}", entry.name,
               io::shape_to_string(entry.shape), io::shape_to_string(expected));
}

const uint32_t* words_of(const io::TensorEntry& entry) {
  SINTER_CHECK(entry.dtype == DType::i32 || entry.dtype == DType::u32, "tensor '{}' is {}; expected i32", entry.name,
               base::dtype_name(entry.dtype));
  return reinterpret_cast<const uint32_t*>(entry.bytes.data());
}

std::vector<float> floats_of(const io::TensorEntry& entry) {
  SINTER_CHECK(base::is_floating(entry.dtype), "tensor '{}' is {}; expected f32, f16 or bf16", entry.name,
               base::dtype_name(entry.dtype));
  std::vector<float> values(static_cast<size_t>(entry.num_elements()));
  base::convert_elements(entry.dtype, entry.bytes.data(), DType::f32, values.data(), values.size());
  return values;
}

// Field i of `bits` in a stream of words `stride` apart, the lowest bits first.
uint32_t field_of(const uint32_t* words, int64_t stride, int64_t i, int bits) {
  const int64_t at = i * bits, word = at / 32, shift = at % 32;
  uint64_t two = words[word * stride];
  if (shift + bits > 32) two |= static_cast<uint64_t>(words[(word + 1) * stride]) << 32;
  return static_cast<uint32_t>(two >> shift) & ((1u << bits) - 1);
}

// Room for codes of 4 or 8 bits.
WeightPart make_part(Size size, int bits) {
  WeightPart part{.format = bits == 8 ? WeightFormat::int8 : WeightFormat::int4, .rows = size.rows};
  const int64_t row_bytes = bits == 8 ? size.columns : size.columns / 2;
  SINTER_CHECK(bits == 8 || size.columns % 2 == 0,
               "a weight of {} columns cannot be read in {} bits; expected an even number", size.columns, bits);
  part.data = host_tensor({1, size.rows * row_bytes}, DType::u8);
  return part;
}

template <class CodeOf>  // code_of(row, column)
void fill_codes(WeightPart& part, Size size, CodeOf code_of) {
  auto* bytes = part.data.data<uint8_t>();
  const bool is_wide = part.format == WeightFormat::int8;
  const int64_t row_bytes = is_wide ? size.columns : size.columns / 2;
  base::parallel_for(size.rows, 8, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      uint8_t* row = bytes + r * row_bytes;
      for (int64_t c = 0; c < row_bytes; ++c)
        row[c] = static_cast<uint8_t>(is_wide ? code_of(r, c) : code_of(r, 2 * c) | code_of(r, 2 * c + 1) << 4);
    }
  });
}

// Scales and zero points (rows, groups) from those of the file, (groups, rows) there.
void set_transposed_scales(WeightPart& part, Size size, int64_t groups, const std::vector<float>& scales,
                           const std::vector<float>& zeros) {
  part.scales = host_tensor({1, size.rows, groups}, DType::f32);
  const float usual = part.format == WeightFormat::int8 ? 128.0f : 8.0f;
  const bool is_usual = std::all_of(zeros.begin(), zeros.end(), [&](float z) { return z == usual; });
  if (!is_usual) part.zeros = host_tensor({1, size.rows, groups}, DType::f32);
  for (int64_t r = 0; r < size.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const auto from = static_cast<size_t>(g * size.rows + r);
      part.scales.data<float>()[r * groups + g] = scales[from];
      if (!is_usual) part.zeros.data<float>()[r * groups + g] = zeros[from];
    }
  }
}

int64_t group_count(int64_t columns, int64_t group) { return (columns + group - 1) / group; }

// Version 1 of the format subtracts one from every field of a word as from one number, so that a field of 0 borrows
// from the next; at 3 bits, whose fields cross words, each field by itself.
std::vector<float> gptq_zeros(const io::TensorEntry& entry, int64_t groups, int64_t rows, int bits, int version) {
  check_shape(entry, {groups, rows * bits / 32});
  const uint32_t* words = words_of(entry);
  const uint32_t ones = bits == 2 ? 0x55555555u : bits == 4 ? 0x11111111u : bits == 8 ? 0x01010101u : 0u;
  std::vector<uint32_t> row(static_cast<size_t>(rows * bits / 32));
  std::vector<float> zeros(static_cast<size_t>(groups * rows));
  for (int64_t g = 0; g < groups; ++g) {
    for (size_t w = 0; w < row.size(); ++w)
      row[w] = words[static_cast<size_t>(g) * row.size() + w] + (version == 1 ? ones : 0u);
    for (int64_t r = 0; r < rows; ++r) {
      uint32_t zero = field_of(row.data(), 1, r, bits);
      if (version == 1 && bits == 3) zero = (zero + 1) & 7;
      zeros[static_cast<size_t>(g * rows + r)] = static_cast<float>(zero);
    }
  }
  return zeros;
}

}  // namespace

WeightPart unpack_gptq(const PackedTensors& t, Size size, int bits, int64_t group, int version) {
  SINTER_CHECK(bits == 2 || bits == 3 || bits == 4 || bits == 8,
               "the weight '{}' is in {} bits; 2, 3, 4 and 8 are read", t.name, bits);
  SINTER_CHECK(size.columns * bits % 32 == 0 && size.rows * bits % 32 == 0,
               "the weight '{}' of ({}, {}) in {} bits fills no whole words", t.name, size.rows, size.columns, bits);
  if (group <= 0) group = size.columns;
  const int64_t groups = group_count(size.columns, group);
  const io::TensorEntry &codes = need(t.codes, t, "qweight"), &scales = need(t.scales, t, "scales"),
                        &zeros = need(t.zeros, t, "qzeros");
  check_shape(codes, {size.columns * bits / 32, size.rows});
  check_shape(scales, {groups, size.rows});
  const uint32_t* words = words_of(codes);
  WeightPart part = make_part(size, bits);
  part.group = group;
  fill_codes(part, size, [&](int64_t r, int64_t c) { return field_of(words + r, size.rows, c, bits); });
  set_transposed_scales(part, size, groups, floats_of(scales), gptq_zeros(zeros, groups, size.rows, bits, version));
  if (!t.groups) return part;
  check_shape(*t.groups, {size.columns});
  const auto* g = reinterpret_cast<const int32_t*>(words_of(*t.groups));
  bool is_plain = true;
  for (int64_t c = 0; c < size.columns; ++c) {
    SINTER_CHECK(g[c] >= 0 && g[c] < groups, "tensor '{}' holds the group {}; expected 0 to {}", t.groups->name, g[c],
                 groups - 1);
    is_plain = is_plain && g[c] == c / group;
  }
  if (is_plain) return part;
  part.permutation = host_tensor({size.columns}, DType::i32);
  std::copy_n(g, size.columns, part.permutation.data<int32_t>());
  return part;
}

WeightPart unpack_awq(const PackedTensors& t, Size size, int64_t group) {
  constexpr int kPlaceOf[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // the nibble of column c of eight
  if (group <= 0) group = size.columns;
  const int64_t groups = group_count(size.columns, group);
  SINTER_CHECK(size.rows % 8 == 0, "the weight '{}' has {} rows; AWQ packs eight at a time", t.name, size.rows);
  const io::TensorEntry &codes = need(t.codes, t, "qweight"), &scales = need(t.scales, t, "scales"),
                        &zero_words = need(t.zeros, t, "qzeros");
  check_shape(codes, {size.columns, size.rows / 8});
  check_shape(zero_words, {groups, size.rows / 8});
  check_shape(scales, {groups, size.rows});
  auto nibble = [&](const uint32_t* words, int64_t line, int64_t r) {
    return words[line * (size.rows / 8) + r / 8] >> 4 * kPlaceOf[r % 8] & 15u;
  };
  WeightPart part = make_part(size, 4);
  part.group = group;
  fill_codes(part, size, [&, words = words_of(codes)](int64_t r, int64_t c) { return nibble(words, c, r); });
  std::vector<float> zeros(static_cast<size_t>(groups * size.rows));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < size.rows; ++r)
      zeros[static_cast<size_t>(g * size.rows + r)] = static_cast<float>(nibble(words_of(zero_words), g, r));
  }
  set_transposed_scales(part, size, groups, floats_of(scales), zeros);
  return part;
}

WeightPart unpack_packed_integers(const PackedTensors& t, Size size, int bits, int64_t group) {
  SINTER_CHECK(bits == 4 || bits == 8, "the weight '{}' is in {} bits; 4 and 8 are read in this format", t.name, bits);
  if (group <= 0) group = size.columns;
  const int64_t groups = group_count(size.columns, group), row_words = (size.columns * bits + 31) / 32;
  const io::TensorEntry &codes = need(t.codes, t, "weight_packed"), &scales = need(t.scales, t, "weight_scale");
  check_shape(codes, {size.rows, row_words});
  check_shape(scales, {size.rows, groups});
  WeightPart part = make_part(size, bits);
  part.group = group;
  const uint32_t* words = words_of(codes);
  fill_codes(part, size, [&](int64_t r, int64_t c) { return field_of(words + r * row_words, 1, c, bits); });
  part.scales = host_tensor({1, size.rows, groups}, DType::f32);
  const std::vector<float> values = floats_of(scales);
  std::copy(values.begin(), values.end(), part.scales.data<float>());
  if (t.zeros) {  // packed along the rows
    check_shape(*t.zeros, {(size.rows * bits + 31) / 32, groups});
    part.zeros = host_tensor({1, size.rows, groups}, DType::f32);
    const uint32_t* zero_words = words_of(*t.zeros);
    for (int64_t r = 0; r < size.rows; ++r) {
      for (int64_t g = 0; g < groups; ++g)
        part.zeros.data<float>()[r * groups + g] = static_cast<float>(field_of(zero_words + g, groups, r, bits));
    }
  }
  if (t.groups) {
    check_shape(*t.groups, {size.columns});
    part.permutation = host_tensor({size.columns}, DType::i32);
    std::memcpy(part.permutation.raw(), words_of(*t.groups), part.permutation.bytes());
    for (int64_t c = 0; c < size.columns; ++c) {
      const int32_t g = part.permutation.data<int32_t>()[c];
      SINTER_CHECK(g >= 0 && g < groups, "tensor '{}' holds the group {}; expected 0 to {}", t.groups->name, g,
                   groups - 1);
    }
  }
  return part;
}

WeightPart unpack_bytes(const PackedTensors& t, Size size, int64_t block_rows, int64_t block_columns, double factor) {
  const io::TensorEntry &codes = need(t.codes, t, "weight"), &scales = need(t.scales, t, "scale");
  check_shape(codes, {size.rows, size.columns});
  const std::vector<float> values = floats_of(scales);
  // How many rows and columns share a scale follows from how many there are.
  int64_t down = 1, across = 1;
  if (scales.shape.size() == 2) down = scales.shape[0], across = scales.shape[1];
  if (scales.shape.size() == 1) down = scales.shape[0];
  const bool is_blocks = block_rows > 0 && block_columns > 0;
  if (!is_blocks) {
    block_rows = down == 1 ? size.rows : 1;
    block_columns = group_count(size.columns, std::max<int64_t>(1, across));
  }
  SINTER_CHECK(down == group_count(size.rows, block_rows) && across == group_count(size.columns, block_columns),
               "tensor '{}' has the shape {}, which does not fit a weight of ({}, {})", scales.name,
               io::shape_to_string(scales.shape), size.rows, size.columns);
  const bool is_fp8 = codes.dtype == DType::f8e4m3;
  SINTER_CHECK(is_fp8 || codes.dtype == DType::i8, "tensor '{}' is {}; expected f8e4m3 or i8", codes.name,
               base::dtype_name(codes.dtype));
  WeightPart part{.format = is_fp8 ? WeightFormat::fp8_e4m3 : WeightFormat::int8, .rows = size.rows};
  part.group = block_columns;
  part.data = host_tensor({1, size.rows * size.columns}, DType::u8);
  const auto* from = reinterpret_cast<const uint8_t*>(codes.bytes.data());
  const uint8_t flip = is_fp8 ? 0 : 0x80;  // i8 as codes around 128
  std::transform(from, from + codes.bytes.size(), part.data.data<uint8_t>(),
                 [flip](uint8_t x) { return static_cast<uint8_t>(x ^ flip); });
  part.scales = host_tensor({1, size.rows, across}, DType::f32);
  for (int64_t r = 0; r < size.rows; ++r) {
    for (int64_t g = 0; g < across; ++g) {
      const float scale = values[static_cast<size_t>(r / block_rows * across + g)];
      part.scales.data<float>()[r * across + g] = factor == 1.0 ? scale : scale * static_cast<float>(factor);
    }
  }
  return part;
}

WeightPart unpack_bitsandbytes(const PackedTensors& t, Size size, WeightFormat format, std::span<const float> scales,
                               int64_t block) {
  const io::TensorEntry& codes = need(t.codes, t, "weight");
  const int64_t count = size.rows * size.columns;
  SINTER_CHECK(codes.dtype == DType::u8 && codes.num_elements() == count / 2 && size.columns % 2 == 0,
               "tensor '{}' has {} bytes of {}; expected u8 of ({} x {}) / 2", codes.name, codes.num_elements(),
               base::dtype_name(codes.dtype), size.rows, size.columns);
  SINTER_CHECK(block > 0 && static_cast<int64_t>(scales.size()) == group_count(count, block),
               "the weight '{}' has {} scales for {} numbers in blocks of {}", t.name, scales.size(), count, block);
  // Blocks run over the flattened tensor; a group divides both them and the rows.
  const int64_t group = std::gcd(size.columns, block), groups = size.columns / group;
  WeightPart part{.format = format, .rows = size.rows, .group = group};
  part.data = host_tensor({1, count / 2}, DType::u8);
  std::memcpy(part.data.raw(), codes.bytes.data(), codes.bytes.size());
  part.scales = host_tensor({1, size.rows, groups}, DType::f32);
  for (int64_t i = 0; i < size.rows * groups; ++i)
    part.scales.data<float>()[i] = scales[static_cast<size_t>(i * group / block)];
  return part;
}

namespace {

// Codes of pairs, the first low, as ggml has them: value j and value j + half of `half` in one byte.
void to_halves(const uint8_t* pairs, int half, uint8_t* out) {
  auto code = [&](int i) { return pairs[i / 2] >> 4 * (i % 2) & 15; };
  for (int j = 0; j < half; ++j) out[j] = static_cast<uint8_t>(code(j) | code(j + half) << 4);
}

const uint8_t* bytes_of_codes(const PackedTensors& t, Size size) {
  const io::TensorEntry& codes = need(t.codes, t, "packed codes");
  SINTER_CHECK(codes.dtype == DType::u8, "tensor '{}' is {}; expected u8", codes.name, base::dtype_name(codes.dtype));
  check_shape(codes, {size.rows, size.columns / 2});
  return reinterpret_cast<const uint8_t*>(codes.bytes.data());
}

}  // namespace

WeightPart unpack_mxfp4(const PackedTensors& t, Size size) {
  SINTER_CHECK(size.columns % 32 == 0, "the weight '{}' has {} columns; MXFP4 needs a multiple of 32", t.name,
               size.columns);
  const uint8_t* codes = bytes_of_codes(t, size);
  const io::TensorEntry& scales = need(t.scales, t, "weight_scale");
  check_shape(scales, {size.rows, size.columns / 32});
  const auto* exponents = reinterpret_cast<const uint8_t*>(scales.bytes.data());
  const int64_t blocks = size.rows * size.columns / 32;
  WeightPart part{.format = WeightFormat::mxfp4, .rows = size.rows};
  part.data = host_tensor({1, blocks * 17}, DType::u8);
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* out = part.data.data<uint8_t>() + b * 17;
    out[0] = exponents[b];
    to_halves(codes + b * 16, 16, out + 1);
  }
  return part;
}

WeightPart unpack_nvfp4(const PackedTensors& t, Size size, bool divides) {
  SINTER_CHECK(size.columns % 64 == 0, "the weight '{}' has {} columns; NVFP4 is read in multiples of 64", t.name,
               size.columns);
  const uint8_t* codes = bytes_of_codes(t, size);
  const io::TensorEntry& scales = need(t.scales, t, "weight_scale");
  SINTER_CHECK(scales.dtype == DType::f8e4m3, "tensor '{}' is {}; expected f8e4m3", scales.name,
               base::dtype_name(scales.dtype));
  check_shape(scales, {size.rows, size.columns / 16});
  const auto* scale_bytes = reinterpret_cast<const uint8_t*>(scales.bytes.data());
  const int64_t blocks = size.rows * size.columns / 64;
  WeightPart part{.format = WeightFormat::nvfp4, .rows = size.rows};
  part.data = host_tensor({1, blocks * 36}, DType::u8);
  for (int64_t b = 0; b < blocks; ++b) {
    uint8_t* out = part.data.data<uint8_t>() + b * 36;
    for (int s = 0; s < 4; ++s) {
      out[s] = scale_bytes[b * 4 + s];
      SINTER_CHECK(out[s] < 0x7f, "tensor '{}' holds a negative scale or NaN", scales.name);
      to_halves(codes + b * 32 + s * 8, 8, out + 4 + s * 8);
    }
  }
  if (t.global_scale) {
    const std::vector<float> global = floats_of(*t.global_scale);
    SINTER_CHECK(global.size() == 1 && global[0] > 0, "tensor '{}' is no single positive number", t.global_scale->name);
    part.global_scale = divides ? 1.0f / global[0] : global[0];
  }
  return part;
}

}  // namespace sinter::models::quantized
