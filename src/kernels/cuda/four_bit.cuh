// The numbers behind the codes of bitsandbytes' 4-bit formats (base/blocks_decode.cc has the same), before their scale.
#pragma once
#include "base/weight_format.h"

namespace sinter::kernels::cuda {

__constant__ const float kNf4Numbers[16] = {-1.0f,
                                            -0.6961928009986877f,
                                            -0.5250730514526367f,
                                            -0.39491748809814453f,
                                            -0.28444138169288635f,
                                            -0.18477343022823334f,
                                            -0.09105003625154495f,
                                            0.0f,
                                            0.07958029955625534f,
                                            0.16093020141124725f,
                                            0.24611230194568634f,
                                            0.33791524171829224f,
                                            0.44070982933044434f,
                                            0.5626170039176941f,
                                            0.7229568362236023f,
                                            1.0f};
__constant__ const float kFp4Numbers[8] = {0.0f,        0.0625f / 12, 0.66666667f, 1.0f,
                                           0.33333333f, 0.5f,         0.16666667f, 0.25f};

template <base::WeightFormat kFormat>
__device__ __forceinline__ float four_bit_value(int code) {
  static_assert(kFormat == base::WeightFormat::nf4 || kFormat == base::WeightFormat::fp4);
  if constexpr (kFormat == base::WeightFormat::nf4) return kNf4Numbers[code];
  const float size = kFp4Numbers[code & 7];
  return code & 8 ? -size : size;
}

}  // namespace sinter::kernels::cuda
