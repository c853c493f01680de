#include "kernels/fused.h"

#include <algorithm>

namespace sinter::kernels {

void matmul_in_parts(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args) {
  MatmulArgs product = args.product;
  if (args.pre_activation) product.c = args.pre_activation;
  table.matmul(stream, product);
  const Tensor& c = args.product.c;
  if (args.pre_activation) {
    table.activation_forward(stream, {.kind = args.activation, .gated = args.gated, .x = args.pre_activation, .y = c});
  }
  // Element by element: without a gate a result may take the product's place.
  if (args.slope) {
    table.activation_forward(stream, {.kind = args.activation, .gated = false, .x = c, .y = c, .slope = args.slope});
  }
  if (args.activation_input || args.slope_input) {
    table.activation_backward(stream, {.kind = args.activation,
                                       .gated = args.gated,
                                       .dy = c,
                                       .x = args.activation_input,
                                       .dx = args.gated ? args.gate_up_gradient : c,
                                       .dx_sums = args.c_sums,
                                       .slope = args.slope_input});
  }
  if (args.a_sums)
    table.column_sum(stream, {.x = args.product.a, .y = args.a_sums, .accumulate = args.accumulate_sums});
}

void fused_matmul(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args) {
  if (stream.device.kind == core::DeviceKind::cuda && cuda_fused_matmul(stream, args)) return;
  const MatmulArgs& p = args.product;
  const bool activates = args.pre_activation || args.activation_input || args.slope || args.slope_input;
  const bool is_plain = !args.gated && !args.a_sums && !p.addend && !p.accumulate && !p.group_offsets && p.batch == 1;
  if (table.matmul_activation && activates && is_plain) return table.matmul_activation(stream, args);
  matmul_in_parts(table, stream, args);
}

void rotated_matmul(const KernelTable& table, Stream& stream, const RotatedMatmulArgs& args) {
  if (stream.device.kind == core::DeviceKind::cuda && cuda_rotated_matmul(stream, args)) return;
  table.matmul(stream, args.product);
  table.rope(stream, args.rope);
}

void linear_cross_entropy_in_parts(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args) {
  const int64_t R = args.x.rows(), chunk = args.logits.rows();
  bool accumulate = args.accumulate;
  for (int64_t begin = 0; begin < R; begin += chunk) {
    const int64_t rows = std::min(chunk, R - begin);
    Tensor x = args.x.slice(begin, rows), logits = args.logits.slice(0, rows);
    table.matmul(stream, {.a = x, .b = args.weight, .c = logits, .transpose_b = true});
    table.cross_entropy(stream, {.logits = logits,
                                 .targets = args.targets.slice(begin, rows),
                                 .losses = args.losses.slice(begin, rows),
                                 .scale = args.scale,
                                 .write_gradient = static_cast<bool>(args.dx)});
    if (!args.dx) continue;
    table.matmul(stream, {.a = logits, .b = args.weight, .c = args.dx.slice(begin, rows)});
    if (!args.dweight) continue;
    table.matmul(stream, {.a = logits,
                          .b = {.data = x},
                          .c = args.dweight,
                          .transpose_a = true,
                          .accumulate = accumulate,
                          .c_squares = args.dweight_squares});
    accumulate = true;
  }
}

void linear_cross_entropy(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args) {
  if (stream.device.kind == core::DeviceKind::cuda && cuda_linear_cross_entropy(stream, args)) return;
  linear_cross_entropy_in_parts(table, stream, args);
}

}  // namespace sinter::kernels
