#include "kernels/fused.h"

#include <algorithm>
#include <vector>

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
  if (table.fused_matmul && table.fused_matmul(stream, args)) return;
  matmul_in_parts(table, stream, args);
}

void rotated_matmul(const KernelTable& table, Stream& stream, const RotatedMatmulArgs& args) {
  if (table.rotated_matmul && table.rotated_matmul(stream, args)) return;
  table.matmul(stream, args.product);
  table.rope(stream, args.rope);
}

void rotated_attention_backward(const KernelTable& table, Stream& stream, const RotatedAttentionBackwardArgs& args) {
  if (args.cos_sin && table.rotated_attention_backward && table.rotated_attention_backward(stream, args)) return;
  table.attention_backward(stream, args.attention);
  if (!args.cos_sin) return;
  const AttentionShape& shape = args.attention.shape;
  table.rope(stream, {.num_rotated = shape.num_heads + shape.num_kv_heads,
                      .head_dim = shape.head_dim,
                      .x = args.attention.dqkv,
                      .cos_sin = args.cos_sin,
                      .inverse = true});
}

namespace {

// Columns [first, first + count) of a head's logits as a dense matrix, and the rows of the weight that make them.
struct HeadPart {
  Tensor logits;      // (rows of a chunk, count)
  WeightView weight;  // (count, C)
  Tensor dweight;     // (count, C), or empty
};

HeadPart part_of_head(const LinearCrossEntropyArgs& args, int64_t first, int64_t count) {
  const int64_t rows = args.logits.rows(), V = args.logits.size(-1);
  HeadPart part{
      args.logits.reshape({rows * V}).slice(rows * first, rows * count).reshape({rows, count}), args.weight, {}};
  part.weight.data = args.weight.data.slice(first, count);
  part.weight.derived = nullptr;  // there is one for the whole
  if (args.dweight) part.dweight = args.dweight.slice(first, count);
  return part;
}

// Products are fast where rows are whole cache lines (with 50,257 columns those of cuBLASLt on an H200 take four to
// seven times as long as with 50,304), so what is left over of a vocabulary is a small part of its own.
std::vector<HeadPart> parts_of_head(const LinearCrossEntropyArgs& args) {
  constexpr int64_t kLine = CrossEntropyArgs::kMostApart, kLarge = 1024;
  const int64_t V = args.logits.size(-1), apart = V % kLine;
  const bool is_split = apart > 0 && V >= kLarge && args.weight.is_plain();
  if (!is_split) return {{args.logits, args.weight, args.dweight}};
  return {part_of_head(args, 0, V - apart), part_of_head(args, V - apart, apart)};
}

// dweight += logits^T x of every part; the squares of dweight are the sum of the parts'.
void add_weight_gradients(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args,
                          const std::vector<HeadPart>& parts, const Tensor& x, bool accumulate) {
  float squares = 0;  // writes_square_sums is said of tables that run on the host
  for (size_t i = 0; i < parts.size(); ++i) {
    Tensor part_squares = args.dweight_squares;
    if (part_squares && i > 0) part_squares = Tensor::view_of(&squares, {1}, base::DType::f32, part_squares.device());
    table.matmul(stream, {.a = parts[i].logits.slice(0, x.rows()),
                          .b = {.data = x},
                          .c = parts[i].dweight,
                          .transpose_a = true,
                          .accumulate = accumulate,
                          .c_squares = part_squares});
    if (part_squares && i > 0)
      table.axpby(stream, {.x = part_squares, .y = args.dweight_squares, .alpha = 1.0f, .beta = 1.0f});
  }
}

}  // namespace

void linear_cross_entropy_in_parts(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args) {
  const int64_t R = args.x.rows(), chunk = args.logits.rows();
  const std::vector<HeadPart> parts = parts_of_head(args);
  bool accumulate = args.accumulate;
  for (int64_t begin = 0; begin < R; begin += chunk) {
    const int64_t rows = std::min(chunk, R - begin);
    Tensor x = args.x.slice(begin, rows);
    for (const HeadPart& part : parts)
      table.matmul(stream, {.a = x, .b = part.weight, .c = part.logits.slice(0, rows), .transpose_b = true});
    table.cross_entropy(stream, {.logits = parts[0].logits.slice(0, rows),
                                 .targets = args.targets.slice(begin, rows),
                                 .losses = args.losses.slice(begin, rows),
                                 .scale = args.scale,
                                 .write_gradient = static_cast<bool>(args.dx),
                                 .last_logits = parts.size() > 1 ? parts[1].logits.slice(0, rows) : Tensor(),
                                 .weights = args.weights ? args.weights.slice(begin, rows) : Tensor()});
    if (!args.dx) continue;
    // The small part first: what rounding it costs is small too.
    for (size_t i = parts.size(); i-- > 0;) {
      table.matmul(stream, {.a = parts[i].logits.slice(0, rows),
                            .b = parts[i].weight,
                            .c = args.dx.slice(begin, rows),
                            .accumulate = i + 1 < parts.size()});
    }
    if (!args.dweight) continue;
    add_weight_gradients(table, stream, args, parts, x, accumulate);
    accumulate = true;
  }
}

void linear_cross_entropy(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args) {
  if (table.linear_cross_entropy && args.weight.is_plain() && table.linear_cross_entropy(stream, args)) return;
  linear_cross_entropy_in_parts(table, stream, args);
}

}  // namespace sinter::kernels
