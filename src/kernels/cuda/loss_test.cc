// Cases: a head and its loss in one (kernels/fused.h).
#include <cmath>

#include "kernels/cuda/test_harness.h"
#include "kernels/fused.h"

namespace sinter::kernels::cuda_test {
namespace {

struct Head {
  int64_t rows, chunk, vocab, channels;
};

// One row in five without a target, others at the edges of tiles of 128 columns, at both ends and in between.
std::vector<int32_t> targets_of(const Head& h) {
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < h.rows; ++r) {
    const int64_t edges[] = {127, 128, 0, h.vocab - 1};
    const int64_t id = r % 3 == 0 ? edges[r / 3 % 4] : r * 7919;
    ids.push_back(r % 5 == 4 ? -1 : static_cast<int32_t>(id % h.vocab));
  }
  return ids;
}

// The reference holds its logits in f32 whatever the format.
void run_head(Case& c, DType t, const Head& h, int x, int weight, bool gradient, bool accumulate, double loss_limit) {
  int logits = c.output({h.chunk, h.vocab}, t), exact_logits = c.output({h.chunk, h.vocab}, DType::f32);
  int targets = c.integers({h.rows}, targets_of(h)), losses = c.output({h.rows}, DType::f32),
      scale = c.floats({1}, {0.7f});
  int dx = gradient ? c.output({h.rows, h.channels}, t) : -1;
  int dweight = !gradient    ? -1
                : accumulate ? c.random({h.vocab, h.channels}, DType::f32, 0.1f)
                             : c.output({h.vocab, h.channels}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    const bool is_reference = s.device.kind == core::DeviceKind::cpu;
    linear_cross_entropy(table, s,
                         {.x = at(x),
                          .weight = {.data = at(weight)},
                          .targets = at(targets),
                          .losses = at(losses),
                          .scale = at(scale),
                          .logits = at(is_reference ? exact_logits : logits),
                          .dx = at(dx),
                          .dweight = at(dweight),
                          .accumulate = accumulate});
  });
  c.expect_close(losses, "losses", loss_limit);
  if (!gradient) return;
  const double limit = t == DType::f32 ? 5e-5 : 3 * rounding_limit(t);
  c.expect_close(dx, "dx", limit);
  c.expect_close(dweight, "dweight", limit);
}

void test_head(DType t, const Head& h, bool gradient, bool accumulate) {
  Case c("linear_cross_entropy", t,
         fmt::format("{}/{}x{}x{}{}{}", h.rows, h.chunk, h.vocab, h.channels, gradient ? "" : " losses",
                     accumulate ? " add" : ""));
  int x = c.random({h.rows, h.channels}, t);
  int weight = c.random({h.vocab, h.channels}, t, 1.5f / std::sqrt(static_cast<float>(h.channels)));
  run_head(c, t, h, x, weight, gradient, accumulate, t == DType::f32 ? 1e-5 : rounding_limit(t));
}

// One logit is 204 above the others: losses of 204 nats, which a kernel may report as 55 (softmax_rows.h), or of none.
// The gradients are those of the whole loss all the same.
void test_huge_losses(DType t, const Head& h) {
  Case c("linear_cross_entropy", t, fmt::format("{}/{}x{}x{} huge", h.rows, h.chunk, h.vocab, h.channels));
  std::vector<float> values(static_cast<size_t>(h.vocab * h.channels));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * std::sin(0.37f * static_cast<float>(i));
  const int64_t large = 128 % h.vocab;
  for (int64_t j = 0; j < h.channels; ++j) values[large * h.channels + j] = 204.0f / static_cast<float>(h.channels);
  int x = c.random({h.rows, h.channels}, t, 0.1f, 1.0f), weight = c.floats({h.vocab, h.channels}, values, t);
  run_head(c, t, h, x, weight, true, false, 0.8);
}

}  // namespace

void test_loss() {
  if (!wants("linear_cross_entropy")) return;
  std::vector<Head> heads = {{128, 128, 8, 8},      {100, 40, 136, 24},   {333, 128, 264, 136}, {70, 40, 1041, 24},
                             {1031, 512, 1000, 72}, {300, 200, 5160, 64}, {290, 300, 257, 33},  {300, 200, 5183, 64}};
  if (test_options().small) heads.resize(4);
  for (DType t : kFormats) {
    for (const Head& h : heads) {
      test_head(t, h, true, false);
      test_head(t, h, true, true);
      test_head(t, h, false, false);
    }
    test_huge_losses(t, {333, 200, 264, 136});
  }
}

}  // namespace sinter::kernels::cuda_test
