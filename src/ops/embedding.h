// Rows of the token table (plus the position table where the model has one).
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// -> (T, C) in the tables' compute format. positions may be null.
Variable embedding(const Context& context, const core::RaggedBatch& batch, Parameter& tokens, Parameter* positions);

}  // namespace sinter::ops
