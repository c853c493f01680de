// Products with weights that are not plain, packed copies of weights, and results that are a part of their rows.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "kernels/cpu/matmul/matmul_test_cases.h"

namespace sinter::kernels {
namespace {

using namespace matmul_test;

class MatmulWeights : public MatmulTest {};

// A weight (E, n, k) of q8_0 rows, then as many rows of q4_0 as are left: random codes, scales of a few thousandths.
core::WeightView random_blocks(int64_t experts, int64_t n, int64_t k, int64_t first_rows) {
  auto blocks = std::make_shared<core::WeightBlocks>();
  *blocks = {.experts = experts, .rows = n, .columns = k};
  for (auto [format, rows] :
       {std::pair{base::WeightFormat::q8_0, first_rows}, {base::WeightFormat::q4_0, n - first_rows}}) {
    const int64_t bytes = base::bytes_of(format, rows * k), block_bytes = base::info_of(format).block_bytes;
    Tensor data(allocator(), {experts, bytes}, DType::u8);
    base::CounterRng rng{7, static_cast<uint64_t>(format)};
    for (int64_t i = 0; i < experts * bytes; ++i) {
      const auto random = static_cast<uint8_t>(rng.bits(static_cast<uint64_t>(i)));
      data.data<uint8_t>()[i] = i % block_bytes == 1 ? 0x18 : random;  // the scale's exponent
    }
    blocks->parts.push_back({.format = format, .data = data, .rows = rows});
  }
  return {.blocks = blocks};
}

TEST_P(MatmulWeights, WritesARangeOfColumnsAndNothingElse) {
  for (auto [dtype, c_dtype] : kFormats) {
    for (auto [m, n, k] : {std::array<int64_t, 3>{5, 33, 40}, {70, 100, 130}, {3, 64, 700}, {200, 16, 1100}}) {
      for (bool adds : {false, true}) {
        MatmulArgs args = make_args({m, n, k, false, true, dtype, c_dtype});
        args.c = random_tensor({m, n + 29}, c_dtype, 3);
        args.c_first_column = 13;
        args.c_columns = n;
        args.bias = random_tensor({n}, c_dtype, 4);
        if (adds) args.addend = random_tensor({m, n + 29}, c_dtype, 5);
        EXPECT_LE(excess_error(args, k), 1.0) << m << " " << n << " " << k;  // compares the columns around it too
      }
    }
  }
}

TEST_P(MatmulWeights, AWeightInBlocksGivesTheProductOfItsNumbers) {
  const int64_t n = 70, k = 96;
  for (int64_t m : {1, 9, 40}) {
    MatmulArgs args = make_args({m, n, k});
    args.b = random_blocks(1, n, k, 32);
    args.bias = random_tensor({n}, DType::f32, 4);
    EXPECT_LE(excess_error(args, k), 1.0);
    MatmulArgs back = make_args({m, k, n, false, false});  // the gradient of the layer's input
    back.b = args.b;
    EXPECT_LE(excess_error(back, n), 1.0);
  }
  MatmulArgs groups = make_args({12, n, k});
  groups.b = random_blocks(3, n, k, 32);
  groups.group_offsets = core::make_tensor(allocator(), {4}, std::vector<int32_t>{0, 5, 5, 12});
  EXPECT_LE(excess_error(groups, k), 1.0);
}

TEST_P(MatmulWeights, AWeightInBlocksIsRoundedToTheFormatOfTheActivations) {
  const int64_t m = 9, n = 70, k = 96;
  for (DType dtype : {DType::bf16, DType::f16}) {
    MatmulArgs args = make_args({m, n, k, false, true, dtype, dtype});
    args.b = random_blocks(1, n, k, 32);
    run(args);
    MatmulArgs plain = args;
    plain.c = Tensor(allocator(), {m, n}, dtype);
    plain.b = {.data = Tensor(allocator(), {n, k}, dtype)};
    cpu_table()->dequantize(core::runtime({}).stream(), {.weight = args.b, .y = plain.b.data});
    run(plain);
    EXPECT_EQ(std::memcmp(args.c.raw(), plain.c.raw(), args.c.bytes()), 0);
  }
}

TEST_P(MatmulWeights, APackedWeightIsRenewedWhenItsVersionGrows) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    MatmulArgs args = make_args({2, 70, 90, false, true, dtype, dtype});
    std::shared_ptr<core::DerivedWeight> derived;
    args.b.derived = &derived;
    EXPECT_LE(excess_error(args, 90), 1.0);
    const core::DerivedWeight* first = derived.get();
    run(args);
    EXPECT_EQ(derived.get(), first) << "packed again without need";
    args.b.data = random_tensor({70, 90}, dtype, 9);
    args.b.version = 2;
    EXPECT_LE(excess_error(args, 90), 1.0);
    EXPECT_EQ(derived->version, 2u);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, MatmulWeights, testing::ValuesIn(cpu::kMatmulIsas),
                         [](const auto& info) { return std::string(cpu::matmul_isa_name(info.param)); });

}  // namespace
}  // namespace sinter::kernels
