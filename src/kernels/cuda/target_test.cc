// test_cuda: the CUDA table as the target of the cases, and the cases that are CUDA's own.
#include <cstdio>
#include <cstdlib>

#include "kernels/cases/case.h"
#include "kernels/cuda/attention/attention_cases.h"

namespace sinter::kernels::cases {
namespace {

Target make_target() {
  // Hundreds of small products: measuring algorithms for each would take minutes. SINTER_CUDA_TUNE=1 asks for it.
  setenv("SINTER_CUDA_TUNE", "0", 0);
  setenv("SINTER_CUDA_FUSE", "1", 0);  // the fused products are tested wherever the library has them
  Target t;
  t.kernels = cuda_table();
  t.device = {core::DeviceKind::cuda, 0};
  t.is_present = core::cuda_runtime(0) != nullptr;
  t.levels = {""};
  t.has_atomics = true;
  t.register_own_cases = cuda::register_attention_cases;
  if (t.is_present) std::printf("%s\n", core::runtime(t.device).description().c_str());
  return t;
}

}  // namespace

const Target& target() {
  static const Target target = make_target();
  return target;
}

}  // namespace sinter::kernels::cases
