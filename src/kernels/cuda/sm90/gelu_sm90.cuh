// tanh-GELU inside the products around it. Only files named *_sm90.cu include this.
#pragma once
#include "kernels/cuda/sm90/cutlass_sm90.cuh"

namespace sinter::kernels::cuda::sm90 {

struct GeluAt {
  float value, slope;
};
// x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), and its slope. The hardware's tangent is off by 2^-11 at
// most, as in the kernels of the activation alone. What is not used of the result costs nothing.
__device__ __forceinline__ GeluAt gelu_at(float x) {
  const float square = x * x;
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(x * fmaf(0.035677408f, square, 0.79788456f)));
  const float half = fmaf(0.5f, t, 0.5f);  // (1 + tanh u) / 2
  return {x * half, fmaf(fmaf(-t, t, 1.0f), x * fmaf(0.053516112f, square, 0.39894228f), half)};
}

__device__ __forceinline__ uint32_t to_bf16_pair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace sinter::kernels::cuda::sm90
