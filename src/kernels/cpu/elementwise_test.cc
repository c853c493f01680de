// What only the CPU's kernels promise: accuracy, errors, rows that do not depend on each other. Cases against the
// reference: kernels/cases.
#include <bit>
#include <span>

#include "kernels/cases/tensors.h"
#include "kernels/random.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

TEST(CpuRope, TurnsBackWhatItTurned) {
  constexpr int64_t kTokens = 19, kHeads = 5;
  for (const Format& format : kFormats) {
    for (int64_t dim : {2, 8, 34, 48, 64, 128}) {
      std::vector<int32_t> positions(kTokens);
      for (int64_t t = 0; t < kTokens; ++t) positions[t] = static_cast<int32_t>(t * 37 % 301);
      Tensor inv_freq = random_tensor({1, dim / 2}, DType::f32, 3), cos_sin = empty_tensor({kTokens, dim}, DType::f32);
      cpu_table()->rope_table(stream(), {.positions = int_tensor(positions), .inv_freq = inv_freq, .cos_sin = cos_sin});
      Tensor x = random_tensor({kTokens, kHeads * dim}, format.dtype, 1), turned = clone(x);
      cpu_table()->rope(stream(), {.num_rotated = 3, .head_dim = dim, .x = turned, .cos_sin = cos_sin});
      EXPECT_FALSE(bit_equal(turned, x));
      cpu_table()->rope(stream(),
                        {.num_rotated = 3, .head_dim = dim, .x = turned, .cos_sin = cos_sin, .inverse = true});
      expect_close(turned, x, 2 * format.tolerance, "rope and back");
    }
  }
}

constexpr spec::Activation kActivations[] = {spec::Activation::silu, spec::Activation::gelu,
                                             spec::Activation::gelu_tanh, spec::Activation::relu};

// Every value and slope over the whole range, within a few units in the last place of what is representable near it.
TEST(CpuActivation, IsAccurateOverTheWholeRange) {
  std::vector<float> values;
  for (float x = -20; x <= 20; x += 0.00371f) values.push_back(x);
  for (float x : {-1e30f, -200.0f, -100.0f, -88.5f, -0.0f, 0.0f, 1e-30f, 88.5f, 100.0f, 200.0f, 1e30f})
    values.push_back(x);
  Shape shape{1, static_cast<int64_t>(values.size())};
  for (DType dtype : {DType::f32, DType::bf16}) {
    Tensor x = empty_tensor(shape, dtype), ones = empty_tensor(shape, dtype);
    cpu_table()->axpby(stream(), {.x = core::make_tensor(allocator(), shape, values), .y = x, .alpha = 1.0f});
    cpu_table()->fill(stream(), {ones, 1.0f});
    // Of f32 some rounding; of bf16 the next number above or below.
    const double rounding = dtype == DType::f32 ? 6e-7 : std::exp2(-7);
    for (auto kind : kActivations) {
      auto run = [&](const KernelTable& table) {
        Tensor y = empty_tensor(shape, dtype), dx = empty_tensor(shape, dtype);
        table.activation_forward(stream(), {.kind = kind, .gated = false, .x = x, .y = y});
        table.activation_backward(stream(), {.kind = kind, .gated = false, .dy = ones, .x = x, .dx = dx});
        std::vector<float> both = core::to_host_floats(y), slopes = core::to_host_floats(dx);
        both.insert(both.end(), slopes.begin(), slopes.end());
        return both;
      };
      std::vector<float> actual = run(*cpu_table()), expected = run(*reference_table());
      for (size_t i = 0; i < actual.size(); ++i) {
        // Below these the rounding of the argument shows; a slope is a sum that passes through 0.
        double least = dtype == DType::bf16 ? 1e-3 : i < values.size() ? 0.05 : 0.2;
        double limit = rounding * std::max(least, std::abs(static_cast<double>(expected[i])));
        ASSERT_NEAR(actual[i], expected[i], limit)
            << base::dtype_name(dtype) << " kind " << static_cast<int>(kind) << " at " << values[i % values.size()];
      }
    }
  }
}

// Columns [begin, begin + count) of the matrices of `t`, dense.
Tensor columns_of(const Tensor& t, int64_t begin, int64_t count) {
  const std::vector<float> all = core::to_host_floats(t);
  std::vector<float> some;
  for (int64_t r = 0; r < t.rows(); ++r) {
    const auto row = all.begin() + r * t.size(-1) + begin;
    some.insert(some.end(), row, row + count);
  }
  Tensor result = empty_tensor({t.rows(), count}, t.dtype());
  base::convert_elements(DType::f32, some.data(), t.dtype(), result.raw(), some.size());
  return result;
}

