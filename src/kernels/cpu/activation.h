// Activations of a piece of a (rows, columns) tensor, for kernels that have just made it.
#pragma once
#include "kernels/cpu/matmul_product.h"
#include "kernels/table.h"

namespace sinter::kernels::cpu {

// As activation_forward and activation_backward do it, without a gate and without sums.
void activation_forward_block(const ActivationForwardArgs& args, const Block& block);
void activation_backward_block(const ActivationBackwardArgs& args, const Block& block);

}  // namespace sinter::kernels::cpu
