#include "base/cpu.h"
#include "hwy/targets.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels {
namespace {

// Highway asks the CPU itself; this makes it follow SINTER_ISA too. Before the first kernel runs.
void choose_vector_code() {
  int64_t disabled = 0;
  if (!base::cpu_features().avx512) disabled |= HWY_AVX3 | HWY_AVX3_DL;
  if (!base::cpu_features().avx2) disabled |= HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
  if (disabled) hwy::DisableTargets(disabled);
  cpu::has_bf16_rounding = base::cpu_features().avx512_bf16;
}

KernelTable make_table() {
  choose_vector_code();
  KernelTable t;
  t.name = "cpu";
  t.writes_square_sums = true;
#define SINTER_ENTRY(name, Args, cpu, cuda) t.name = cpu::name;
  SINTER_KERNELS(SINTER_ENTRY)
  SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
  return complete_table(t);
}

}  // namespace

const KernelTable* cpu_table() {
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace sinter::kernels
