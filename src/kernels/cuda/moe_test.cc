// Cases: routing, sorting, moving rows to experts and back, the balance loss.
#include "base/rng.h"
#include "kernels/cuda/test_harness.h"

namespace sinter::kernels::cuda_test {
namespace {

struct MoeShape {
  int64_t tokens, experts, chosen, channels;
};

std::vector<int32_t> random_choices(const MoeShape& m) {
  base::CounterRng rng{5, static_cast<uint64_t>(m.tokens + m.experts)};
  std::vector<int32_t> experts;
  for (int64_t t = 0; t < m.tokens; ++t) {
    int64_t first = static_cast<int64_t>(rng.uniform(static_cast<uint64_t>(t)) *
                                         rng.uniform(static_cast<uint64_t>(t) + 99999) * static_cast<float>(m.experts));
    for (int64_t j = 0; j < m.chosen; ++j) experts.push_back(static_cast<int32_t>((first + j) % m.experts));
  }
  return experts;
}
// Offsets, row of each slot, slot of each row, of a stable sort by expert.
void sort_on_host(const MoeShape& m, const std::vector<int32_t>& experts, std::vector<int32_t>& offsets,
                  std::vector<int32_t>& row_of_slot, std::vector<int32_t>& slot_of_row) {
  offsets.assign(static_cast<size_t>(m.experts) + 1, 0);
  row_of_slot.assign(experts.size(), 0);
  slot_of_row.clear();
  for (int64_t e = 0; e < m.experts; ++e) {
    offsets[e] = static_cast<int32_t>(slot_of_row.size());
    for (size_t slot = 0; slot < experts.size(); ++slot) {
      if (experts[slot] != e) continue;
      row_of_slot[slot] = static_cast<int32_t>(slot_of_row.size());
      slot_of_row.push_back(static_cast<int32_t>(slot));
    }
  }
  offsets[m.experts] = static_cast<int32_t>(slot_of_row.size());
}

void test_router(DType t, const MoeShape& m, bool renormalise) {
  std::string shape = fmt::format("T {} E {} k {} norm {}", m.tokens, m.experts, m.chosen, renormalise);
  if (wants("router_forward")) {
    Case c("router_forward", t, shape);
    int logits = c.random({m.tokens, m.experts}, t), probs = c.output({m.tokens, m.experts}, DType::f32);
    int experts = c.output({m.tokens, m.chosen}, DType::i32), weights = c.output({m.tokens, m.chosen}, DType::f32);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.router_forward(s, {m.chosen, renormalise, at(logits), at(probs), at(experts), at(weights)});
    });
    c.expect_close(probs, "probs", 1e-5);
    c.expect_equal(experts, "experts");
    c.expect_close(weights, "weights", 1e-5);
  }
  if (!wants("router_backward")) return;
  std::vector<int32_t> choices = random_choices(m), offsets, row_of_slot, slot_of_row;
  sort_on_host(m, choices, offsets, row_of_slot, slot_of_row);
  for (bool balance : {false, true}) {
    Case c("router_backward", t, shape + (balance ? " balance" : ""));
    int dweights = c.random({m.tokens, m.chosen}, DType::f32);
    int probs = c.uniform({m.tokens, m.experts}, DType::f32, 0.0f, 2.0f / static_cast<float>(m.experts));
    int experts = c.integers({m.tokens, m.chosen}, choices),
        weights = c.uniform({m.tokens, m.chosen}, DType::f32, 0, 1);
    int offset = c.integers({m.experts + 1}, offsets), scale = balance ? c.floats({1}, {3.5f}) : -1;
    int dlogits = c.output({m.tokens, m.experts}, t);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.router_backward(
          s, {renormalise, at(dweights), at(probs), at(experts), at(weights), at(offset), at(scale), at(dlogits)});
    });
    c.expect_close(dlogits, "dlogits", std::max(2e-5, rounding_limit(t)));
  }
}

void test_moving(DType t, const MoeShape& m) {
  std::string shape = fmt::format("T {} E {} k {} C {}", m.tokens, m.experts, m.chosen, m.channels);
  int64_t slots = m.tokens * m.chosen;
  std::vector<int32_t> choices = random_choices(m), offsets, row_of_slot, slot_of_row;
  sort_on_host(m, choices, offsets, row_of_slot, slot_of_row);
  if (t == DType::f32 && wants("expert_sort")) {
    Case c("expert_sort", t, shape);
    int experts = c.integers({m.tokens, m.chosen}, choices), offset = c.output({m.experts + 1}, DType::i32);
    int rows = c.output({slots}, DType::i32), inverse = c.output({slots}, DType::i32);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.expert_sort(s, {at(experts), at(offset), at(rows), at(inverse)});
    });
    c.expect_equal(offset, "offsets");
    c.expect_equal(rows, "rows");
    c.expect_equal(inverse, "slots");
  }
  if (t == DType::f32 && wants("balance_loss")) {
    Case c("balance_loss", t, shape);
    int probs = c.uniform({m.tokens, m.experts}, DType::f32, 0, 1), offset = c.integers({m.experts + 1}, offsets);
    int loss = c.floats({1}, {2.0f});
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.balance_loss(s, {at(probs), at(offset), at(loss)});
    });
    c.expect_close(loss, "loss", 1e-5);
  }
  if (wants("expert_gather")) {
    Case c("expert_gather", t, shape);
    int x = c.random({m.tokens, m.channels}, t), inverse = c.integers({slots}, slot_of_row),
        y = c.output({slots, m.channels}, t);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.expert_gather(s, {at(x), at(inverse), at(y)});
    });
    c.expect_equal(y, "y");
  }
  for (bool weighted : {true, false}) {
    if (!wants("expert_combine")) break;
    Case c("expert_combine", t, shape + (weighted ? " weighted" : ""));
    int x = c.random({slots, m.channels}, t), rows = c.integers({slots}, row_of_slot);
    int weights = weighted ? c.uniform({m.tokens, m.chosen}, DType::f32, 0, 1) : -1,
        y = c.output({m.tokens, m.channels}, t);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.expert_combine(s, {at(x), at(rows), at(weights), at(y)});
    });
    c.expect_close(y, "y", rounding_limit(t));
  }
  if (wants("expert_combine_backward")) {
    Case c("expert_combine_backward", t, shape);
    int dy = c.random({m.tokens, m.channels}, t), x = c.random({slots, m.channels}, t),
        rows = c.integers({slots}, row_of_slot);
    int weights = c.uniform({m.tokens, m.chosen}, DType::f32, 0, 1), dx = c.output({slots, m.channels}, t);
    int dweights = c.output({m.tokens, m.chosen}, DType::f32);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.expert_combine_backward(s, {at(dy), at(x), at(rows), at(weights), at(dx), at(dweights)});
    });
    c.expect_close(dx, "dx", rounding_limit(t));
    c.expect_close(dweights, "dweights", 1e-5);
  }
}

}  // namespace

void test_moe() {
  std::vector<MoeShape> shapes = {
      {13, 8, 2, 64}, {7, 5, 1, 33}, {300, 64, 8, 256}, {1000, 128, 8, 40}, {64, 500, 3, 16}};
  if (test_options().small) shapes.resize(3);
  for (DType t : kFormats) {
    for (const MoeShape& m : shapes) {
      for (bool renormalise : {true, false}) test_router(t, m, renormalise);
      test_moving(t, m);
    }
  }
}

}  // namespace sinter::kernels::cuda_test