TEST(CpuCrossEntropy, LogitsInTwoPiecesGiveWhatOneGives) {
  constexpr int64_t kRows = 9, kSplit = 1088, kApart = 17;
  std::vector<int32_t> targets;  // in the first piece, in the second, and none
  for (int64_t r = 0; r < kRows; ++r)
    targets.push_back(static_cast<int32_t>(r % 3 == 0 ? r * 100 : r % 3 == 1 ? kSplit + r : -1));
  for (const Format& format : kFormats) {
    const Tensor logits = random_tensor({kRows, kSplit + kApart}, format.dtype, 1, 6.0f);
    for (bool write_gradient : {false, true}) {
      CrossEntropyArgs whole{.logits = clone(logits),
                             .targets = int_tensor(targets),
                             .losses = empty_tensor({kRows}, DType::f32),
                             .scale = core::make_tensor(allocator(), {1}, std::vector<float>{0.37f}),
                             .write_gradient = write_gradient};
      reference_table()->cross_entropy(stream(), whole);
      for (const KernelTable* table : {reference_table(), cpu_table()}) {
        CrossEntropyArgs args = whole;
        args.losses = empty_tensor({kRows}, DType::f32);
        args.logits = columns_of(logits, 0, kSplit);
        args.last_logits = columns_of(logits, kSplit, kApart);
        table->cross_entropy(stream(), args);
        const std::string what = fmt::format("{}, {}", table->name, base::dtype_name(format.dtype));
        expect_close(args.losses, whole.losses, 1e-5, what);
        expect_close(args.logits, columns_of(whole.logits, 0, kSplit), format.tolerance, what);
        expect_close(args.last_logits, columns_of(whole.logits, kSplit, kApart), format.tolerance, what);
      }
    }
  }
}

TEST(CpuCrossEntropy, TargetOutsideTheVocabularyIsAnError) {
  CrossEntropyArgs args{.logits = random_tensor({1, 4}, DType::f32, 1),
                        .targets = int_tensor({4}),
                        .losses = empty_tensor({1}, DType::f32)};
  EXPECT_THROW(cpu_table()->cross_entropy(stream(), args), base::Error);
  EXPECT_THROW(reference_table()->cross_entropy(stream(), args), base::Error);
}

TEST(CpuEmbedding, SquaresOfATablesGradientAreKeptWhileRowsAreAdded) {
  constexpr int64_t kTokens = 101, kVocab = 230, kChannels = 50;
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < kTokens; ++t) tokens.push_back(static_cast<int32_t>(t * t * 7 % kVocab));
  for (const Format& format : kFormats) {
    Tensor dtable = random_tensor({kVocab, kChannels}, DType::f32, 4), squares = zero_tensor({1}, DType::f32),
           expected = zero_tensor({1}, DType::f32);
    cpu_table()->sum_squares(stream(), {.x = dtable, .total = squares});
    EmbeddingBackwardArgs args{.tokens = int_tensor(tokens),
                               .dy = random_tensor({kTokens, kChannels}, format.dtype, 3),
                               .dtable = dtable,
                               .dtable_squares = squares};
    cpu_table()->embedding_backward(stream(), args);
    cpu_table()->sum_squares(stream(), {.x = dtable, .total = expected});
    const float sum = expected.data<float>()[0];
    EXPECT_NEAR(squares.data<float>()[0], sum, 1e-6f * sum);
  }
}

TEST(CpuEmbedding, ATokenOutsideTheVocabularyIsAnError) {
  EmbeddingForwardArgs bad{.tokens = int_tensor({23}),
                           .table = random_tensor({23, 4}, DType::f32, 1),
                           .y = empty_tensor({1, 4}, DType::f32)};
  EXPECT_THROW(cpu_table()->embedding_forward(stream(), bad), base::Error);
}

