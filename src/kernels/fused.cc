#include "kernels/fused.h"

namespace sinter::kernels {

void matmul_in_parts(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args) {
  MatmulArgs product = args.product;
  if (args.pre_activation) product.c = args.pre_activation;
  table.matmul(stream, product);
  const Tensor& c = args.product.c;
  if (args.pre_activation) {
    table.activation_forward(stream, {.kind = args.activation, .gated = false, .x = args.pre_activation, .y = c});
  }
  if (args.activation_input) {  // element by element, so the gradient may take the product's place
    table.activation_backward(stream, {.kind = args.activation,
                                       .gated = false,
                                       .dy = c,
                                       .x = args.activation_input,
                                       .dx = c,
                                       .dx_sums = args.c_sums});
  }
  if (args.a_sums)
    table.column_sum(stream, {.x = args.product.a, .y = args.a_sums, .accumulate = args.accumulate_sums});
}

void fused_matmul(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args) {
  if (stream.device.kind == core::DeviceKind::cuda && cuda_fused_matmul(stream, args)) {
    if (args.c_sums) table.column_sum(stream, {.x = args.product.c, .y = args.c_sums, .accumulate = true});
  } else {
    matmul_in_parts(table, stream, args);
  }
}

}  // namespace sinter::kernels
