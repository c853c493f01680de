#include "kernels/fused.h"

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

}  // namespace
}  // namespace sinter::kernels
