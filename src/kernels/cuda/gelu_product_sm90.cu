// pre = a b^T + bias and c = gelu(pre) in one kernel, both stored.
#include "kernels/cuda/cutlass_sm90.cuh"
#include "kernels/cuda/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

template <class T>
struct Gelu;
template <int N>
struct Gelu<cutlass::Array<float, N>> {
  __device__ cutlass::Array<float, N> operator()(const cutlass::Array<float, N>& x) const {
    cutlass::Array<float, N> y;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = x[i] * gelu_sigmoid(x[i], x[i] * x[i]);
    return y;
  }
};
template <>
struct Gelu<float> {};  // CUTLASS asks the scalar form for arguments: it has none

using Outputs = Tensors<Square, void>;
using Stored = fusion::Sm90EVT<Outputs::Store, Biased<Square>>;
using Activated = fusion::Sm90EVT<fusion::Sm90Compute<Gelu, Bf16, float, kNearest>, Stored>;
using Forward = Product<Square, ColumnMajor, void, Bf16, Activated>;

}  // namespace
}  // namespace sm90

void sm90_gelu_product(Stream& stream, const FusedMatmulArgs& args) {
  using sm90::Bf16;
  sm90::Forward::CallbackArguments callbacks{
      {
          {
              {},                                                   // the product
              {static_cast<const Bf16*>(args.product.bias.raw())},  // null: zeros
              {},                                                   // their sum
          },
          {static_cast<Bf16*>(args.pre_activation.raw()), sm90::Outputs::rows_of(args.product.c.size(-1))},
      },
      {},
  };
  sm90::Forward::run(stream, args.product, callbacks);
}

}  // namespace sinter::kernels::cuda
