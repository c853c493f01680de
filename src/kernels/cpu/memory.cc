// Kernels bound by memory alone: fill, axpby (and casts), column sums, sums of squares, cache writes.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/kv_format.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#include "kernels/reference/reference.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/memory.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kPiece = 32768;  // elements handed to a thread at a time

template <class X, class Y>
void axpby_elements(const AxpbyArgs& args) {
  Floats alpha = set(args.alpha), beta = set(args.beta);
  bool reads_y = args.beta != 0;  // beta 0 overwrites whatever y holds, NaN too
  base::parallel_for(args.y.num_elements(), kPiece, [&](int64_t begin, int64_t end) {
    const X* x = args.x.data<X>() + begin;
    Y* y = args.y.data<Y>() + begin;
    size_t count = static_cast<size_t>(end - begin);
    if (reads_y) {
      for_vectors(count, [&](size_t i, size_t n) HWY_ATTR {
        store_n(hn::MulAdd(alpha, load_n(x + i, n), hn::Mul(beta, load_n(y + i, n))), y + i, n);
      });
    } else {
      for_vectors(count,
                  [&](size_t i, size_t n) HWY_ATTR { store_exactly_n(hn::Mul(alpha, load_n(x + i, n)), y + i, n); });
    }
  });
}

void axpby_any(const AxpbyArgs& args) {
  with_format(args.x.dtype(), "axpby", [&]<class X>(X) {
    with_format(args.y.dtype(), "axpby", [&]<class Y>(Y) { axpby_elements<X, Y>(args); });
  });
}

// Each lane's chain of float additions stays short, whatever the width of the vectors: small squares beside a large sum
// would be lost in a long one. Doubles take the chains' sums.
template <class T>
double sum_squares_of(const T* x, size_t count) {
  constexpr size_t kChain = 256, kBlock = 4 * kLanes * kChain;
  double total = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(begin + kBlock, count);
    Floats sum[4] = {zero(), zero(), zero(), zero()};
    size_t i = begin;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      for (size_t j = 0; j < 4; ++j) {
        Floats v = load(x + i + j * kLanes);
        sum[j] = hn::MulAdd(v, v, sum[j]);
      }
    }
    for (; i < end; i += kLanes) {
      Floats v = load_n(x + i, std::min(kLanes, end - i));
      sum[0] = hn::MulAdd(v, v, sum[0]);
    }
    total += sum_lanes(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
  }
  return total;
}

// parts[i] = sum of squares of chunk i.
void sum_squares_any(const Tensor& x, int64_t chunk, double* parts) {
  with_format(x.dtype(), "sum_squares", [&]<class T>(T) {
    base::parallel_for(x.num_elements(), chunk, [&](int64_t begin, int64_t end) {
      parts[begin / chunk] = sum_squares_of(x.data<T>() + begin, static_cast<size_t>(end - begin));
    });
  });
}

