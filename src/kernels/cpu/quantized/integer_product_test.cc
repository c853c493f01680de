// Integer products against the same weights taken apart, and every instruction set against the plain loops.
#include "kernels/cpu/quantized/integer_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/blocks.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/choices.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul/derived_parts.h"
#include "kernels/cpu/quantized/integer_strip.h"

namespace sinter::kernels::cpu {
namespace {

using base::WeightFormat;

constexpr WeightFormat kFormats[] = {WeightFormat::q8_0,  WeightFormat::q4_0, WeightFormat::q4_1,  WeightFormat::q5_0,
                                     WeightFormat::q5_1,  WeightFormat::q2_k, WeightFormat::q3_k,  WeightFormat::q4_k,
                                     WeightFormat::q5_k,  WeightFormat::q6_k, WeightFormat::mxfp4, WeightFormat::iq4_nl,
                                     WeightFormat::iq4_xs};

// Where the halves of a block stand that are a scale or a minimum.
std::vector<size_t> halves_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::q2_k:
      return {80, 82};
    case WeightFormat::q3_k:
      return {108};
    case WeightFormat::q6_k:
      return {208};
    case WeightFormat::q4_1:
    case WeightFormat::q5_1:
    case WeightFormat::q4_k:
    case WeightFormat::q5_k:
      return {0, 2};
    default:
      return {0};
  }
}

// Random codes; the halves that are scales get an exponent that makes them a few thousandths.
std::vector<uint8_t> random_weights(WeightFormat format, int64_t rows, int64_t columns) {
  std::vector<uint8_t> bytes(static_cast<size_t>(base::bytes_of(format, rows * columns)));
  const base::CounterRng rng{11, static_cast<uint64_t>(format)};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(rng.bits(i));
  const auto block = static_cast<size_t>(base::info_of(format).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    if (format == WeightFormat::mxfp4) {
      bytes[at] = static_cast<uint8_t>(118 + bytes[at] % 4);
      continue;
    }
    for (size_t half : halves_of(format)) bytes[at + half + 1] = static_cast<uint8_t>(0x18 | (bytes[at + half] & 0x80));
  }
  return bytes;
}
// Columns that fill whole groups of 256 or, where blocks are short, do not.
std::vector<int64_t> column_counts(WeightFormat format) {
  if (base::info_of(format).block_elements == 32) return {32, 256, 288, 736};
  return {256, 768, 2048 + 256};
}

std::vector<float> random_floats(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  const base::CounterRng rng{seed, 3};
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<double>(rng.bits(i) >> 8) / (1 << 24) * 2 - 1);
  return values;
}

struct Rounded {
  std::vector<int8_t> codes;
  std::vector<float> scales, sums;
  std::vector<int32_t> halves;
  RoundedRows rows;
  Rounded(const std::vector<float>& x, int64_t m, int64_t k) {
    const int64_t stride = padded_columns(k);
    codes.resize(static_cast<size_t>(m * stride), 77);
    scales.resize(codes.size() / 32, 7), sums = scales;
    halves.resize(codes.size() / 16, 7);
    for (int64_t r = 0; r < m; ++r)
      round_row(x.data() + r * k, k, codes.data() + r * stride, scales.data() + r * stride / 32,
                sums.data() + r * stride / 32, halves.data() + r * stride / 16);
    rows = {codes.data(), scales.data(), sums.data(), halves.data(), k, stride};
  }
};

TEST(CpuIntegerProduct, RoundsToTheNearestCodeAndTiesToEven) {
  std::vector<float> x(32);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) - 15.5f;
  x[0] = 127;
  const Rounded rounded(x, 1, 32);
  EXPECT_EQ(rounded.scales[0], 1.0f);
  int sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(static_cast<float>(rounded.codes[i]), std::nearbyint(x[i])) << x[i];
    sum += rounded.codes[i];
  }
  EXPECT_EQ(rounded.sums[0], static_cast<float>(sum));
  EXPECT_EQ(rounded.halves[0] + rounded.halves[8], sum);
  EXPECT_EQ(rounded.codes[32], 0);
  EXPECT_EQ(rounded.scales[7], 0.0f);
}

TEST(CpuIntegerProduct, ANotANumberIsNotHidden) {
  for (float bad : {NAN, -INFINITY}) {
    std::vector<float> x(64, 1.0f);
    x[40] = bad;
    const Rounded rounded(x, 1, 64);
    EXPECT_TRUE(std::isfinite(rounded.scales[0]));
    EXPECT_FALSE(std::isfinite(rounded.scales[1]));
  }
}

TEST(CpuIntegerProduct, KnowsTheBytesOfItsFormats) {
  for (WeightFormat format : kFormats) EXPECT_EQ(group_bytes(format), base::bytes_of(format, kGroupColumns));
}

