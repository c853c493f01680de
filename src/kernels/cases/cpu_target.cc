// The CPU's table at every instruction set of this machine, with one, two and three threads.
#include "base/cpu.h"
#include "base/threads.h"
#include "hwy/targets.h"
#include "kernels/cases/case.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::kernels::cases {
namespace {

std::vector<cpu::MatmulIsa> levels_of_machine() {
  std::vector<cpu::MatmulIsa> levels;
  for (cpu::MatmulIsa isa : cpu::kMatmulIsas) {
    if (cpu::can_run(isa)) levels.push_back(isa);
  }
  return levels;
}

// As SINTER_ISA does for a whole process: microkernels of products, Highway's code, and how bf16 is rounded.
void set_isa(cpu::MatmulIsa isa) {
  int64_t disabled = 0;
  if (isa < cpu::MatmulIsa::avx512) disabled |= HWY_AVX3 | HWY_AVX3_DL;
  if (isa < cpu::MatmulIsa::avx2) disabled |= HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
  hwy::DisableTargets(disabled);
  cpu::has_bf16_rounding = isa >= cpu::MatmulIsa::avx512_bf16;
  cpu::set_matmul_isa(isa);
}

const cpu::MatmulIsa kBest = cpu::matmul_isa();
const int kThreads = base::num_threads();

Target make_target() {
  Target t;
  t.kernels = cpu_table();
  t.largest = Size::medium;
  t.holds_elements = true;
  for (cpu::MatmulIsa isa : levels_of_machine()) t.levels.emplace_back(cpu::matmul_isa_name(isa));
  t.set_level = [](size_t level) { set_isa(levels_of_machine()[level]); };
  t.num_runs = 3;
  t.set_run = [](int run) { base::set_num_threads(1 + run); };
  t.restore = [] {
    set_isa(kBest);
    base::set_num_threads(kThreads);
  };
  return t;
}

}  // namespace

const Target& target() {
  static const Target target = make_target();
  return target;
}

}  // namespace sinter::kernels::cases
