#include "kernels/cpu/quantized/integer_rows-inl.h"
#include "kernels/cpu/quantized/integer_x86.h"

namespace sinter::kernels::cpu {
namespace {

struct Avx512Vnni : X86Lanes {
  static Lanes dot(Bytes weights, Bytes codes) {
    return _mm256_cvtepi32_ps(
        _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_abs_epi8(weights), _mm256_sign_epi8(codes, weights)));
  }
  static Lanes dot_unsigned(Bytes weights, Bytes codes) {
    return _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(_mm256_setzero_si256(), weights, codes));
  }
};

}  // namespace

IntegerRowKernel avx512_vnni_integer_kernel(base::WeightFormat format) { return IntegerRows<Avx512Vnni>::find(format); }

}  // namespace sinter::kernels::cpu