// What makes the CPU batch-invariant: rows 5 to 8 of 20, computed with the others and alone.
TEST(CpuRows, ARowDoesNotDependOnTheOthers) {
  constexpr int64_t kRows = 20, kWidth = 96, kFirst = 5, kCount = 4;
  for (const Format& format : kFormats) {
    Tensor x = random_tensor({kRows, kWidth}, format.dtype, 1, 2.0f),
           cos_sin = random_tensor({kRows, 32}, DType::f32, 2);
    std::vector<int32_t> targets(kRows, 7);
    auto run = [&](int64_t first, int64_t count) {
      Tensor y = empty_tensor({count, kWidth / 2}, format.dtype), rotated = clone(x.slice(first, count)),
             logits = clone(rotated);
      Tensor losses = empty_tensor({count}, DType::f32), probs = empty_tensor({count, kWidth}, DType::f32);
      Tensor experts = empty_tensor({count, 4}, DType::i32), weights = empty_tensor({count, 4}, DType::f32);
      const KernelTable& table = *cpu_table();
      table.activation_forward(stream(), {.x = rotated, .y = y});
      table.rope(stream(), {.num_rotated = 2, .head_dim = 32, .x = rotated, .cos_sin = cos_sin.slice(first, count)});
      table.cross_entropy(stream(), {.logits = logits,
                                     .targets = int_tensor(targets).slice(first, count),
                                     .losses = losses,
                                     .scale = random_tensor({1}, DType::f32, 3),
                                     .write_gradient = true});
      table.router_forward(stream(), {.experts_per_token = 4,
                                      .logits = x.slice(first, count),
                                      .probs = probs,
                                      .experts = experts,
                                      .weights = weights});
      return std::vector<Tensor>{y, rotated, logits, losses, probs, experts, weights};
    };
    std::vector<Tensor> all = run(0, kRows), alone = run(kFirst, kCount);
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(bit_equal(all[i].slice(kFirst, kCount), alone[i]))
          << base::dtype_name(format.dtype) << ", output " << i;
    }
  }
}

TEST(CpuMemory, CastsKeepSpecialValuesAndRoundToNearestEven) {
  std::vector<float> special{NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e-40f, 1.00390625f, 1.01171875f, 3.4e38f, 6e-8f};
  Tensor x = core::make_tensor(allocator(), {static_cast<int64_t>(special.size())}, special);
  for (const Format& to : kFormats) {
    Tensor a = empty_tensor(x.shape(), to.dtype), b = empty_tensor(x.shape(), to.dtype);
    cpu_table()->axpby(stream(), {.x = x, .y = a});
    reference_table()->axpby(stream(), {.x = x, .y = b});
    for (int64_t i = 1; i < x.num_elements(); ++i) {
      EXPECT_EQ(core::to_host_floats(a)[i], core::to_host_floats(b)[i]) << special[i];
    }
    EXPECT_TRUE(std::isnan(core::to_host_floats(a)[0]));
  }
}

TEST(CpuMemory, SmallSquaresAreNotLostBesideALargeSum) {
  constexpr int64_t kCount = 16384, kLarge = 4;
  Tensor x = empty_tensor({kCount}, DType::f32), total = zero_tensor({1}, DType::f32);
  // A small square is less than a float of the size of a large one can take up: a chain that has met a large value
  // loses all the small ones after it.
  for (int64_t i = 0; i < kCount; ++i) x.data<float>()[i] = i < kLarge ? 1.0f : 1e-4f;
  cpu_table()->sum_squares(stream(), {.x = x, .total = total});
  const double expected = kLarge + (kCount - kLarge) * 1e-8;
  EXPECT_NEAR(total.data<float>()[0], expected, 4e-6 * expected);
}

TEST(CpuRandom, NormalsInBulkAreTheCountersBitForBit) {
  auto expect_equal = [](const base::CounterRng& rng, uint64_t first, size_t count) {
    std::vector<float> found(count + 1, 7.0f);
    draw_normal(rng, first, 0.02f, std::span(found).first(count));
    size_t different = 0;
    for (size_t i = 0; i < count; ++i) {
      const float expected = 0.02f * rng.normal(first + i);
      different += std::bit_cast<uint32_t>(found[i]) != std::bit_cast<uint32_t>(expected);
    }
    EXPECT_EQ(different, 0u) << "from " << first << " on";
    EXPECT_EQ(found[count], 7.0f) << "wrote past the end";
  };
  for (uint64_t first : {uint64_t{0}, uint64_t{3}, (uint64_t{1} << 32) - 5, (uint64_t{1} << 40) + 1}) {
    for (size_t count : {0, 1, 7, 8, 9, 40}) expect_equal({11, 0xfeedfacecafebeefull}, first, count);
  }
  expect_equal({0x123456789abcdefull, 5}, 1, 1000000);  // some of which only the scalar code can round
}

}  // namespace
}  // namespace sinter::kernels
