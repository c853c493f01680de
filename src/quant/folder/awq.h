// Activation-aware scaling: columns of a weight that meet large inputs are made larger before rounding, and what gives
// those inputs is made smaller by as much, so that the model stays the same but loses less.
#pragma once
#include <vector>

#include "quant/folder/integer_weight.h"
#include "quant/folder/layer.h"

namespace sinter::quant {

// Scales the inputs of every quantized weight of a block that a norm or another weight of it gives, in place. `inputs`
// are what the block's products read, and become those of the scaled block.
void scale_for_rounding(Layer& layer, const spec::ModelSpec& spec, const IntegerForm& form,
                        std::map<const Layer::Slot*, std::vector<Hessian>>& inputs);

}  // namespace sinter::quant
