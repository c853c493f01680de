// Cases: cross entropy, and a head and its loss in one (kernels/fused.h).
#include <cmath>

#include "kernels/cases/case.h"
#include "kernels/fused.h"

namespace sinter::kernels::cases {
namespace {

// `apart`: further columns, in a piece of their own.
void cross_entropy(Case& c, DType t, int64_t rows, int64_t split, bool gradient, int64_t apart) {
  const int64_t vocab = split + apart;
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(r % 5 == 4 ? -1 : static_cast<int32_t>((r * 7919) % vocab));
  ids[0] = static_cast<int32_t>(vocab - 1);
  const int logits = c.random({rows, split}, t, 3.0f), last = apart ? c.random({rows, apart}, t, 3.0f) : -1,
            targets = c.integers({rows}, ids), losses = c.output({rows}, DType::f32), scale = c.floats({1}, {0.7f});
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.cross_entropy(s, {at(logits), at(targets), at(losses), at(scale), gradient, at(last)});
  });
  c.expect_close(losses, "losses", Result::statistic);
  if (!gradient) {
    c.expect_equal(logits, "logits");
    return;
  }
  c.expect_close(logits, "gradient", Result::rounded_sum);
  if (apart) c.expect_close(last, "gradient apart", Result::rounded_sum);
}

void register_cross_entropy() {
  struct Rows {
    int64_t rows, vocab, apart;
    Size size;
    bool without_gradient;
  };
  constexpr Size kSmall = Size::small, kMedium = Size::medium;
  constexpr Rows kRows[] = {
      {17, 64, 0, kSmall, true},         {17, 33, 0, kSmall, true},         {17, 1000, 0, kSmall, true},
      {17, 50257, 0, Size::large, true}, {17, 50304, 0, Size::large, true}, {17, 7, 0, kMedium, true},
      {17, 1024, 1, kSmall, false},      {17, 1024, 17, kSmall, false},     {17, 1024, 64, kSmall, false},
      {17, 33, 5, kSmall, false},        {401, 1016, 0, kSmall, false},  // several rows a block
      {9, 1, 0, kMedium, true},          {9, 3, 0, kMedium, true},          {9, 17, 0, kMedium, true},
      {9, 65, 0, kMedium, true},         {9, 1024, 0, kMedium, true},       {9, 1025, 0, kMedium, true},
      {9, 5003, 0, kMedium, true}};
  for (DType t : kFormats) {
    for (const Rows& r : kRows) {
      for (bool gradient : {true, false}) {
        if (!gradient && !r.without_gradient) continue;
        add("CrossEntropy", t,
            fmt::format("{}x{}{}{}", r.rows, r.vocab, r.apart ? fmt::format("_and_{}", r.apart) : "",
                        gradient ? "_gradient" : ""),
            r.size, [=](Case& c) { cross_entropy(c, t, r.rows, r.vocab, gradient, r.apart); });
      }
    }
  }
}

struct Head {
  int64_t rows, chunk, vocab, channels;
  Size size;
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
void run_head(Case& c, DType t, const Head& h, int x, int weight, bool gradient, bool accumulate,
              const Limits& loss_limits) {
  const int logits = c.output({h.chunk, h.vocab}, t), exact_logits = c.output({h.chunk, h.vocab}, DType::f32),
            targets = c.integers({h.rows}, targets_of(h)), losses = c.output({h.rows}, DType::f32),
            scale = c.floats({1}, {0.7f}), dx = gradient ? c.output({h.rows, h.channels}, t) : -1;
  const int dweight = !gradient    ? -1
                      : accumulate ? c.random({h.vocab, h.channels}, DType::f32, 0.1f)
                                   : c.output({h.vocab, h.channels}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    linear_cross_entropy(table, s,
                         {.x = at(x),
                          .weight = {.data = at(weight)},
                          .targets = at(targets),
                          .losses = at(losses),
                          .scale = at(scale),
                          .logits = at(&table == reference_table() ? exact_logits : logits),
                          .dx = at(dx),
                          .dweight = at(dweight),
                          .accumulate = accumulate});
  });
  c.expect_close(losses, "losses", loss_limits);
  if (!gradient) return;
  c.expect_close(dx, "dx", Result::head_gradient, t);
  c.expect_close(dweight, "dweight", Result::head_gradient, t);
}

void linear_head(Case& c, DType t, const Head& h, bool gradient, bool accumulate) {
  const int x = c.random({h.rows, h.channels}, t),
            weight = c.random({h.vocab, h.channels}, t, 1.5f / std::sqrt(static_cast<float>(h.channels)));
  run_head(c, t, h, x, weight, gradient, accumulate, limits_of(Result::head_loss, t));
}

// One logit is 204 above the others: losses of 204 nats, which a kernel may report as 55 (softmax_rows.h), or of none.
// The gradients are those of the whole loss all the same.
void huge_losses(Case& c, DType t, const Head& h) {
  std::vector<float> values(static_cast<size_t>(h.vocab * h.channels));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * std::sin(0.37f * static_cast<float>(i));
  const int64_t large = 128 % h.vocab;
  for (int64_t j = 0; j < h.channels; ++j)
    values[static_cast<size_t>(large * h.channels + j)] = 204.0f / static_cast<float>(h.channels);
  const int x = c.random({h.rows, h.channels}, t, 0.1f, 1.0f), weight = c.floats({h.vocab, h.channels}, values, t);
  run_head(c, t, h, x, weight, true, false, both(0.8, 1));
}

void register_heads() {
  constexpr Size kSmall = Size::small, kMedium = Size::medium, kLarge = Size::large;
  constexpr Head kHeads[] = {{128, 128, 8, 8, kSmall},     {100, 40, 136, 24, kSmall},    {333, 128, 264, 136, kSmall},
                             {70, 40, 1041, 24, kSmall},   {1031, 512, 1000, 72, kLarge}, {300, 200, 5160, 64, kLarge},
                             {290, 300, 257, 33, kMedium}, {300, 200, 5183, 64, kLarge}};
  for (DType t : kFormats) {
    for (const Head& h : kHeads) {
      const std::string shape = fmt::format("{}_by_{}x{}x{}", h.rows, h.chunk, h.vocab, h.channels);
      add("LinearCrossEntropy", t, shape, h.size, [=](Case& c) { linear_head(c, t, h, true, false); });
      add("LinearCrossEntropy", t, shape + "_added", h.size, [=](Case& c) { linear_head(c, t, h, true, true); });
      add("LinearCrossEntropy", t, shape + "_losses", h.size, [=](Case& c) { linear_head(c, t, h, false, false); });
    }
    const Head huge{333, 200, 264, 136, kSmall};
    add_claim("LinearCrossEntropy", fmt::format("{}_HugeLossesHaveTheGradientsOfTheReference", base::dtype_name(t)),
              huge.size, [=](Case& c) { huge_losses(c, t, huge); });
  }
}

}  // namespace

void register_loss_cases() {
  register_cross_entropy();
  register_heads();
}

}  // namespace sinter::kernels::cases
