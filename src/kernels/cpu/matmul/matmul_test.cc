#include "kernels/cpu/matmul/matmul.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/matmul/matmul_test_cases.h"

namespace sinter::kernels {
namespace {

using namespace matmul_test;

class Matmul : public MatmulTest {};

TEST_P(Matmul, BiasScaleAndAccumulationMatchTheReferenceAlsoOverSeveralBlocksOfK) {
  for (int64_t k : {40, 2100, 8300}) {
    for (auto [dtype, c_dtype] : kFormats) {
      for (int mode = 0; mode < 8; ++mode) {
        MatmulArgs args = make_args({11, 53, k, false, true, dtype, c_dtype});
        if (mode & 1) args.bias = random_tensor({53}, c_dtype, 4);
        if (mode & 2) args.alpha = -0.37f;
        args.accumulate = mode & 4;
        EXPECT_LE(excess_error(args, k), 1.0)
            << "k " << k << " mode " << mode << " " << base::dtype_name(dtype) << " to " << base::dtype_name(c_dtype);
      }
    }
  }
}

TEST_P(Matmul, AResultTooLargeForTheCachesHasTheBitsOfItsRowsAlone) {
  struct Large {
    DType in, out;
    int64_t m, n;
  };
  constexpr int64_t k = 37;
  // 65 MiB and more, written past the caches; the rows of bf16 are whole panels of the tile kernel
  for (auto [in, out, m, n] : {Large{DType::f32, DType::f32, 16401, 1040},
                               {DType::bf16, DType::f32, 16401, 1040},
                               {DType::bf16, DType::bf16, 32301, 1056}}) {
    MatmulArgs whole;
    whole.a = random_tensor({m, k}, in, 1);
    whole.b.data = random_tensor({n, k}, in, 2);
    whole.transpose_b = true;
    whole.c = Tensor(allocator(), {m, n}, out);
    run(whole);
    for (int64_t first : {int64_t{0}, int64_t{8111}, m - 5}) {
      MatmulArgs part = whole;
      part.a = whole.a.slice(first, 5);
      part.c = Tensor(allocator(), {5, n}, out);
      EXPECT_LE(excess_error(part, k), 1.0) << "rows from " << first << " " << base::dtype_name(out);
      EXPECT_EQ(std::memcmp(part.c.raw(), whole.c.slice(first, 5).raw(), part.c.bytes()), 0)
          << "rows from " << first << " " << base::dtype_name(out);
    }
  }
}

TEST_P(Matmul, BlocksOfRowsAndColumnsMatchTheReference) {
  EXPECT_LE(excess_error(make_args({1100, 30, 4200, true, false, DType::bf16, DType::bf16}), 4200), 1.0);
  // Partial sums that do not fit in one block of them: held against the reference by a few rows, bit by bit against
  // those.
  if (GetParam() == MatmulIsa::portable) return;  // a second of work, and nothing in it depends on the level
  MatmulArgs whole = make_args({1030, 4200, 2100});
  whole.accumulate = true;
  Tensor before = copy_of(whole.c);
  run(whole);
  for (auto [first, rows] : {std::pair<int64_t, int64_t>{0, 3}, {1023, 7}}) {
    MatmulArgs part = whole;
    part.a = whole.a.slice(first, rows);
    part.c = copy_of(before.slice(first, rows));
    EXPECT_LE(excess_error(part, 2100), 1.0);
    EXPECT_EQ(std::memcmp(part.c.raw(), whole.c.slice(first, rows).raw(), part.c.bytes()), 0);
  }
}

// A task keeps the larger side when K is long: rows of a here, rows of b when the sides are swapped.
TEST_P(Matmul, SwappedSidesGiveTheSameBitsAndMatchTheReference) {
  const int64_t sizes[][3] = {{65, 64, 1024}, {333, 41, 2500}, {700, 97, 1055}};
  for (auto [m, n, k] : sizes) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      for (int mode = 0; mode < 4; ++mode) {
        const bool accumulate = mode & 1, transpose = mode & 2;
        MatmulArgs args = make_args({m, n, k, transpose, !transpose, dtype, DType::f32});
        args.accumulate = accumulate;
        args.alpha = accumulate ? 0.5f : 1.0f;
        MatmulArgs swapped = args;
        std::swap(swapped.a, swapped.b.data);
        swapped.transpose_a = !args.transpose_b;
        swapped.transpose_b = !args.transpose_a;
        const std::vector<float> before = core::to_host_floats(args.c);
        std::vector<float> turned(before.size());
        for (int64_t i = 0; i < m * n; ++i) turned[i % n * m + i / n] = before[i];
        base::set_num_threads(1 + mode % 3);
        swapped.c = core::make_tensor(allocator(), {n, m}, turned);
        run(swapped);
        EXPECT_LE(excess_error(args, k), 1.0)
            << "m " << m << " n " << n << " k " << k << " mode " << mode << " " << base::dtype_name(dtype);
        const std::vector<float> c = core::to_host_floats(args.c), other = core::to_host_floats(swapped.c);
        int64_t num_different = 0;
        for (int64_t i = 0; i < m * n; ++i) num_different += c[i] != other[i % n * m + i / n];
        if (has_parts(dtype)) continue;  // the parts of a number on one side meet those of the other in a fixed order
        EXPECT_EQ(num_different, 0) << "m " << m << " n " << n << " k " << k << " mode " << mode;
      }
    }
  }
}

