// Built instead of kernels/cuda when CUDA is not.
#include "kernels/choices.h"
#include "kernels/table.h"
#include "kernels/trace.h"

namespace sinter::kernels {

const KernelTable* cuda_table() { return nullptr; }

std::vector<std::string> cuda_kernel_choices(core::Device) { return {}; }
void restore_cuda_kernel_choices(core::Device, const std::vector<std::string>&) {}
void set_cuda_deterministic() {}
void count_cuda_without_measuring(int) {}
void count_cuda_brief_measuring(int) {}
bool is_tracing_cuda() { return false; }

}  // namespace sinter::kernels
