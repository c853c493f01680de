// c = (a b) * gelu'(x) in one kernel: the gradient through tanh-GELU.
#include "kernels/cuda/cutlass_sm90.cuh"
#include "kernels/cuda/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

template <class T>
struct TimesSlope;
template <int N>
struct TimesSlope<cutlass::Array<float, N>> {
  using Floats = cutlass::Array<float, N>;
  __device__ Floats operator()(const Floats& gradient, const Floats& x) const {
    Floats y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float square = x[i] * x[i];
      float s = gelu_sigmoid(x[i], square);
      // d(x s)/dx = s + x s (1 - s) 2 u'
      float curve = x[i] * (1.5957691f + 0.21406445f * square);
      y[i] = gradient[i] * (s + (s - s * s) * curve);
    }
    return y;
  }
};
template <>
struct TimesSlope<float> {};  // CUTLASS asks the scalar form for arguments: it has none

namespace fusion = cutlass::epilogue::fusion;
using Sloped = fusion::Sm90EVT<fusion::Sm90Compute<TimesSlope, Bf16, float, kNearest>, fusion::Sm90AccFetch,
                               fusion::Sm90SrcFetch<Bf16>>;
using Backward = Product<RowMajor, Bf16, Sloped>;

}  // namespace
}  // namespace sm90

void sm90_gelu_slope_product(Stream& stream, const FusedMatmulArgs& args) {
  sm90::Backward::run(stream, args.product, args.activation_input.raw(), {});
}

}  // namespace sinter::kernels::cuda
