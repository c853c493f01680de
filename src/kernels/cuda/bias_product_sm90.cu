// c = a b^T + bias in one kernel.
#include "kernels/cuda/cutlass_sm90.cuh"
#include "kernels/cuda/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

namespace fusion = cutlass::epilogue::fusion;
using Biased = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::plus, Bf16, float, kNearest>, fusion::Sm90AccFetch,
                               fusion::Sm90RowBroadcast<0, Tile, Bf16, float>>;
using Forward = Product<ColumnMajor, void, Biased>;

}  // namespace
}  // namespace sm90

void sm90_bias_product(Stream& stream, const MatmulArgs& args) {
  sm90::Forward::CallbackArguments callbacks{{}, {static_cast<const sm90::Bf16*>(args.bias.raw())}, {}};
  sm90::Forward::run(stream, args, nullptr, callbacks);
}

}  // namespace sinter::kernels::cuda
