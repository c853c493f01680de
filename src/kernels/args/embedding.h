// Arguments of the embedding kernels.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

struct EmbeddingForwardArgs {
  Tensor tokens;          // (T) i32
  Tensor positions;       // (T) i32; used with position_table
  Tensor table;           // (V, C) compute format
  Tensor position_table;  // (P, C) compute format, or empty
  Tensor y;               // (T, C)
};
struct EmbeddingBackwardArgs {  // ADDS into the tables' gradients, in a fixed order
  Tensor tokens;                // (T) i32
  Tensor positions;             // (T) i32
  Tensor dy;                    // (T, C)
  Tensor dtable;                // (V, C) f32, or empty: frozen
  Tensor dposition_table;       // (P, C) f32, or empty
  // (1) f32 or empty, only where the table writes_square_sums: holds the sum of the squares of dtable, and is kept so.
  Tensor dtable_squares;
};

// y[r][c] += scales[r] * (2 u - 1), with u = CounterRng{0, streams[r]}.uniform(c): core::RowNoise.
struct RowNoiseArgs {
  Tensor streams;  // (R, 2) i32
  Tensor scales;   // (R) f32
  Tensor y;        // (R, C)
};

// Embeddings over rows [first, first + V) of a vocabulary that several ranks share: tokens outside give 0 and get no
// gradient, so that the ranks' results add up to the whole.
struct VocabEmbeddingForwardArgs {
  Tensor tokens;  // (T) i32
  Tensor table;   // (V, C) compute format
  int64_t first = 0;
  Tensor y;  // (T, C)
};
struct VocabEmbeddingBackwardArgs {  // ADDS into dtable, in the order of the tokens
  Tensor tokens;                     // (T) i32
  Tensor dy;                         // (T, C)
  int64_t first = 0;
  Tensor dtable;  // (V, C) f32
};

}  // namespace sinter::kernels
