// Cases of attention that only CUDA has: passes captured as graphs, and which kernel took a call. For tests only.
#pragma once

namespace sinter::kernels::cuda {

void register_attention_cases();

}  // namespace sinter::kernels::cuda