TEST(CpuIntegerProduct, IsThatOfTheRoundedActivations) {
  for (WeightFormat format : kFormats) {
    for (int64_t k : column_counts(format)) {
      const int64_t m = 5, n = 7;
      const std::vector<uint8_t> weights = random_weights(format, n, k);
      const std::vector<float> x = random_floats(m * k, 5);
      const Rounded rounded(x, m, k);
      std::vector<float> plain(static_cast<size_t>(n * k));
      base::dequantize_blocks(format, weights.data(), nullptr, plain.data(), n * k);
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t first : {0, 4}) {
          const int64_t count = std::min(kRowsAtOnce, m - first);
          float out[kRowsAtOnce];
          integer_kernel(format)(weights.data() + base::bytes_of(format, r * k), rounded.rows, first, count, out);
          for (int64_t i = 0; i < count; ++i) {
            double exact = 0, of_unrounded = 0, row_norm = 0, x_norm = 0;
            for (int64_t c = 0; c < k; ++c) {
              const int64_t at = (first + i) * rounded.rows.stride + c;
              const double w = plain[static_cast<size_t>(r * k + c)];
              const auto unrounded = static_cast<double>(x[static_cast<size_t>((first + i) * k + c)]);
              exact += w * rounded.rows.codes[at] * static_cast<double>(rounded.rows.scales[at / 32]);
              of_unrounded += w * unrounded;
              row_norm += w * w, x_norm += unrounded * unrounded;
            }
            const double norms = std::sqrt(row_norm * x_norm);
            EXPECT_NEAR(static_cast<double>(out[i]), exact, 1e-6 * norms) << base::name_of(format) << " " << k;
            EXPECT_NEAR(static_cast<double>(out[i]), of_unrounded, 1e-2 * norms) << base::name_of(format) << " " << k;
          }
        }
      }
    }
  }
}

TEST(CpuIntegerProduct, GivesTheSameBitsOnEveryInstructionSetAndForAnyCountOfRows) {
  const base::CpuFeatures& cpu = base::cpu_features();
  for (WeightFormat format : kFormats) {
    for (int64_t k : column_counts(format)) {
      const int64_t m = 4;
      const std::vector<uint8_t> weights = random_weights(format, 1, k);
      const Rounded rounded(random_floats(m * k, 9), m, k);
      float expected[4], found[4];
      for (int64_t i = 0; i < m; ++i) portable_integer_kernel(format)(weights.data(), rounded.rows, i, 1, expected + i);
      for (auto [has, kernel] : {std::pair{true, portable_integer_kernel(format)},
                                 {cpu.avx2, avx2_integer_kernel(format)},
                                 {cpu.avx512 && cpu.avx512_vnni, avx512_vnni_integer_kernel(format)}}) {
        if (!has || !kernel) continue;
        for (int64_t count = 1; count <= m; ++count) {
          kernel(weights.data(), rounded.rows, m - count, count, found);
          EXPECT_EQ(std::memcmp(expected + m - count, found, static_cast<size_t>(count) * sizeof(float)), 0)
              << base::name_of(format) << " " << k << ", " << count << " rows";
        }
      }
    }
  }
}

TEST(CpuIntegerProduct, StripsGiveTheBitsOfSingleRows) {
  if (!base::cpu_features().avx512 || !base::cpu_features().avx512_vnni) GTEST_SKIP() << "no AVX-512 VNNI";
  for (WeightFormat format : kFormats) {
    for (int64_t k : column_counts(format)) {
      const int64_t m = 6, row_bytes = base::bytes_of(format, k);
      const std::vector<uint8_t> weights = random_weights(format, kPackedRows, k);
      const Rounded rounded(random_floats(m * k, 21), m, k);
      const IntegerStripKernel kernel = avx512_vnni_strip_kernel(format);
      for (int64_t n : {kPackedRows, int64_t{17}, int64_t{1}}) {
        std::vector<uint8_t> room(static_cast<size_t>(strip_bytes(format, k)) + 64, 0xa5);
        uint8_t* strip = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64);
        kernel.pack(weights.data(), row_bytes, n, k, strip);
        for (int64_t count = 1; count <= kPackedActivations; ++count) {
          float found[kPackedActivations * kPackedRows];
          kernel.multiply(strip, rounded.rows, m - count, count, found);
          for (int64_t i = 0; i < count; ++i) {
            for (int64_t r = 0; r < n; ++r) {
              float expected = 0;
              portable_integer_kernel(format)(weights.data() + r * row_bytes, rounded.rows, m - count + i, 1,
                                              &expected);
              ASSERT_EQ(std::memcmp(&expected, found + i * kPackedRows + r, sizeof expected), 0)
                  << base::name_of(format) << " " << k << ": row " << r << " of " << n << ", activation " << i;
            }
            for (int64_t r = n; r < kPackedRows; ++r) EXPECT_EQ(found[i * kPackedRows + r], 0.0f);
          }
        }
      }
    }
  }
}

