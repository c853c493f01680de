#include "kernels/fused.h"

#include "kernels/cpu/matmul.h"
#include "kernels/test_grid.h"

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
  by_parts ? matmul_in_parts(*cpu_table(), stream(), args) : cpu_table()->matmul_activation(stream(), args);
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
              EXPECT_TRUE(bit_equal(pieces[i], parts[i])) << cpu::matmul_isa_name(isa) << " " << M << " x " << N
                                                          << " x " << K << " mode " << mode << " output " << i;
            }
          }
        }
      }
    }
  }
  cpu::set_matmul_isa(best);
}

}  // namespace
}  // namespace sinter::kernels
