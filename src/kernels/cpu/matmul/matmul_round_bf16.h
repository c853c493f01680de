// Results rounded by AVX512-BF16's own instruction, for the kernels compiled with it.
#pragma once
#include "kernels/cpu/matmul/matmul_pack_avx512.h"

namespace sinter::kernels::cpu {
namespace {

struct ToBf16Rounded : ToBf16 {
  static void store(uint16_t* p, __mmask16 mask, __m512 value) {
    _mm256_mask_storeu_epi16(p, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }
};

}  // namespace
}  // namespace sinter::kernels::cpu