// Rows alone, in small batches and in large ones, through the whole product.
TEST(CpuIntegerProduct, ARowHasTheSameBitsInEveryBatch) {
  const IntegerProducts allowed(true);
  core::Allocator& memory = core::runtime({}).allocator();
  core::Stream& stream = core::runtime({}).stream();
  const int64_t k = 512, n = 45, m = 20;
  for (WeightFormat format : {WeightFormat::q4_k, WeightFormat::q8_0}) {
    std::vector<uint8_t> bytes = random_weights(format, n, k);
    auto blocks = std::make_shared<core::WeightBlocks>();
    core::WeightPart part{.format = format, .rows = n};
    part.data = core::Tensor::view_of(bytes.data(), {1, static_cast<int64_t>(bytes.size())}, base::DType::u8, {});
    *blocks = {.rows = n, .columns = k, .parts = {part}};
    const core::Tensor a = core::make_tensor(memory, {m, k}, random_floats(m * k, 4));
    auto product = [&](int64_t first, int64_t count) {
      MatmulArgs args{.a = a.slice(first, count),
                      .b = {.blocks = blocks},
                      .c = core::Tensor(memory, {count, n}, base::DType::f32),
                      .transpose_b = true};
      matmul(stream, args);
      return core::to_host_floats(args.c);
    };
    const std::vector<float> all = product(0, m);
    for (int64_t count : {1, 2, 3, 7, 8, 13}) {
      const std::vector<float> some = product(m - count, count);
      EXPECT_EQ(std::memcmp(some.data(), all.data() + (m - count) * n, some.size() * sizeof(float)), 0) << count;
    }
  }
}

TEST(CpuIntegerProduct, AWeightThatIsKeptGivesTheSameBits) {
  const IntegerProducts allowed(true);
  core::Allocator& memory = core::runtime({}).allocator();
  const int64_t k = 512, n = 64, m = 9;
  for (WeightFormat format : kFormats) {
    std::vector<uint8_t> bytes = random_weights(format, 2 * n, k);
    auto blocks = std::make_shared<core::WeightBlocks>();
    *blocks = {.experts = 2, .rows = n, .columns = k};
    core::WeightPart part{.format = format, .rows = n};
    part.data = core::Tensor::view_of(bytes.data(), {2, base::bytes_of(format, n * k)}, base::DType::u8, {});
    blocks->parts.push_back(part);
    const core::Tensor a = core::make_tensor(memory, {m, k}, random_floats(m * k, 4));
    std::shared_ptr<core::DerivedWeight> derived;
    auto product = [&](int64_t count, bool keeps) {
      MatmulArgs args{.a = a.slice(0, count),
                      .b = {.blocks = blocks, .derived = keeps ? &derived : nullptr},
                      .c = core::Tensor(memory, {count, n}, base::DType::f32),
                      .transpose_b = true};
      integer_matmul(args, 1);
      return core::to_host_floats(args.c);
    };
    for (int turn = 0; turn < 12; ++turn) {  // the copy is made after some products
      for (int64_t count : {int64_t{1}, int64_t{2}, m}) EXPECT_EQ(product(count, true), product(count, false));
    }
    auto* parts = dynamic_cast<DerivedParts*>(derived.get());
    ASSERT_TRUE(parts);
    EXPECT_EQ(parts->parts[0] != nullptr, integer_strip_kernel(format) && is_strip_small(format))
        << base::name_of(format);
  }
}

TEST(CpuIntegerProduct, TakesPartsBiasAndAddend) {
  const int64_t k = 256, m = 3, n = 9, first_rows = 4;
  auto weights = random_weights(WeightFormat::q4_k, first_rows, k),
       more = random_weights(WeightFormat::q6_k, n - first_rows, k);
  auto blocks = std::make_shared<core::WeightBlocks>();
  auto part = [&](WeightFormat format, std::vector<uint8_t>& bytes, int64_t rows) {
    core::WeightPart p{.format = format, .rows = rows};
    p.data = core::Tensor::view_of(bytes.data(), {1, static_cast<int64_t>(bytes.size())}, base::DType::u8, {});
    return p;
  };
  *blocks = {.rows = n,
             .columns = k,
             .parts = {part(WeightFormat::q4_k, weights, first_rows), part(WeightFormat::q6_k, more, n - first_rows)}};
  core::Allocator& memory = core::runtime({}).allocator();
  MatmulArgs args{.a = core::make_tensor(memory, {m, k}, random_floats(m * k, 1)),
                  .b = {.blocks = blocks},
                  .c = core::Tensor(memory, {m, n}, base::DType::f32),
                  .transpose_b = true};
  args.bias = core::make_tensor(memory, {n}, random_floats(n, 2));
  args.addend = core::make_tensor(memory, {m, n}, random_floats(m * n, 3));
  core::Stream& stream = core::runtime({}).stream();
  EXPECT_FALSE(is_integer_product(args));
  matmul(stream, args);
  const std::vector<float> exact = core::to_host_floats(args.c);
  const IntegerProducts allowed(true);
  EXPECT_TRUE(is_integer_product(args));
  matmul(stream, args);
  const std::vector<float> rounded = core::to_host_floats(args.c);
  double error = 0, size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(static_cast<double>(exact[i]) - static_cast<double>(rounded[i]), 2);
    size += std::pow(static_cast<double>(exact[i]), 2);
  }
  EXPECT_LT(error, 1e-3 * size);
  EXPECT_GT(error, 0);
}

}  // namespace
}  // namespace sinter::kernels::cpu
