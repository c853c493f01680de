// Arguments of choosing tokens from logits where they lie.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// A change of one token's logit: x = logit + bias; x = x > 0 ? x / divisor : x * divisor; x - loss. A bias of -inf: the
// token may not come.
struct LogitEdit {
  int32_t token = 0;
  float bias = 0.0f, divisor = 1.0f, loss = 0.0f;
};

// How the token of one row is chosen: engine/sampler.h says what the fields mean and gives the same tokens.
struct SampleRow {
  float temperature = 0.0f;  // 0 = the likeliest
  float top_p = 1.0f, min_p = 0.0f;
  int32_t top_k = 0;  // 0 = all
  uint64_t seed = 0;  // the noise is that of CounterRng{seed, stream}, number = token
  uint64_t stream = 0;
  int32_t mask = -1;                      // row of `masks`, or -1
  int32_t first_edit = 0, num_edits = 0;  // range of `edits`; a token occurs once
  int32_t is_used = 0;                    // 0: the row's token is -1
};

struct SampleArgs {
  Tensor logits;      // (R, V) f32; as before afterwards
  int64_t vocab = 0;  // tokens from here on may not come
  Tensor rows;        // (R * sizeof(SampleRow)) u8: SampleRow each
  Tensor edits;       // overwritten; (n * sizeof(LogitEdit)) u8, or empty
  Tensor masks;       // (m, (V + 31) / 32) i32: bits of the tokens that may come; or empty
  Tensor tokens;      // (R) i32: -1 where no token may come, -2 where the logits are not finite
  Tensor ranks;  // (R) i32 or empty: how many tokens are likelier by the logits as they came, equal ones before it too
};

}  // namespace sinter::kernels
