#include "kernels/cpu/quantized/integer_rows-inl.h"
#include "kernels/cpu/quantized/integer_x86.h"

namespace sinter::kernels::cpu {
namespace {

struct Avx2 : X86Lanes {
  // Two products of seven bits with a code fit sixteen: 2 x 127 x 127, and those of the eighth bit: 2 x 128 x 127.
  template <bool kIsWide>
  static Ints dot(Bytes codes, Bytes x) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (!kIsWide) return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), ones);
    const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(127)), x),
                  high = _mm256_maddubs_epi16(_mm256_and_si256(codes, _mm256_set1_epi8(-128)), x);
    return _mm256_add_epi32(_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones));
  }
};

}  // namespace

IntegerRowKernel avx2_integer_kernel(base::WeightFormat format) { return IntegerRows<Avx2>::find(format); }

}  // namespace sinter::kernels::cpu
