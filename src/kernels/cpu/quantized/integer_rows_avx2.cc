#include "kernels/cpu/quantized/integer_rows-inl.h"
#include "kernels/cpu/quantized/integer_x86.h"

namespace sinter::kernels::cpu {
namespace {

struct Avx2 : X86Lanes {
  // |w| fits eight bits without a sign, and two products of it with a code fit sixteen: 2 x 128 x 127.
  static Lanes dot(Bytes weights, Bytes codes) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(codes, weights));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static Lanes dot_unsigned(Bytes weights, Bytes codes) {
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(_mm256_maddubs_epi16(weights, codes), _mm256_set1_epi16(1)));
  }
};

}  // namespace

IntegerRowKernel avx2_integer_kernel(base::WeightFormat format) { return IntegerRows<Avx2>::find(format); }

}  // namespace sinter::kernels::cpu
