#include "kernels/test_grid.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

struct Routing {
  Tensor probs, experts, weights, group_offsets, row_of_slot, slot_of_row;
};

Routing route(const KernelTable& table, const Tensor& logits, int64_t chosen, bool norm) {
  int64_t tokens = logits.size(0), experts = logits.size(1);
  Routing r{.probs = empty_tensor({tokens, experts}, DType::f32),
            .experts = empty_tensor({tokens, chosen}, DType::i32),
            .weights = empty_tensor({tokens, chosen}, DType::f32),
            .group_offsets = empty_tensor({experts + 1}, DType::i32),
            .row_of_slot = empty_tensor({tokens * chosen}, DType::i32),
            .slot_of_row = empty_tensor({tokens * chosen}, DType::i32)};
  table.router_forward(stream(), {.experts_per_token = chosen,
                                  .norm_topk_prob = norm,
                                  .logits = logits,
                                  .probs = r.probs,
                                  .experts = r.experts,
                                  .weights = r.weights});
  table.expert_sort(stream(), {.experts = r.experts,
                               .group_offsets = r.group_offsets,
                               .row_of_slot = r.row_of_slot,
                               .slot_of_row = r.slot_of_row});
  return r;
}

TEST(CpuMoe, RoutingMatchesReference) {
  for (const Format& format : kFormats) {
    for (bool norm : {false, true}) {
      for (auto [experts, chosen] : {std::pair<int64_t, int64_t>{1, 1}, {8, 2}, {17, 17}, {60, 4}, {128, 8}}) {
        Tensor logits = random_tensor({33, experts}, format.dtype, 1);
        logits.data<char>()[0] = logits.data<char>()[base::dtype_bytes(format.dtype)];
        check_against_reference(
            [&](const KernelTable& table) {
              Routing r = route(table, logits, chosen, norm);
              Tensor loss = random_tensor({1}, DType::f32, 2), dlogits = empty_tensor({33, experts}, format.dtype);
              table.balance_loss(stream(), {.probs = r.probs, .group_offsets = r.group_offsets, .loss = loss});
              RouterBackwardArgs args{.norm_topk_prob = norm,
                                      .dweights = random_tensor({33, chosen}, DType::f32, 3),
                                      .probs = r.probs,
                                      .experts = r.experts,
                                      .weights = r.weights,
                                      .group_offsets = r.group_offsets,
                                      .dlogits = dlogits};
              args.balance_scale = random_tensor({1}, DType::f32, 4);
              table.router_backward(stream(), args);
              return std::vector<Tensor>{r.probs,       r.experts,     r.weights, r.group_offsets,
                                         r.row_of_slot, r.slot_of_row, loss,      dlogits};
            },
            format.tolerance, "routing among " + std::to_string(experts));
      }
    }
  }
}

TEST(CpuMoe, EqualLogitsChooseTheLowerExpert) {
  Tensor logits = zero_tensor({3, 12}, DType::bf16);
  for (const KernelTable* table : {cpu_table(), reference_table()}) {
    Routing r = route(*table, logits, 3, true);
    EXPECT_EQ(core::to_host<int32_t>(r.experts), (std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
  }
}

TEST(CpuMoe, RowsGoToTheirExpertsAndBack) {
  constexpr int64_t kTokens = 29, kChosen = 3;
  for (const Format& format : kFormats) {
    Tensor logits = random_tensor({kTokens, 10}, DType::f32, 1);
    Routing r = route(*reference_table(), logits, kChosen, true);
    for (int64_t channels : kOddSizes) {
      Tensor x = random_tensor({kTokens, channels}, format.dtype, 2),
             dy = random_tensor({kTokens, channels}, format.dtype, 3);
      check_against_reference(
          [&](const KernelTable& table) {
            Tensor rows = empty_tensor({kTokens * kChosen, channels}, format.dtype);
            Tensor y = empty_tensor(x.shape(), format.dtype), plain = empty_tensor(x.shape(), format.dtype);
            table.expert_gather(stream(), {.x = x, .slot_of_row = r.slot_of_row, .y = rows});
            table.expert_combine(stream(), {.x = rows, .row_of_slot = r.row_of_slot, .weights = r.weights, .y = y});
            table.expert_combine(stream(), {.x = rows, .row_of_slot = r.row_of_slot, .y = plain});
            Tensor dx = empty_tensor(rows.shape(), format.dtype),
                   dweights = empty_tensor({kTokens, kChosen}, DType::f32);
            table.expert_combine_backward(stream(), {.dy = dy,
                                                     .x = rows,
                                                     .row_of_slot = r.row_of_slot,
                                                     .weights = r.weights,
                                                     .dx = dx,
                                                     .dweights = dweights});
            return std::vector<Tensor>{rows, y, plain, dx, dweights};
          },
          format.tolerance, "experts of width " + std::to_string(channels));
    }
  }
}

}  // namespace
}  // namespace sinter::kernels
