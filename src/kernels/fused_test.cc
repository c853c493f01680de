#include "kernels/fused.h"

#include "kernels/cases/tensors.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

constexpr int64_t kRows = 7, kVocab = 11, kChannels = 5;

struct HeadGradients {
  std::vector<float> losses, dx, dweight;
};

// A head over kRows rows, `chunk` of them at a time, onto a gradient of 0.25 everywhere.
HeadGradients run_head(int64_t chunk) {
  Tensor losses = empty_tensor({kRows}, DType::f32), dx = empty_tensor({kRows, kChannels}, DType::f32);
  Tensor dweight = core::make_tensor(allocator(), {kVocab, kChannels}, std::vector<float>(kVocab * kChannels, 0.25f));
  linear_cross_entropy(*reference_table(), stream(),
                       {.x = random_tensor({kRows, kChannels}, DType::f32, 1),
                        .weight = {.data = random_tensor({kVocab, kChannels}, DType::f32, 2)},
                        .targets = int_tensor({3, -1, 0, 10, 3, -1, 7}),
                        .losses = losses,
                        .scale = core::make_tensor(allocator(), {1}, std::vector<float>{0.5f}),
                        .logits = empty_tensor({chunk, kVocab}, DType::f32),
                        .dx = dx,
                        .dweight = dweight,
                        .accumulate = true});
  return {core::to_host_floats(losses), core::to_host_floats(dx), core::to_host_floats(dweight)};
}

TEST(LinearCrossEntropy, ChunksGiveWhatAllRowsAtOnceGive) {
  const HeadGradients whole = run_head(kRows), parts = run_head(3);
  EXPECT_EQ(whole.losses, parts.losses);
  EXPECT_EQ(whole.dx, parts.dx);
  for (size_t i = 0; i < whole.dweight.size(); ++i) EXPECT_NEAR(whole.dweight[i], parts.dweight[i], 1e-6) << i;
}

TEST(LinearCrossEntropy, RowsWithoutATargetHaveNoLossAndNoGradient) {
  const HeadGradients head = run_head(3);
  for (int64_t row : {1, 5}) {
    EXPECT_EQ(head.losses[row], 0.0f);
    for (int64_t c = 0; c < kChannels; ++c) EXPECT_EQ(head.dx[row * kChannels + c], 0.0f);
  }
  EXPECT_GT(head.losses[0], 0.0f);
}

// The logits' gradients of a row add up to zero, so those of the weight do over the vocabulary.
TEST(LinearCrossEntropy, GradientAddsToTheWeightsAndSumsToZeroOverTheVocabulary) {
  const HeadGradients head = run_head(3);
  for (int64_t c = 0; c < kChannels; ++c) {
    double sum = 0;
    for (int64_t v = 0; v < kVocab; ++v) sum += head.dweight[v * kChannels + c];
    EXPECT_NEAR(sum, 0.25 * kVocab, 1e-5);
  }
}

