// Cases: routing, sorting, moving rows to experts and back, the balance loss.
#include "base/rng.h"
#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

struct Experts {
  int64_t tokens, experts, chosen, channels;
  Size size;
};

// A choice for each slot, and a stable sort of the slots by it.
struct Choices {
  std::vector<int32_t> experts, offsets, row_of_slot, slot_of_row;
};

Choices choices_of(const Experts& m) {
  Choices c;
  const base::CounterRng rng{5, static_cast<uint64_t>(m.tokens + m.experts)};
  for (int64_t t = 0; t < m.tokens; ++t) {
    const auto first =
        static_cast<int64_t>(rng.uniform(static_cast<uint64_t>(t)) * rng.uniform(static_cast<uint64_t>(t) + 99999) *
                             static_cast<float>(m.experts));
    for (int64_t j = 0; j < m.chosen; ++j) c.experts.push_back(static_cast<int32_t>((first + j) % m.experts));
  }
  c.row_of_slot.assign(c.experts.size(), 0);
  for (int64_t e = 0; e < m.experts; ++e) {
    c.offsets.push_back(static_cast<int32_t>(c.slot_of_row.size()));
    for (size_t slot = 0; slot < c.experts.size(); ++slot) {
      if (c.experts[slot] != e) continue;
      c.row_of_slot[slot] = static_cast<int32_t>(c.slot_of_row.size());
      c.slot_of_row.push_back(static_cast<int32_t>(slot));
    }
  }
  c.offsets.push_back(static_cast<int32_t>(c.slot_of_row.size()));
  return c;
}

void router_forward(Case& c, DType t, const Experts& m, bool renormalise) {
  const int logits = c.random({m.tokens, m.experts}, t), probs = c.output({m.tokens, m.experts}, DType::f32),
            experts = c.output({m.tokens, m.chosen}, DType::i32), weights = c.output({m.tokens, m.chosen}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.router_forward(s, {m.chosen, renormalise, at(logits), at(probs), at(experts), at(weights)});
  });
  c.expect_close(probs, "probs", Result::statistic);
  c.expect_equal(experts, "experts");
  c.expect_close(weights, "weights", Result::statistic);
}

void router_backward(Case& c, DType t, const Experts& m, bool renormalise, bool balance) {
  const Choices choices = choices_of(m);
  const int dweights = c.random({m.tokens, m.chosen}, DType::f32),
            probs = c.uniform({m.tokens, m.experts}, DType::f32, 0.0f, 2.0f / static_cast<float>(m.experts)),
            experts = c.integers({m.tokens, m.chosen}, choices.experts),
            weights = c.uniform({m.tokens, m.chosen}, DType::f32, 0, 1),
            offset = c.integers({m.experts + 1}, choices.offsets), scale = balance ? c.floats({1}, {3.5f}) : -1,
            dlogits = c.output({m.tokens, m.experts}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.router_backward(
        s, {renormalise, at(dweights), at(probs), at(experts), at(weights), at(offset), at(scale), at(dlogits)});
  });
  c.expect_close(dlogits, "dlogits", Result::rounded_sum);
}

void expert_sort(Case& c, const Experts& m) {
  const int64_t slots = m.tokens * m.chosen;
  const int experts = c.integers({m.tokens, m.chosen}, choices_of(m).experts),
            offset = c.output({m.experts + 1}, DType::i32), rows = c.output({slots}, DType::i32),
            inverse = c.output({slots}, DType::i32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.expert_sort(s, {at(experts), at(offset), at(rows), at(inverse)});
  });
  c.expect_equal(offset, "offsets");
  c.expect_equal(rows, "rows");
  c.expect_equal(inverse, "slots");
}

void balance_loss(Case& c, const Experts& m) {
  const int probs = c.uniform({m.tokens, m.experts}, DType::f32, 0, 1),
            offset = c.integers({m.experts + 1}, choices_of(m).offsets), loss = c.floats({1}, {2.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.balance_loss(s, {at(probs), at(offset), at(loss)});
  });
  c.expect_close(loss, "loss", Result::statistic);
}

