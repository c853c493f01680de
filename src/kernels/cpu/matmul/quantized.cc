#include "kernels/cpu/matmul/quantized.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul/derived_parts.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/quantized/integer_product.h"

namespace sinter::kernels::cpu {
namespace {

// Memory for a piece of a weight as plain numbers.
Tensor room_for(int64_t rows, int64_t columns, const MatmulArgs& args) {
  static thread_local AlignedBuffer t_room;
  const auto bytes = static_cast<size_t>(rows * columns) * base::dtype_bytes(args.a.dtype());
  return Tensor::view_of(t_room.reserve(std::max<size_t>(1, bytes)), {rows, columns}, args.a.dtype(), args.c.device());
}

// c = a W^T, some rows of W at a time: they are columns of c.
void multiply_in_strips(Stream& stream, const MatmulArgs& args, int64_t expert) {
  constexpr int64_t kStripElements = 1 << 20;
  const int64_t N = args.b.rows(), K = args.b.columns();
  const int64_t step =
      std::clamp<int64_t>(kStripElements / std::max<int64_t>(1, K) / 64 * 64, 64, std::max<int64_t>(64, N));
  for (int64_t first = 0; first < N; first += step) {
    const int64_t rows = std::min(step, N - first);
    const Tensor strip = room_for(rows, K, args);
    dequantize(stream, {.weight = args.b, .expert = expert, .first_row = first, .y = strip});
    MatmulArgs part = args;
    part.b = {.data = strip};
    part.c_first_column = args.c_first_column + first;
    part.c_columns = rows;
    if (args.bias) part.bias = args.bias.slice(first, rows);
    matmul(stream, part);
  }
}

// Whether all parts hold plain numbers in the format of the product: they are multiplied by as they lie.
bool is_in_place(const MatmulArgs& args) {
  const core::WeightBlocks& weight = *args.b.blocks;
  return args.transpose_b && weight.experts == 1 &&
         std::all_of(weight.parts.begin(), weight.parts.end(), [&](const core::WeightPart& part) {
           return part.format == base::WeightFormat::plain && part.data.dtype() == args.a.dtype() &&
                  part.global_scale == 1.0f;
         });
}

// c = a W^T, a part's rows at a time.
void multiply_parts(Stream& stream, const MatmulArgs& args) {
  const core::WeightBlocks& weight = *args.b.blocks;
  DerivedParts* derived = derived_parts(args.b);
  int64_t first = 0;
  for (size_t i = 0; i < weight.parts.size(); ++i) {
    const core::WeightPart& part = weight.parts[i];
    MatmulArgs one = args;
    one.b = {.data = part.data.reshape({part.rows, weight.columns}),
             .version = args.b.version,
             .derived = derived ? &derived->parts[i] : nullptr};
    if (weight.parts.size() > 1) {
      one.c_first_column = args.c_first_column + first;
      one.c_columns = part.rows;
      if (args.bias) one.bias = args.bias.slice(first, part.rows);
    }
    matmul(stream, one);
    first += part.rows;
  }
}

// c = a W: the sum runs over the rows of W, so all of them are needed at once.
void multiply_whole(Stream& stream, const MatmulArgs& args, int64_t expert) {
  const Tensor all = room_for(args.b.rows(), args.b.columns(), args);
  dequantize(stream, {.weight = args.b, .expert = expert, .y = all});
  MatmulArgs plain = args;
  plain.b = {.data = all};
  matmul(stream, plain);
}

void multiply_expert(Stream& stream, const MatmulArgs& args, int64_t expert) {
  if (is_integer_product(args)) return integer_matmul(args, expert);
  if (is_in_place(args)) return multiply_parts(stream, args);
  args.transpose_b ? multiply_in_strips(stream, args, expert) : multiply_whole(stream, args, expert);
}

}  // namespace

void quantized_matmul(Stream& stream, const MatmulArgs& args) {
  SINTER_CHECK(!args.transpose_a && args.batch == 1,
               "[matmul] a weight in {} as the second factor of a gradient or of a batch; expected a layer's product",
               args.b.format_name());
  const int64_t N = args.transpose_b ? args.b.rows() : args.b.columns(), K = args.a.size(-1);
  SINTER_CHECK(columns_of(args) == N && (args.transpose_b ? args.b.columns() : args.b.rows()) == K,
               "[matmul] a {} times a weight ({}, {}) in {} does not give c {}", args.a.shape().to_string(),
               args.b.rows(), args.b.columns(), args.b.format_name(), args.c.shape().to_string());
  if (!args.group_offsets) return multiply_expert(stream, args, 0);
  const int32_t* offsets = args.group_offsets.data<int32_t>();
  for (int64_t e = 0; e < args.b.experts(); ++e) {
    const int64_t first = offsets[e], rows = offsets[e + 1] - first;
    if (rows == 0) continue;
    MatmulArgs one = args;
    one.group_offsets = {};
    one.a = args.a.slice(first, rows);
    one.c = args.c.slice(first, rows);
    multiply_expert(stream, one, e);
  }
}

}  // namespace sinter::kernels::cpu