// Sums begin from what c holds: the chain over K is the same one, in however many products it comes.
TEST_P(Matmul, GradientsOfPartsOfTheTokensAddUpToTheBitsOfTheWhole) {
  const int64_t sizes[][3] = {{5, 7, 9}, {129, 97, 300}, {70, 41, 2500}};
  for (auto [m, n, k] : sizes) {
    MatmulArgs whole = make_args({m, n, k, true, false});
    MatmulArgs part = whole;
    part.c = copy_of(whole.c);
    run(whole);
    for (int64_t first = 0, count = k / 3; first < k; first += count, count = k - first) {
      part.a = whole.a.slice(first, count);
      part.b.data = whole.b.data.slice(first, count);
      part.accumulate = first > 0;
      EXPECT_LE(excess_error(part, k), 1.0);
    }
    if (has_parts(DType::f32)) continue;  // a tile's 32 elements of K are added before they meet what c holds
    EXPECT_EQ(std::memcmp(part.c.raw(), whole.c.raw(), whole.c.bytes()), 0) << "m " << m << " n " << n << " k " << k;
  }
}

// Against sums in double, and over numbers of very different sizes: as close as a chain of f32 is.
TEST_P(Matmul, F32IsAsExactAsAChainOfF32) {
  const int64_t m = 37, n = 45;
  for (int64_t k : {32, 770, 3000}) {
    for (int exponent : {0, -60, 55}) {
      MatmulArgs args = make_args({m, n, k});
      float *a = args.a.data<float>(), *b = args.b.data.data<float>();
      for (int64_t i = 0; i < m * k; ++i) a[i] = std::ldexp(a[i], exponent + static_cast<int>(i % k % 7) - 3);
      for (int64_t i = 0; i < n * k; ++i) b[i] = std::ldexp(b[i], -static_cast<int>(i % 5));
      run(args);
      double error = 0, chain_error = 0, total = 0;
      for (int64_t i = 0; i < m * n; ++i) {
        double exact = 0;
        float chain = 0;
        for (int64_t x = 0; x < k; ++x) {
          float left = a[i / n * k + x], right = b[i % n * k + x];
          exact += static_cast<double>(left) * right;
          chain = std::fma(left, right, chain);
        }
        error += std::pow(args.c.data<float>()[i] - exact, 2);
        chain_error += std::pow(chain - exact, 2);
        total += exact * exact;
      }
      EXPECT_LE(error, 1.1 * chain_error) << "k " << k << " 2^" << exponent;
      EXPECT_GT(total, 0);
    }
  }
}

TEST_P(Matmul, NothingToSumGivesBiasOrKeepsC) {
  MatmulArgs args = make_args({3, 5, 0});
  args.bias = random_tensor({5}, DType::f32, 4);
  run(args);
  std::vector<float> c = core::to_host_floats(args.c), bias = core::to_host_floats(args.bias);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(c[i], bias[i % 5]);
  args.bias = {};
  args.accumulate = true;
  run(args);
  EXPECT_EQ(core::to_host_floats(args.c), c);
  run(make_args({0, 5, 4}));
  run(make_args({5, 0, 4}));
}

TEST_P(Matmul, GroupsOfPackedWeightsMatchTheReference) {
  const std::vector<int32_t> offsets = {0, 3, 3, 40, 41, 90, 90, 91, 97};  // one expert large, two empty
  const int64_t experts = 8, rows = 97, n = 51, k = 37;
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (bool transpose_b : {false, true}) {
      MatmulArgs args;
      args.a = random_tensor({rows, k}, dtype, 1);
      args.b.data = random_tensor(transpose_b ? Shape{experts, n, k} : Shape{experts, k, n}, dtype, 2);
      args.c = random_tensor({rows, n}, dtype, 3);
      args.transpose_b = transpose_b;
      args.group_offsets = core::make_tensor(allocator(), {experts + 1}, offsets);
      std::shared_ptr<core::DerivedWeight> derived;
      args.b.derived = &derived;
      EXPECT_LE(excess_error(args, k), 1.0);
    }
  }
}

