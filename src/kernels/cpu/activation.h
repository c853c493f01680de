// Activations of a piece of a (rows, columns) tensor, for kernels that have just made it.
#pragma once
#include "kernels/cpu/matmul/matmul_product.h"
#include "kernels/table.h"

namespace sinter::kernels::cpu {

// A block's values in the format of its tensor, rows `stride` elements apart.
struct BlockValues {
  const void* values;
  int64_t stride;
  bool streams = false;  // slopes go past the caches
};

// As activation_forward and activation_backward do it, without a gate; the block of args.x or args.dy is given. Forward
// also writes it to args.x where there is one and it does not stand there already. Backward sets `sums` (a block's
// columns), where given, to the sums of dx over the block's rows.
void activation_forward_block(const ActivationForwardArgs& args, const Block& block, const BlockValues& x);
void activation_backward_block(const ActivationBackwardArgs& args, const Block& block, const BlockValues& dy,
                               float* sums);

// Asks for the lines of a block of a tensor that will be read soon.
void ask_for_block(const Tensor& x, const Block& block);

}  // namespace sinter::kernels::cpu