// A vocabulary that is not whole lines is computed in two parts.
TEST(LinearCrossEntropy, AVocabularyOfAnySizeGivesTheGradientsOfItsLogits) {
  constexpr int64_t kTokens = 37, kWidth = 24, kChunk = 16;
  for (int64_t vocab : {1024 + 64, 1024 + 17, 1024 + 63}) {
    for (const KernelTable* table : {reference_table(), cpu_table()}) {
      const std::string what = std::string(table->name) + ", " + std::to_string(vocab);
      std::vector<int32_t> targets;
      for (int64_t t = 0; t < kTokens; ++t)
        targets.push_back(static_cast<int32_t>(t % 5 == 4 ? -1 : vocab - 1 - 29 * t));
      const Tensor x = random_tensor({kTokens, kWidth}, DType::f32, 1),
                   weight = random_tensor({vocab, kWidth}, DType::f32, 2);
      Tensor losses = empty_tensor({kTokens}, DType::f32), logits = empty_tensor({kTokens, vocab}, DType::f32);
      Tensor dx = empty_tensor({kTokens, kWidth}, DType::f32), dweight = empty_tensor({vocab, kWidth}, DType::f32);
      Tensor squares = table->writes_square_sums ? empty_tensor({1}, DType::f32) : Tensor();
      const Tensor scale = core::make_tensor(allocator(), {1}, std::vector<float>{0.5f});
      linear_cross_entropy(*table, stream(),
                           {.x = x,
                            .weight = {.data = weight},
                            .targets = int_tensor(targets),
                            .losses = losses,
                            .scale = scale,
                            .logits = empty_tensor({kChunk, vocab}, DType::f32),
                            .dx = dx,
                            .dweight = dweight,
                            .dweight_squares = squares});
      Tensor expected_losses = empty_tensor({kTokens}, DType::f32),
             expected_dx = empty_tensor({kTokens, kWidth}, DType::f32);
      Tensor expected_dweight = empty_tensor({vocab, kWidth}, DType::f32);
      const KernelTable& plain = *reference_table();
      plain.matmul(stream(), {.a = x, .b = {.data = weight}, .c = logits, .transpose_b = true});
      plain.cross_entropy(stream(), {logits, int_tensor(targets), expected_losses, scale, true});
      plain.matmul(stream(), {.a = logits, .b = {.data = weight}, .c = expected_dx});
      plain.matmul(stream(), {.a = logits, .b = {.data = x}, .c = expected_dweight, .transpose_a = true});
      expect_close(losses, expected_losses, 1e-5, what);
      expect_close(dx, expected_dx, 1e-5, what);
      expect_close(dweight, expected_dweight, 1e-5, what);
      if (!squares) continue;
      double sum = 0;
      for (float d : core::to_host_floats(dweight)) sum += static_cast<double>(d) * d;
      EXPECT_NEAR(core::to_host_floats(squares)[0], sum, 1e-5 * sum) << what;
    }
  }
}

// The product, then its activation: with the activation's input kept, and with its slopes kept.
TEST(FusedMatmul, KeptSlopesGiveTheActivationAndItsGradient) {
  for (const Format& format : kFormats) {
    for (const KernelTable* table : {reference_table(), cpu_table()}) {
      for (auto kind : {spec::Activation::gelu_tanh, spec::Activation::relu}) {
        const int64_t M = 19, N = 35, K = 23;
        const DType t = format.dtype;
        MatmulArgs up{.a = random_tensor({M, K}, t, 1),
                      .b = {.data = random_tensor({N, K}, t, 2, 0.3f)},
                      .c = empty_tensor({M, N}, t),
                      .transpose_b = true,
                      .bias = random_tensor({N}, t, 3)};
        Tensor pre = empty_tensor({M, N}, t), slope = empty_tensor({M, N}, t);
        fused_matmul(*table, stream(), {.product = up, .activation = kind, .pre_activation = pre});
        const std::vector<float> value = core::to_host_floats(up.c);
        up.c = empty_tensor({M, N}, t);
        fused_matmul(*table, stream(), {.product = up, .activation = kind, .slope = slope});
        EXPECT_EQ(core::to_host_floats(up.c), value);

        MatmulArgs down{
            .a = random_tensor({M, K}, t, 4), .b = {.data = random_tensor({K, N}, t, 5)}, .c = empty_tensor({M, N}, t)};
        std::vector<float> gradients[2], sums[2];
        for (bool keeps_slope : {false, true}) {
          Tensor total = core::make_tensor(allocator(), {N}, std::vector<float>(N, 0.25f));
          down.c = empty_tensor({M, N}, t);
          fused_matmul(*table, stream(),
                       {.product = down,
                        .activation = kind,
                        .activation_input = keeps_slope ? Tensor() : pre,
                        .slope_input = keeps_slope ? slope : Tensor(),
                        .c_sums = total});
          gradients[keeps_slope] = core::to_host_floats(down.c), sums[keeps_slope] = core::to_host_floats(total);
        }
        for (size_t i = 0; i < gradients[0].size(); ++i) {
          EXPECT_NEAR(gradients[1][i], gradients[0][i], format.tolerance * (1 + std::abs(gradients[0][i]))) << i;
        }
        for (size_t n = 0; n < sums[0].size(); ++n) EXPECT_NEAR(sums[1][n], sums[0][n], 5 * format.tolerance * M) << n;
      }
    }
  }
}

bool is_near(const Tensor& x, const Tensor& y, double limit) {
  const std::vector<float> a = core::to_host_floats(x), b = core::to_host_floats(y);
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= limit * (1 + std::abs(b[i])))) return false;
  }
  return a.size() == b.size();
}

enum class Kept { input, slope };

