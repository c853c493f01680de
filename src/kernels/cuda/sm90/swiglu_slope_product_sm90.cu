// The gradients of gate and up from dh = a b in one kernel: dh goes to no memory.
#include "kernels/cuda/sm90/sm90.h"
#include "kernels/cuda/sm90/swiglu_sm90.cuh"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

template <class T>
struct UpGradient;
template <int N>
struct UpGradient<cutlass::Array<float, N>> {
  using Floats = cutlass::Array<float, N>;
  __device__ Floats operator()(const Floats& dh, const Floats& gate) const {
    Floats y;
#pragma unroll
    for (int i = 0; i < N; ++i) y[i] = dh[i] * (gate[i] * silu_sigmoid(gate[i]));
    return y;
  }
};
template <class T>
struct GateGradient;
template <int N>
struct GateGradient<cutlass::Array<float, N>> {
  using Floats = cutlass::Array<float, N>;
  __device__ Floats operator()(const Floats& dh, const Floats& gate, const Floats& up) const {
    Floats y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float s = silu_sigmoid(gate[i]), value = gate[i] * s;
      y[i] = dh[i] * up[i] * (s + (value - value * s));  // d(x s)/dx = s + x s (1 - s)
    }
    return y;
  }
};
template <>
struct UpGradient<float> {};  // CUTLASS asks the scalar forms for arguments: they have none
template <>
struct GateGradient<float> {};

// CUTLASS's own source and result are gate and its gradient; up and its gradient are the further ones.
using Parts = Tensors<Banded, Bf16>;
using Dh = fusion::Sm90AccFetch;
using Gate = fusion::Sm90SrcFetch<Bf16>;
using UpStored =
    fusion::Sm90EVT<Parts::Store, fusion::Sm90EVT<fusion::Sm90Compute<UpGradient, float, float, kNearest>, Dh, Gate>>;
using GateResult = fusion::Sm90EVT<fusion::Sm90Compute<GateGradient, Bf16, float, kNearest>, Dh, Gate, Parts::Load>;
using GatedBackward = Product<Banded, RowMajor, Bf16, Bf16, fusion::Sm90SplitTreeVisitor<Dh, GateResult, UpStored>>;

}  // namespace
}  // namespace sm90

void sm90_swiglu_slope_product(Stream& stream, const FusedMatmulArgs& args) {
  using sm90::Bf16;
  const int F = static_cast<int>(args.product.c.size(-1));
  auto* gate = static_cast<const Bf16*>(args.activation_input.raw());
  auto* dgate = static_cast<Bf16*>(args.gate_up_gradient.raw());
  auto rows = sm90::Parts::rows_of(2 * F);
  sm90::GatedBackward::CallbackArguments callbacks{
      {},                                          // dh
      {{}, {dgate + F, rows}},                     // the gradient of up, and where it goes
      {{}, {}, {gate + F, Bf16(0.0f), rows}, {}},  // that of gate, which takes up
  };
  sm90::GatedBackward::run(stream, args.product, callbacks, F, gate, dgate, 2 * F);
}

}  // namespace sinter::kernels::cuda
