// What tuning asks of kernels: weights of rows in the loss, tensors without a gradient, ranges of columns, 8-bit
// states.
#include <algorithm>

#include "kernels/cases/tensors.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels {
namespace {

using namespace testing;

const KernelTable* const kTables[] = {reference_table(), cpu_table()};

TEST(CpuRowWeights, MultiplyLossesAndGradientsWhateverTheirSign) {
  const int64_t R = 5, V = 67;
  for (const KernelTable* table : kTables) {
    for (const Format& format : kFormats) {
      const Tensor logits = random_tensor({R, V}, format.dtype, 3, 2.0f);
      const Tensor targets = int_tensor({0, 66, -1, 7, 33}), scale = core::make_tensor<float>(allocator(), {1}, {0.5f});
      const std::vector<float> factors{2.0f, -0.5f, 3.0f, 0.0f, 1.0f};
      const Tensor weights = core::make_tensor<float>(allocator(), {R}, factors);
      Tensor plain = clone(logits), weighted = clone(logits);
      Tensor losses = empty_tensor({R}, DType::f32), weighted_losses = empty_tensor({R}, DType::f32);
      table->cross_entropy(
          stream(), {.logits = plain, .targets = targets, .losses = losses, .scale = scale, .write_gradient = true});
      table->cross_entropy(stream(), {.logits = weighted,
                                      .targets = targets,
                                      .losses = weighted_losses,
                                      .scale = scale,
                                      .write_gradient = true,
                                      .weights = weights});
      for (int64_t r = 0; r < R; ++r) {
        const float factor = factors[static_cast<size_t>(r)];
        EXPECT_NEAR(weighted_losses.data<float>()[r], factor * losses.data<float>()[r], 1e-5);
        Tensor expected = clone(plain.slice(r, 1));
        reference_table()->axpby(stream(), {.x = plain.slice(r, 1), .y = expected, .alpha = factor});
        expect_close(weighted.slice(r, 1), expected, format.tolerance, "gradient");
      }
    }
  }
}

TEST(CpuFrozen, NormsAndEmbeddingsWithoutGradientsGiveTheSameInputGradient) {
  const int64_t R = 6, C = 33;
  for (const KernelTable* table : kTables) {
    const Tensor s = random_tensor({R, C}, DType::f32, 1), dy = random_tensor({R, C}, DType::f32, 2);
    const Tensor weight = random_tensor({C}, DType::f32, 3), rstd = random_tensor({R}, DType::f32, 4);
    Tensor dweight = zero_tensor({C}, DType::f32), with = empty_tensor({R, C}, DType::f32), without = clone(with);
    NormBackwardArgs args{.dy = dy, .s = s, .weight = weight, .rstd = rstd, .ds = with, .dweight = dweight};
    table->norm_backward(stream(), args);
    args.ds = without;
    args.dweight = {};
    table->norm_backward(stream(), args);
    expect_close(without, with, 0, "ds");
    const Tensor tokens = int_tensor({0, 1, 2, 0, 1, 1});
    table->embedding_backward(stream(), {.tokens = tokens, .dy = dy});  // nothing to write to
  }
}

// Over states that fill a block, with a map fine enough, AdamW by codes is AdamW.
TEST(CpuAdamw8bit, FollowsAdamwWithinItsCodes) {
  const int64_t n = 300;
  std::vector<float> even(256);
  for (size_t i = 0; i < even.size(); ++i) even[i] = -1.0f + 2.0f * static_cast<float>(i) / 255.0f;
  std::vector<float> positive(256);
  for (size_t i = 0; i < positive.size(); ++i) positive[i] = static_cast<float>(i) / 255.0f;
  auto make = [](const std::vector<float>& v) {
    return core::make_tensor<float>(allocator(), {static_cast<int64_t>(v.size())}, v);
  };
  const Tensor m_map = make(even), v_map = make(positive), control = make({1.0f, 1.0f});
  Tensor master = random_tensor({n}, DType::f32, 1), plain = clone(master);
  Tensor m = zero_tensor({n}, DType::u8), v = zero_tensor({n}, DType::u8);
  std::fill_n(m.data<uint8_t>(), n, uint8_t{127});
  Tensor m_scales = zero_tensor({2}, DType::f32), v_scales = zero_tensor({2}, DType::f32);
  Tensor pm = zero_tensor({n}, DType::f32), pv = zero_tensor({n}, DType::f32);
  const Tensor before = clone(master);
  for (int64_t step = 1; step <= 3; ++step) {
    const Tensor grad = random_tensor({n}, DType::f32, static_cast<uint64_t>(10 + step));
    cpu_table()->adamw_8bit(stream(), {.master = master,
                                       .grad = grad,
                                       .m = m,
                                       .v = v,
                                       .m_scales = m_scales,
                                       .v_scales = v_scales,
                                       .m_map = m_map,
                                       .v_map = v_map,
                                       .control = control,
                                       .lr = 1e-2f,
                                       .step = step});
    reference_table()->adamw(
        stream(), {.master = plain, .grad = grad, .m = pm, .v = pv, .control = control, .lr = 1e-2f, .step = step});
    if (step == 1) expect_close(master, plain, 1e-6, "the first step knows no codes");
  }
  double moved = 0, apart = 0;
  for (int64_t i = 0; i < n; ++i) {
    moved += std::abs(plain.data<float>()[i] - before.data<float>()[i]);
    apart += std::abs(plain.data<float>()[i] - master.data<float>()[i]);
  }
  EXPECT_LT(apart, 0.1 * moved);
  EXPECT_GT(apart, 0);
}

}  // namespace
}  // namespace sinter::kernels
