// What the routers of a mixture of experts choose, seen and steered. A token whose last chosen expert and the next one
// lie closer together than the arithmetic resolves may go either way, and what follows then differs by far more than
// rounding; these tell such a token from a wrong router.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor.h"

namespace sinter::eval {

// Two experts of which a token takes one.
struct RouterChoice {
  int64_t layer = 0, token = 0;
  int32_t chosen = 0, other = 0;
  double gap = 0;  // between their logits, as a share of the standard deviation of the token's logits
};

// The experts of the k largest logits, largest first, the lower one among equals, as the kernels choose them.
std::vector<int32_t> choose_experts(std::span<const float> logits, int64_t k);

// The last expert chosen against the first that is not; every expert chosen: a gap of infinity.
RouterChoice closest_choice(std::span<const float> logits, int64_t k);

// Lets `logits` choose the experts that `reference` chooses, by exchanging values between experts that only one of the
// two chooses. Returns those pairs, `chosen` by logits and `other` by the reference, with their gap in the reference.
std::vector<RouterChoice> follow_choice(std::span<float> logits, std::span<const float> reference, int64_t k);

// Calls edit(token, row) with every row of a (T, E) f32 tensor and keeps what it makes of them.
void edit_rows(const core::Tensor& logits, const std::function<void(int64_t token, std::span<float> row)>& edit);

}  // namespace sinter::eval
