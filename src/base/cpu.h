// What this CPU can do, decided once at run time. SINTER_ISA (portable, avx2, avx512, avx512bf16, amx) lowers it.
#pragma once
#include <string>

namespace sinter::base {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_bf16 = false;
  bool avx512_vnni = false;
  bool amx_bf16 = false;  // tiles usable: CPUID shows them, the kernel granted them
  bool amx_int8 = false;
};

const CpuFeatures& cpu_features();
// "avx512 avx512_bf16", for logs and `sinter --version`.
std::string cpu_description();

}  // namespace sinter::base