TEST_P(Matmul, ARowHasTheSameBitsWhateverTheOtherRowsTheThreadsAndThePacking) {
  // Several blocks of K; then rows that a kernel may read in place, in several slices of K.
  const int64_t sizes[][3] = {{75, 103, 4333}, {80, 103, 1056}};
  for (auto [m, n, k] : sizes) {
    for (auto [dtype, c_dtype] : kFormats) {
      MatmulArgs whole = make_args({m, n, k, false, true, dtype, c_dtype});
      base::set_num_threads(1);
      run(whole);
      std::shared_ptr<core::DerivedWeight> derived;
      for (int threads : {1, 2, 3}) {
        base::set_num_threads(threads);
        for (auto [first, rows] : {std::pair<int64_t, int64_t>{0, m}, {0, 1}, {74, 1}, {13, 7}, {31, 33}, {16, 48}}) {
          for (bool is_packed : {false, true}) {
            MatmulArgs part = whole;
            part.a = whole.a.slice(first, rows);
            part.c = Tensor(allocator(), {rows, n}, c_dtype);
            part.b.derived = is_packed ? &derived : nullptr;
            run(part);
            EXPECT_EQ(std::memcmp(part.c.raw(), whole.c.slice(first, rows).raw(), part.c.bytes()), 0)
                << "rows " << first << " to " << first + rows << ", " << threads << " threads, packed " << is_packed
                << ", " << base::dtype_name(dtype) << " to " << base::dtype_name(c_dtype);
          }
        }
      }
    }
  }
}

TEST_P(Matmul, SquaresLeftBesideAGradientAreThoseOfAPassOverItWhateverTheThreads) {
  // One block of K and several; within a panel, over an edge, and large enough to be written past the caches; the last
  // two are computed turned by the tile kernel.
  const int64_t sizes[][3] = {{5, 7, 3},      {70, 101, 0},    {97, 130, 4333},
                              {521, 528, 96}, {130, 97, 4333}, {569, 496, 1030}};
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (auto [m, n, k] : sizes) {
      for (bool accumulate : {false, true}) {
        MatmulArgs args = make_args({m, n, k, true, false, dtype, DType::f32});
        args.accumulate = accumulate;
        Tensor before = copy_of(args.c), squares;
        for (int threads : {1, 2, 3}) {
          base::set_num_threads(threads);
          args.c = copy_of(before);
          args.c_squares = random_tensor({1}, DType::f32, 9);
          run(args);
          if (threads == 1) squares = args.c_squares;
          EXPECT_EQ(args.c_squares.data<float>()[0], squares.data<float>()[0]) << threads << " threads";
        }
        double expected = 0;
        for (float x : core::to_host_floats(args.c)) expected += static_cast<double>(x) * x;
        EXPECT_NEAR(squares.data<float>()[0], expected, 1e-6 * expected) << m << " x " << n << " x " << k;
        MatmulArgs alone = args;
        alone.c = copy_of(before);
        alone.c_squares = {};
        run(alone);
        EXPECT_EQ(std::memcmp(alone.c.raw(), args.c.raw(), args.c.bytes()), 0) << m << " x " << n << " x " << k;
      }
    }
  }
}

TEST_P(Matmul, NotANumberStaysInItsRow) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    MatmulArgs args = make_args({9, 50, 33, false, true, dtype, dtype});
    float nan = NAN;
    base::convert_elements(DType::f32, &nan, dtype, args.a.slice(4, 1).raw(), 1);
    run(args);
    std::vector<float> c = core::to_host_floats(args.c);
    for (int i = 0; i < 9 * 50; ++i) EXPECT_EQ(std::isnan(c[i]), i / 50 == 4);
  }
}

TEST_P(Matmul, MismatchedShapesAndFormatsAreErrors) {
  MatmulArgs args = make_args({4, 6, 5});
  args.b.data = random_tensor({6, 4}, DType::f32, 2);
  EXPECT_THROW(run(args), base::Error);
  args = make_args({4, 6, 5});
  args.b.data = random_tensor({6, 5}, DType::bf16, 2);
  EXPECT_THROW(run(args), base::Error);
  args = make_args({4, 6, 5});
  args.bias = random_tensor({5}, DType::f32, 2);
  EXPECT_THROW(run(args), base::Error);
  args = make_args({4, 6, 5, false, true, DType::bf16, DType::bf16});
  args.c_squares = random_tensor({1}, DType::f32, 2);
  EXPECT_THROW(run(args), base::Error);
}

TEST(MatmulLevels, Avx2AndAvx512GiveTheSameBits) {
  if (!cpu::can_run(MatmulIsa::avx512)) GTEST_SKIP() << "this CPU has no avx512";
  MatmulIsa best = cpu::matmul_isa();
  for (auto [dtype, c_dtype] : {std::pair{DType::f32, DType::f32}, {DType::f16, DType::f16}}) {
    MatmulArgs args = make_args({21, 77, 1300, false, true, dtype, c_dtype});
    cpu::set_matmul_isa(MatmulIsa::avx2);
    run(args);
    std::vector<float> narrow = core::to_host_floats(args.c);
    cpu::set_matmul_isa(MatmulIsa::avx512);
    run(args);
    EXPECT_EQ(core::to_host_floats(args.c), narrow);
  }
  cpu::set_matmul_isa(best);
}

INSTANTIATE_TEST_SUITE_P(Isa, Matmul, testing::ValuesIn(cpu::kMatmulIsas),
                         [](const auto& info) { return std::string(cpu::matmul_isa_name(info.param)); });

}  // namespace
}  // namespace sinter::kernels
