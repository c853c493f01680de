#include "base/cpu.h"
#include "base/error.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::kernels::cpu {
namespace {

MatmulIsa best_isa() {
  MatmulIsa best = MatmulIsa::portable;
  for (MatmulIsa isa : kMatmulIsas) {
    if (can_run(isa)) best = isa;
  }
  return best;
}

MatmulIsa& current_isa() {
  static MatmulIsa isa = best_isa();
  return isa;
}

}  // namespace

const char* matmul_isa_name(MatmulIsa isa) {
  switch (isa) {
    case MatmulIsa::portable:
      return "portable";
    case MatmulIsa::avx2:
      return "avx2";
    case MatmulIsa::avx512:
      return "avx512";
    case MatmulIsa::avx512_bf16:
      return "avx512_bf16";
    case MatmulIsa::amx:
      return "amx";
  }
  return "";
}

bool can_run(MatmulIsa isa) {
  const base::CpuFeatures& cpu = base::cpu_features();
  switch (isa) {
    case MatmulIsa::portable:
      return true;
    case MatmulIsa::avx2:
      return cpu.avx2 && avx2_f32_kernel();
    case MatmulIsa::avx512:
      return cpu.avx512 && avx512_f32_kernel();
    case MatmulIsa::avx512_bf16:
      return cpu.avx512_bf16 && avx512_bf16_kernel();
    case MatmulIsa::amx:
      return cpu.amx_bf16 && amx_bf16_kernel();
  }
  return false;
}

MatmulIsa matmul_isa() { return current_isa(); }

void set_matmul_isa(MatmulIsa isa) {
  SINTER_CHECK(can_run(isa), "this CPU ({}) does not run the {} matrix product", base::cpu_description(),
               matmul_isa_name(isa));
  current_isa() = isa;
}

const MatmulKernel& matmul_kernel(base::DType dtype) {
  MatmulIsa isa = current_isa();
  if (dtype == base::DType::bf16) {
    if (isa == MatmulIsa::amx) return *amx_bf16_kernel();
    if (isa == MatmulIsa::avx512_bf16) return *avx512_bf16_kernel();
  }
  if (dtype == base::DType::f32 && isa == MatmulIsa::amx) return *amx_f32_kernel();
  if (isa >= MatmulIsa::avx512) return *avx512_f32_kernel();
  return isa == MatmulIsa::avx2 ? *avx2_f32_kernel() : *portable_f32_kernel();
}

}  // namespace sinter::kernels::cpu
