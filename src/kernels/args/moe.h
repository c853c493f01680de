// Arguments of routing tokens to experts and back.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// Mixture of experts. A token's k choices are its slots t * k + j; sorted rows are slots ordered by (expert, slot).
struct RouterForwardArgs {  // softmax over E, the k largest (ties: lower expert first), renormalised when asked
  int64_t experts_per_token = 1;
  bool norm_topk_prob = true;
  Tensor logits;   // (T, E) compute format or f32
  Tensor probs;    // (T, E) f32
  Tensor experts;  // (T, k) i32
  Tensor weights;  // (T, k) f32
};
struct RouterBackwardArgs {
  bool norm_topk_prob = true;
  Tensor dweights;       // (T, k) f32
  Tensor probs;          // (T, E) f32
  Tensor experts;        // (T, k) i32
  Tensor weights;        // (T, k) f32
  Tensor group_offsets;  // (E + 1) i32
  Tensor balance_scale;  // (1) f32 or empty: d(total loss)/d(balance loss), with balance loss = E * sum_e f_e P_e,
                         // f_e = slots of e / T, P_e = mean over t of probs
  Tensor dlogits;        // (T, E) in the format of logits
};
struct BalanceLossArgs {  // ADDS E * sum_e f_e P_e into loss
  Tensor probs;           // (T, E) f32
  Tensor group_offsets;   // (E + 1) i32
  Tensor loss;            // (1) f32
};
struct ExpertSortArgs {
  Tensor experts;        // (T, k) i32
  Tensor group_offsets;  // (E + 1) i32 out
  Tensor row_of_slot;    // (T * k) i32 out
  Tensor slot_of_row;    // (T * k) i32 out: the inverse
};
struct ExpertGatherArgs {  // y[row] = x[slot_of_row[row] / k]
  Tensor x;                // (T, C)
  Tensor slot_of_row;      // (T * k) i32
  Tensor y;                // (T * k, C)
};
struct ExpertCombineArgs {  // y[t] = sum_j weight[t, j] * x[row_of_slot[t k + j]], j ascending; weights empty = all 1
  Tensor x;                 // (T * k, C)
  Tensor row_of_slot;       // (T * k) i32
  Tensor weights;           // (T, k) f32 or empty
  Tensor y;                 // (T, C)
};
struct ExpertCombineBackwardArgs {
  Tensor dy;           // (T, C)
  Tensor x;            // (T * k, C)
  Tensor row_of_slot;  // (T * k) i32
  Tensor weights;      // (T, k) f32
  Tensor dx;           // (T * k, C)
  Tensor dweights;     // (T, k) f32
};

}  // namespace sinter::kernels
