// A head and its loss without a pass over the logits: their product writes the softmax's terms (softmax_rows.h), and
// the rows' factors go into x before dW = terms^T x and into the product dx = terms W after it. What the targets add to
// dW is scattered at the end, for all rows at once.
#include <algorithm>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul/fused_matmul.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/sm90/sm90.h"
#include "kernels/cuda/softmax_rows.h"

namespace sinter::kernels::cuda {
namespace {

// One chunk of rows and its scratch memory.
struct Chunk {
  SoftmaxTerms terms;
  SoftmaxRows rows;
  SoftmaxInputGradient input;
};

// Scratch memory for chunks of args.logits.rows() rows (no attention runs meanwhile). Only the targets' factors are
// kept from chunk to chunk.
class Chunks {
 public:
  Chunks(Stream& stream, const LinearCrossEntropyArgs& args) : args_(args), device_(stream.device) {
    const int64_t chunk = args.logits.rows(), C = args.x.size(-1), V = args.weight.data.size(0);
    const int64_t tiles = (V + sm90_softmax_tile() - 1) / sm90_softmax_tile();
    const base::Shape shapes[] = {{args.x.rows()}, {chunk}, {chunk}, {tiles, chunk}, {args.dx ? chunk : 0, C}};
    size_t bytes = 0;
    for (const base::Shape& shape : shapes) bytes += bytes_of(shape);
    auto* next = static_cast<char*>(scratch(stream, Scratch::attention, bytes));
    Tensor* tensors[] = {&target_factors, &shifts_, &factors_, &sums_, &product_};
    for (int i = 0; i < 5; ++i) {
      *tensors[i] = Tensor::view_of(next, shapes[i], base::DType::f32, device_);
      next += bytes_of(shapes[i]);
    }
  }

  Chunk at(int64_t begin) const {
    const int64_t rows = std::min(args_.logits.rows(), args_.x.rows() - begin);
    Tensor x = args_.x.slice(begin, rows), targets = args_.targets.slice(begin, rows),
           factors = factors_.slice(0, rows), here = target_factors.slice(begin, rows);
    Tensor sums = Tensor::view_of(sums_.raw(), {sums_.size(0), rows}, base::DType::f32, device_);
    Tensor dx = args_.dx ? args_.dx.slice(begin, rows) : Tensor();
    Chunk chunk;
    chunk.terms = {x, args_.weight.data, targets, shifts_.slice(0, rows), args_.logits.slice(0, rows), sums};
    // dx keeps x times its factors until it gets its own values.
    chunk.rows = {sums,        args_.losses.slice(begin, rows),
                  args_.scale, factors,
                  here,        x,
                  dx,          args_.weights ? args_.weights.slice(begin, rows) : Tensor()};
    if (dx) chunk.input = {product_.slice(0, rows), args_.weight.data, targets, factors, here, dx};
    return chunk;
  }

  Tensor target_factors;  // (R) f32

 private:
  static size_t bytes_of(const base::Shape& shape) {
    return (static_cast<size_t>(shape.num_elements()) * sizeof(float) + 255) / 256 * 256;
  }
  const LinearCrossEntropyArgs& args_;
  core::Device device_;
  Tensor shifts_, factors_;  // (chunk) f32
  Tensor sums_;              // (tiles, chunk) f32
  Tensor product_;           // (chunk, C) f32
};

void run_softmax(Stream& stream, const Chunk& chunk) {
  target_shifts(stream, chunk.terms);
  sm90_softmax_product(stream, chunk.terms);
  finish_softmax(stream, chunk.rows);
}

// Measured on the first chunk, without what both ways have in common. Its results are overwritten later.
bool is_faster(Stream& stream, const LinearCrossEntropyArgs& args, const Chunk& chunk) {
  const Tensor &x = chunk.terms.x, &terms = chunk.terms.terms;
  auto fused = [&] {
    run_softmax(stream, chunk);
    if (args.dx) finish_input_gradient(stream, chunk.input);
  };
  auto parts = [&] {
    matmul(stream, {.a = x, .b = args.weight, .c = terms, .transpose_b = true});
    cross_entropy(stream, {.logits = terms,
                           .targets = chunk.terms.targets,
                           .losses = chunk.rows.losses,
                           .scale = args.scale,
                           .write_gradient = static_cast<bool>(args.dx)});
  };
  const FusedKey key = fused_key(stream, x.rows(), terms.size(-1), x.size(-1), FusedKind::cross_entropy, false);
  return is_fused_faster(stream, key, fused, parts);
}

}  // namespace

bool linear_cross_entropy(Stream& stream, const LinearCrossEntropyArgs& args) {
  if (options().fuse == Fuse::none || !sm90_takes_softmax(stream, args)) return false;
  const Chunks chunks(stream, args);
  if (!is_faster(stream, args, chunks.at(0))) return false;
  const KernelTable& table = *cuda_table();
  bool accumulate = args.accumulate;
  for (int64_t begin = 0; begin < args.x.rows(); begin += args.logits.rows()) {
    const Chunk chunk = chunks.at(begin);
    const Tensor& terms = chunk.terms.terms;
    trace_call("softmax product", stream, [&] { run_softmax(stream, chunk); });
    if (!args.dx) continue;
    if (args.dweight) {
      table.matmul(stream, {.a = terms,
                            .b = {.data = chunk.rows.scaled_x},
                            .c = args.dweight,
                            .transpose_a = true,
                            .accumulate = accumulate});
      accumulate = true;
    }
    table.matmul(stream, {.a = terms, .b = args.weight, .c = chunk.input.product});
    trace_call("softmax input gradient", stream, [&] { finish_input_gradient(stream, chunk.input); });
  }
  if (args.dweight) {
    trace_call("softmax targets", stream,
               [&] { add_weighted_rows(stream, args.targets, args.x, chunks.target_factors, args.dweight); });
  }
  return true;
}

}  // namespace sinter::kernels::cuda
