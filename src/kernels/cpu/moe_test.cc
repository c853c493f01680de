#include "kernels/cases/tensors.h"

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

TEST(CpuMoe, EqualLogitsChooseTheLowerExpert) {
  Tensor logits = zero_tensor({3, 12}, DType::bf16);
  for (const KernelTable* table : {cpu_table(), reference_table()}) {
    Routing r = route(*table, logits, 3, true);
    EXPECT_EQ(core::to_host<int32_t>(r.experts), (std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0, 1, 2}));
  }
}

}  // namespace
}  // namespace sinter::kernels