void expert_gather(Case& c, DType t, const Experts& m) {
  const int64_t slots = m.tokens * m.chosen;
  const int x = c.random({m.tokens, m.channels}, t), inverse = c.integers({slots}, choices_of(m).slot_of_row),
            y = c.output({slots, m.channels}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.expert_gather(s, {at(x), at(inverse), at(y)});
  });
  c.expect_equal(y, "y");
}

void expert_combine(Case& c, DType t, const Experts& m, bool weighted) {
  const int64_t slots = m.tokens * m.chosen;
  const int x = c.random({slots, m.channels}, t), rows = c.integers({slots}, choices_of(m).row_of_slot),
            weights = weighted ? c.uniform({m.tokens, m.chosen}, DType::f32, 0, 1) : -1,
            y = c.output({m.tokens, m.channels}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.expert_combine(s, {at(x), at(rows), at(weights), at(y)});
  });
  c.expect_close(y, "y", Result::rounded);
}

void expert_combine_backward(Case& c, DType t, const Experts& m) {
  const int64_t slots = m.tokens * m.chosen;
  const int dy = c.random({m.tokens, m.channels}, t), x = c.random({slots, m.channels}, t),
            rows = c.integers({slots}, choices_of(m).row_of_slot),
            weights = c.uniform({m.tokens, m.chosen}, DType::f32, 0, 1), dx = c.output({slots, m.channels}, t),
            dweights = c.output({m.tokens, m.chosen}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.expert_combine_backward(s, {at(dy), at(x), at(rows), at(weights), at(dx), at(dweights)});
  });
  c.expect_close(dx, "dx", Result::rounded);
  c.expect_close(dweights, "dweights", Result::statistic);
}

void add_moving(DType t, const Experts& m) {
  const std::string shape = fmt::format("{}_to_{}_of_{}x{}", m.tokens, m.chosen, m.experts, m.channels);
  if (t == DType::f32) {
    add("ExpertSort", t, shape, m.size, [=](Case& c) { expert_sort(c, m); });
    add("BalanceLoss", t, shape, m.size, [=](Case& c) { balance_loss(c, m); });
  }
  add("ExpertGather", t, shape, m.size, [=](Case& c) { expert_gather(c, t, m); });
  for (bool weighted : {true, false}) {
    add("ExpertCombine", t, shape + (weighted ? "_weighted" : ""), m.size,
        [=](Case& c) { expert_combine(c, t, m, weighted); });
  }
  add("ExpertCombineBackward", t, shape, m.size, [=](Case& c) { expert_combine_backward(c, t, m); });
}

void add_routing(DType t, const Experts& m) {
  for (bool renormalise : {true, false}) {
    const std::string shape =
        fmt::format("{}_to_{}_of_{}{}", m.tokens, m.chosen, m.experts, renormalise ? "_renormalised" : "");
    add("RouterForward", t, shape, m.size, [=](Case& c) { router_forward(c, t, m, renormalise); });
    for (bool balance : {false, true}) {
      add("RouterBackward", t, shape + (balance ? "_balanced" : ""), m.size,
          [=](Case& c) { router_backward(c, t, m, renormalise, balance); });
    }
  }
}

}  // namespace

void register_moe_cases() {
  std::vector<Experts> shapes = {{13, 8, 2, 64, Size::small},    {7, 5, 1, 33, Size::small},
                                 {300, 64, 8, 256, Size::small}, {1000, 128, 8, 40, Size::medium},
                                 {64, 500, 3, 16, Size::medium}, {33, 1, 1, 1, Size::medium},
                                 {33, 8, 2, 5, Size::medium},    {33, 17, 17, 6, Size::medium},
                                 {33, 60, 4, 9, Size::medium},   {33, 128, 8, 2, Size::medium}};
  std::vector<Experts> widths;
  for (int64_t channels : {1, 3, 7, 17, 63, 65, 130}) widths.push_back({29, 10, 3, channels, Size::medium});
  for (DType t : kFormats) {
    for (const Experts& m : shapes) add_routing(t, m), add_moving(t, m);
    for (const Experts& m : widths) add_moving(t, m);
  }
}

}  // namespace sinter::kernels::cases
