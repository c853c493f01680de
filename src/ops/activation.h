// Elementwise: the MLP's nonlinearity, dropout, sums.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// Gated: x = [gate | up] (R, 2F) -> act(gate) * up (R, F). Else act(x), (R, F).
Variable activation(const Context& context, const Variable& x, spec::Activation kind, bool gated);

// Zeroes elements with probability p and scales the rest by 1 / (1 - p); the identity when p is 0 or nothing records.
Variable dropout(const Context& context, const Variable& x, float p, RandomKey key, uint64_t first_index);

// The same where rows (R) i32 tells the number of each row: element c of row r is number rows[r] * C + c.
Variable dropout_rows(const Context& context, const Variable& x, float p, RandomKey key, const Tensor& rows);

// x + residual, rounded to their format. x was made after the residual, as in norm().
Variable add(const Context& context, const Variable& x, const Variable& residual);

}  // namespace sinter::ops
