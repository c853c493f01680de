// Kernels that only move or scale: fill, axpby, kv_write, column sums, dropout.
#include <limits>
#include <utility>
#include <vector>

#include "core/kv_format.h"
#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void fill(Stream&, const FillArgs& args) {
  const Tensor& y = args.y;
  const float value = args.value;
  if (y.dtype() == base::DType::i32) {
    for (int64_t i = 0; i < y.num_elements(); ++i) y.data<int32_t>()[i] = static_cast<int32_t>(value);
    return;
  }
  FloatView out(y);
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, value);
}

void axpby(Stream&, const AxpbyArgs& args) {
  FloatView x(args.x), y(args.y);
  for (int64_t i = 0; i < y.size(); ++i) {
    // beta 0 overwrites, so that y may hold anything, NaN too
    y.set(i, args.alpha * x[i] + (args.beta == 0 ? 0.0 : args.beta * y[i]));
  }
}

void column_sum(Stream&, const ColumnSumArgs& args) {
  FloatView x(args.x), y(args.y);
  int64_t rows = args.x.rows(), columns = y.size();
  std::vector<double> sum(static_cast<size_t>(columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; ++n) sum[n] += x[r * columns + n];
  }
  for (int64_t n = 0; n < columns; ++n) y.set(n, args.accumulate ? y[n] + sum[n] : sum[n]);
}

void kv_write(Stream&, const KvWriteArgs& args) {
  int64_t tokens = args.qkv.size(0);
  int64_t width = (args.num_heads + 2 * args.num_kv_heads) * args.head_dim;
  const KvLayer& cache = args.cache;
  FloatView qkv(args.qkv);
  auto numbers = [&](const Tensor& t) {  // the cache whole, whatever its strides
    if (core::has_row_scales(t.dtype())) return FloatView(Tensor());
    return FloatView(Tensor::view_of(t.raw(), {std::numeric_limits<int64_t>::max() / 8}, t.dtype(), t.device()));
  };
  FloatView keys = numbers(cache.keys), values = numbers(cache.values);
  const base::DType format = cache.keys.dtype();
  for (int64_t t = 0; t < tokens; ++t) {
    int64_t slot = args.slots.data<int32_t>()[t];
    if (slot < 0) continue;
    for (int64_t h = 0; h < args.num_kv_heads; ++h) {
      double key_scale = cache.key_scales ? cache.key_scales.data<float>()[h] : 1.0f;
      double value_scale = cache.value_scales ? cache.value_scales.data<float>()[h] : 1.0f;
      int64_t k = t * width + (args.num_heads + h) * args.head_dim, v = k + args.num_kv_heads * args.head_dim;
      if (core::has_row_scales(format)) {
        std::vector<float> row(static_cast<size_t>(args.head_dim));
        for (const auto& [from, to] : {std::pair{k, &cache.keys}, std::pair{v, &cache.values}}) {
          for (int64_t d = 0; d < args.head_dim; ++d) row[static_cast<size_t>(d)] = static_cast<float>(qkv[from + d]);
          core::encode_kv_row(format, row.data(), args.head_dim, 1.0f, to->data<uint8_t>() + cache.offset(slot, h));
        }
        continue;
      }
      for (int64_t d = 0; d < args.head_dim; ++d) {
        keys.set(cache.offset(slot, h) + d, qkv[k + d] / key_scale);
        values.set(cache.offset(slot, h) + d, qkv[v + d] / value_scale);
      }
    }
  }
}

void dropout(Stream&, const DropoutArgs& args) {
  FloatView x(args.x), y(args.y);
  base::CounterRng rng = rng_of(args.key);
  for (int64_t i = 0; i < y.size(); ++i) {
    bool keep = rng.uniform(args.first_index + static_cast<uint64_t>(i)) >= args.p;
    y.set(i, keep ? x[i] / (1.0 - args.p) : 0.0);
  }
}

}  // namespace sinter::kernels::reference
