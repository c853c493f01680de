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

namespace sinter::kernels::cpu {
namespace {

using base::WeightFormat;

constexpr WeightFormat kFormats[] = {WeightFormat::q8_0, WeightFormat::q4_0, WeightFormat::q4_k, WeightFormat::q5_k,
                                     WeightFormat::q6_k};

// Random codes; the halves that are scales get an exponent that makes them a few thousandths.
std::vector<uint8_t> random_weights(WeightFormat format, int64_t rows, int64_t columns) {
  std::vector<uint8_t> bytes(static_cast<size_t>(base::bytes_of(format, rows * columns)));
  const base::CounterRng rng{11, static_cast<uint64_t>(format)};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(rng.bits(i));
  const auto block = static_cast<size_t>(base::info_of(format).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    const bool is_last = format == WeightFormat::q6_k;
    bytes[at + (is_last ? 209 : 1)] = 0x18;
    if (format == WeightFormat::q4_k || format == WeightFormat::q5_k) bytes[at + 3] = 0x18;
  }
  return bytes;
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
  RoundedRows rows;
  Rounded(const std::vector<float>& x, int64_t m, int64_t k)
      : codes(x.size()), scales(x.size() / 32), sums(x.size() / 32) {
    for (int64_t r = 0; r < m; ++r)
      round_row(x.data() + r * k, k, codes.data() + r * k, scales.data() + r * k / 32, sums.data() + r * k / 32);
    rows = {codes.data(), scales.data(), sums.data(), k};
  }
};

TEST(CpuIntegerProduct, IsThatOfTheRoundedActivations) {
  for (WeightFormat format : kFormats) {
    for (int64_t k : {256, 768}) {
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
              const auto at = static_cast<size_t>((first + i) * k + c);
              const double w = plain[static_cast<size_t>(r * k + c)];
              exact += w * rounded.codes[at] * static_cast<double>(rounded.scales[at / 32]);
              of_unrounded += w * static_cast<double>(x[at]);
              row_norm += w * w, x_norm += static_cast<double>(x[at]) * static_cast<double>(x[at]);
            }
            const double norms = std::sqrt(row_norm * x_norm);
            EXPECT_NEAR(static_cast<double>(out[i]), exact, 1e-6 * norms) << base::name_of(format);
            EXPECT_NEAR(static_cast<double>(out[i]), of_unrounded, 1e-2 * norms) << base::name_of(format);
          }
        }
      }
    }
  }
}

TEST(CpuIntegerProduct, GivesTheSameBitsOnEveryInstructionSetAndForAnyCountOfRows) {
  const base::CpuFeatures& cpu = base::cpu_features();
  for (WeightFormat format : kFormats) {
    const int64_t k = 1280 / 256 * 256, m = 4;
    const std::vector<uint8_t> weights = random_weights(format, 1, k);
    const Rounded rounded(random_floats(m * k, 9), m, k);
    float expected[4], found[4];
    for (int64_t i = 0; i < m; ++i) portable_integer_kernel(format)(weights.data(), rounded.rows, i, 1, expected + i);
    for (auto [has, kernel] : {std::pair{true, portable_integer_kernel(format)},
                               {cpu.avx2, avx2_integer_kernel(format)},
                               {cpu.avx512 && cpu.avx512_vnni, avx512_vnni_integer_kernel(format)}}) {
      if (!has || !kernel) continue;
      kernel(weights.data(), rounded.rows, 0, 4, found);
      EXPECT_EQ(std::memcmp(expected, found, sizeof found), 0) << base::name_of(format);
      kernel(weights.data(), rounded.rows, 2, 1, found);
      EXPECT_EQ(std::memcmp(expected + 2, found, sizeof(float)), 0) << base::name_of(format);
    }
  }
}

TEST(CpuIntegerProduct, PairsOfRowsGiveTheBitsOfOneForAnyCount) {
  if (!base::cpu_features().avx512 || !base::cpu_features().avx512_vnni) GTEST_SKIP() << "no AVX-512 VNNI";
  for (WeightFormat format : kFormats) {
    const int64_t k = 1280, m = 8, row_bytes = base::bytes_of(format, k);
    const std::vector<uint8_t> weights = random_weights(format, 2, k);
    const Rounded rounded(random_floats(m * k, 21), m, k);
    for (int64_t count = 1; count <= kPairedRowsAtOnce; ++count) {
      float found[2 * kPairedRowsAtOnce];
      avx512_vnni_pair_kernel(format)(weights.data(), row_bytes, rounded.rows, m - count, count, found);
      for (int64_t i = 0; i < 2 * count; ++i) {
        float expected = 0;
        portable_integer_kernel(format)(weights.data() + i % 2 * row_bytes, rounded.rows, m - count + i / 2, 1,
                                        &expected);
        EXPECT_EQ(std::memcmp(&expected, found + i, sizeof expected), 0) << base::name_of(format) << " of " << count;
      }
    }
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