// parts (count, N): sums of each part's rows.
void column_sum_any(const Tensor& x, const RowParts& cut, float* parts) {
  with_format(x.dtype(), "column_sum", [&]<class T>(T) {
    size_t columns = static_cast<size_t>(x.size(-1));
    base::parallel_for(cut.count, 1, [&](int64_t part, int64_t) {
      float* sum = parts + static_cast<size_t>(part) * columns;
      std::fill(sum, sum + columns, 0.0f);
      for (int64_t r = cut.begin(part); r < cut.end(part); ++r) {
        const T* row = x.data<T>() + static_cast<size_t>(r) * columns;
        for_vectors(columns, [&](size_t i, size_t n)
                                 HWY_ATTR { store_n(hn::Add(load_n(sum + i, n), load_n(row + i, n)), sum + i, n); });
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(axpby_any);
HWY_EXPORT(sum_squares_any);
HWY_EXPORT(column_sum_any);

namespace {
thread_local AlignedBuffer t_parts;
}

void fill(Stream& stream, const FillArgs& args) {
  const Tensor& y = args.y;
  const float value = args.value;
  if (y.dtype() == base::DType::i32 || y.dtype() == base::DType::f64) return reference::fill(stream, args);
  with_format(y.dtype(), "fill", [&]<class T>(T) {
    base::parallel_for(y.num_elements(), 65536, [&](int64_t begin, int64_t end) {
      std::fill(y.data<T>() + begin, y.data<T>() + end, static_cast<T>(value));
    });
  });
}

void axpby(Stream& stream, const AxpbyArgs& args) {
  if (args.x.dtype() == base::DType::f64 || args.y.dtype() == base::DType::f64) return reference::axpby(stream, args);
  HWY_DYNAMIC_DISPATCH(axpby_any)(args);
}

void sum_squares(Stream&, const SumSquaresArgs& args) {
  constexpr int64_t kChunk = 16384;
  std::vector<double> parts(static_cast<size_t>((args.x.num_elements() + kChunk - 1) / kChunk));
  HWY_DYNAMIC_DISPATCH(sum_squares_any)(args.x, kChunk, parts.data());
  double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  float& total = args.total.data<float>()[0];
  total = static_cast<float>(total + sum);
}

void column_sum(Stream&, const ColumnSumArgs& args) {
  int64_t columns = args.x.size(-1);
  RowParts cut(args.x.rows());
  float* parts = t_parts.reserve_array<float>(cut.count * columns);
  HWY_DYNAMIC_DISPATCH(column_sum_any)(args.x, cut, parts);
  float* y = args.y.data<float>();
  if (!args.accumulate) std::fill(y, y + columns, 0.0f);
  add_parts(parts, cut.count, columns, y);
}

void add_parts(const float* parts, int64_t count, int64_t width, float* y) {
  base::parallel_for(width, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t p = 0; p < count; ++p) {
      const float* part = parts + p * width;
      for (int64_t n = begin; n < end; ++n) y[n] += part[n];
    }
  });
}

namespace {

// Into a cache of another format than the rows have.
void kv_write_coded(const KvWriteArgs& args) {
  const KvLayer& cache = args.cache;
  const base::DType from = args.qkv.dtype(), format = cache.keys.dtype();
  const int64_t H = args.num_heads, K = args.num_kv_heads, D = args.head_dim;
  const auto from_bytes = static_cast<int64_t>(base::dtype_bytes(from)),
             to_bytes = static_cast<int64_t>(base::dtype_bytes(format));
  for_each_row(args.qkv.size(0), 2 * K * D, [&](int64_t t) {
    const int64_t slot = args.slots.data<int32_t>()[t];
    if (slot < 0) return;
    static thread_local std::vector<float> t_row;
    t_row.resize(static_cast<size_t>(D));
    auto put = [&](int64_t head, int64_t h, const Tensor& to, const Tensor& scales) {
      const char* row = args.qkv.data<char>() + (t * (H + 2 * K) + head) * D * from_bytes;
      base::convert_elements(from, row, base::DType::f32, t_row.data(), t_row.size());
      core::encode_kv_row(format, t_row.data(), D, scales ? scales.data<float>()[h] : 1.0f,
                          to.data<char>() + cache.offset(slot, h) * to_bytes);
    };
    for (int64_t h = 0; h < K; ++h) {
      put(H + h, h, cache.keys, cache.key_scales);
      put(H + K + h, h, cache.values, cache.value_scales);
    }
  });
}

}  // namespace

void kv_write(Stream&, const KvWriteArgs& args) {
  int64_t width = (args.num_heads + 2 * args.num_kv_heads) * args.head_dim;
  size_t element = base::dtype_bytes(args.qkv.dtype());
  const KvLayer& cache = args.cache;
  if (cache.keys.dtype() != args.qkv.dtype()) return kv_write_coded(args);
  const auto head_bytes = static_cast<size_t>(args.head_dim) * element;
  for_each_row(args.qkv.size(0), 2 * args.num_kv_heads * args.head_dim, [&](int64_t t) {
    int64_t slot = args.slots.data<int32_t>()[t];
    if (slot < 0) return;
    const char* k = args.qkv.data<char>() + static_cast<size_t>(t * width + args.num_heads * args.head_dim) * element;
    const char* v = k + static_cast<size_t>(args.num_kv_heads) * head_bytes;
    for (int64_t h = 0; h < args.num_kv_heads; ++h, k += head_bytes, v += head_bytes) {
      const size_t offset = static_cast<size_t>(cache.offset(slot, h)) * element;
      std::memcpy(cache.keys.data<char>() + offset, k, head_bytes);
      std::memcpy(cache.values.data<char>() + offset, v, head_bytes);
    }
  });
}

}  // namespace sinter::kernels::cpu
#endif