// The results of one direction, `b` transposed forward: c and what is kept, or c and the sums of its columns.
std::vector<Tensor> run_activation(bool by_parts, bool is_backward, Kept kept, FusedMatmulArgs args) {
  const core::Shape shape = args.product.c.shape();
  const DType t = args.product.c.dtype();
  args.product.c = empty_tensor(shape, t);
  Tensor other = is_backward ? zero_tensor({shape[-1]}, DType::f32) : empty_tensor(shape, t);
  if (is_backward) {
    (kept == Kept::input ? args.activation_input : args.slope_input) = random_tensor(shape, t, 7);
    args.c_sums = other;
  } else {
    (kept == Kept::input ? args.pre_activation : args.slope) = other;
  }
  if (by_parts) {
    matmul_in_parts(*cpu_table(), stream(), args);
  } else {
    EXPECT_TRUE(cpu_table()->fused_matmul(stream(), args));
  }
  return {args.product.c, other};
}

TEST(FusedMatmul, AnActivationOfPiecesHasTheBitsOfOneOfTheWholeOnEveryInstructionSet) {
  const int64_t sizes[][3] = {{19, 35, 23}, {35, 50, 4333}, {130, 97, 64}, {3, 5, 0}};
  const cpu::MatmulIsa best = cpu::matmul_isa();
  for (cpu::MatmulIsa isa : cpu::kMatmulIsas) {
    if (!cpu::can_run(isa)) continue;
    cpu::set_matmul_isa(isa);
    for (auto [M, N, K] : sizes) {
      for (const Format& format : kFormats) {
        for (auto kind : {spec::Activation::silu, spec::Activation::gelu, spec::Activation::gelu_tanh}) {
          for (int mode = 0; mode < 4; ++mode) {
            const bool is_backward = mode & 1;
            const Kept kept = mode & 2 ? Kept::slope : Kept::input;
            FusedMatmulArgs args{.activation = kind};
            args.product.a = random_tensor({M, K}, format.dtype, 1);
            args.product.b.data =
                random_tensor(is_backward ? core::Shape{K, N} : core::Shape{N, K}, format.dtype, 2, 0.1f);
            args.product.c = empty_tensor({M, N}, format.dtype);
            args.product.transpose_b = !is_backward;
            if (!is_backward) args.product.bias = random_tensor({N}, format.dtype, 3);
            const std::vector<Tensor> pieces = run_activation(false, is_backward, kept, args);
            const std::vector<Tensor> parts = run_activation(true, is_backward, kept, args);
            for (size_t i = 0; i < 2; ++i) {
              const bool is_sums = is_backward && i == 1;  // added up in another order
              EXPECT_TRUE(is_sums ? is_near(pieces[i], parts[i], 1e-5) : bit_equal(pieces[i], parts[i]))
                  << cpu::matmul_isa_name(isa) << " " << M << " x " << N << " x " << K << " mode " << mode << " output "
                  << i;
            }
          }
        }
      }
    }
  }
  cpu::set_matmul_isa(best);
}

// Slopes of this many elements are written past the caches.
TEST(FusedMatmul, ManySlopesHaveTheBitsOfFewOnEveryInstructionSet) {
  const int64_t M = 1030, N = 4128, K = 40;
  const cpu::MatmulIsa best = cpu::matmul_isa();
  for (cpu::MatmulIsa isa : cpu::kMatmulIsas) {
    if (!cpu::can_run(isa)) continue;
    cpu::set_matmul_isa(isa);
    FusedMatmulArgs args{.activation = spec::Activation::gelu_tanh};
    args.product = {.a = random_tensor({M, K}, DType::bf16, 1),
                    .b = {.data = random_tensor({N, K}, DType::bf16, 2, 0.1f)},
                    .c = empty_tensor({M, N}, DType::bf16),
                    .transpose_b = true};
    const std::vector<Tensor> pieces = run_activation(false, false, Kept::slope, args);
    const std::vector<Tensor> parts = run_activation(true, false, Kept::slope, args);
    EXPECT_TRUE(bit_equal(pieces[0], parts[0])) << cpu::matmul_isa_name(isa);
    EXPECT_TRUE(bit_equal(pieces[1], parts[1])) << cpu::matmul_isa_name(isa);
  }
  cpu::set_matmul_isa(best);
}

}  // namespace
}  // namespace sinter::kernels
