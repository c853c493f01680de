// The operations of integer_unpack-inl.h for AVX-512 VNNI. Only for files compiled with its flags; internal linkage for
// the reason given in matmul_tile.h.
#pragma once
#include "kernels/cpu/quantized/integer_x86.h"

namespace sinter::kernels::cpu {
namespace {

struct Avx512Vnni : X86Lanes {
  template <bool kIsWide>
  static Ints dot(Bytes codes, Bytes x) {
    return _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, x);
  }
};

}  // namespace
}  // namespace sinter::kernels::cpu
