// What low-rank adapters need: ranges of columns, sums of products of columns, norms of rows, and AdamW with 8-bit
// states.
#include <cmath>

#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class X, class Y>
__global__ void copy_columns_kernel(const X* x, Y* y, int64_t rows, int64_t columns, int64_t from, int64_t to,
                                    const float* factors, const float* divisors, bool accumulate) {
  const int64_t count = rows * columns, stride = int64_t{gridDim.x} * kThreads;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += stride) {
    const int64_t r = i / columns, j = i - r * columns;
    float value = to_float(x[r * from + j]);
    if (factors) value *= factors[j];
    if (divisors) value /= divisors[j];
    Y* place = y + r * to + j;
    *place = from_float<Y>(accumulate ? to_float(*place) + value : value);
  }
}

// A block takes 32 columns, its rows in an order fixed by their number.
template <class A, class B>
__global__ void __launch_bounds__(1024)
    column_dot_kernel(const A* a, const B* b, int64_t rows, int64_t columns, int64_t a_width, int64_t b_width, float* y,
                      const float* divisors, bool accumulate) {
  __shared__ float sums[32][33];
  const int64_t j = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (j < columns) {
    for (int64_t r = threadIdx.y; r < rows; r += 32) sum += to_float(a[r * a_width + j]) * to_float(b[r * b_width + j]);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= columns) return;
  sum = 0;
  for (int i = 0; i < 32; ++i) sum += sums[i][threadIdx.x];
  if (divisors) sum /= divisors[j];
  y[j] = accumulate ? y[j] + sum : sum;
}

template <class X>
__global__ void __launch_bounds__(kThreads) row_norm_kernel(const X* x, float* y, int64_t columns) {
  __shared__ float shared[kThreads / 32];
  const X* row = x + int64_t{blockIdx.x} * columns;
  float sum = 0;
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    const float value = to_float(row[c]);
    sum += value * value;
  }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) y[blockIdx.x] = sqrtf(sum);
}

__device__ float block_max(float x, float* shared) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < kThreads / 32 ? shared[threadIdx.x % 32] : 0.0f;
  return warp_max(x);
}

// The nearest of the map's rising values; halfway between two the lower.
__device__ uint8_t nearest_code(const float* map, float x) {
  int low = 0, high = 255;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (x > (map[middle] + map[middle + 1]) / 2) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<uint8_t>(low);
}

struct Adamw8bitParams {
  float* master;
  uint8_t *m, *v;
  float *m_scales, *v_scales;
  const float *m_map, *v_map, *control;
  int64_t count;
  float lr, beta1, beta2, eps, weight_decay, factor1, factor2;
  bool has_corrections;
};

// A thread an element, a block a block of the states.
template <class G, class C>
__global__ void __launch_bounds__(kThreads) adamw_8bit_kernel(Adamw8bitParams p, const G* grad, C* copy) {
  static_assert(Adamw8bitArgs::kBlock == kThreads);
  __shared__ float m_map[256], v_map[256], m_shared[kThreads / 32], v_shared[kThreads / 32];
  if (p.control[1] == 0) return;
  m_map[threadIdx.x] = p.m_map[threadIdx.x];
  v_map[threadIdx.x] = p.v_map[threadIdx.x];
  const float factor1 = p.has_corrections ? p.control[kControlCorrection1] : p.factor1;
  const float factor2 = p.has_corrections ? p.control[kControlCorrection2] : p.factor2;
  __syncthreads();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float m = 0, v = 0;
  if (i < p.count) {
    const float g = to_float(grad[i]) * p.control[0];
    m = p.beta1 * (m_map[p.m[i]] * p.m_scales[blockIdx.x]) + (1.0f - p.beta1) * g;
    v = p.beta2 * (v_map[p.v[i]] * p.v_scales[blockIdx.x]) + (1.0f - p.beta2) * g * g;
    const float update = m * factor1 / (sqrtf(v) * factor2 + p.eps), weight = p.master[i];
    const float next = weight - p.lr * (update + p.weight_decay * weight);
    p.master[i] = next;
    if (copy) copy[i] = from_float<C>(next);
  }
  const float m_scale = block_max(fabsf(m), m_shared), v_scale = block_max(v, v_shared);
  __syncthreads();  // all have read the scales
  if (threadIdx.x == 0) {
    p.m_scales[blockIdx.x] = m_scale;
    p.v_scales[blockIdx.x] = v_scale;
  }
  if (i >= p.count) return;
  p.m[i] = nearest_code(m_map, fminf(fmaxf(m * (1.0f / fmaxf(m_scale, 1e-38f)), -1.0f), 1.0f));
  p.v[i] = nearest_code(v_map, fminf(v * (1.0f / fmaxf(v_scale, 1e-38f)), 1.0f));
}

}  // namespace

void adamw_8bit(Stream& stream, const Adamw8bitArgs& args) {
  const int64_t count = args.master.num_elements();
  if (count == 0) return;
  const Adamw8bitParams p{
      args.master.data<float>(),
      args.m.data<uint8_t>(),
      args.v.data<uint8_t>(),
      args.m_scales.data<float>(),
      args.v_scales.data<float>(),
      args.m_map.data<float>(),
      args.v_map.data<float>(),
      args.control.data<float>(),
      count,
      args.lr,
      args.beta1,
      args.beta2,
      args.eps,
      args.weight_decay,
      static_cast<float>(1.0 / (1.0 - std::pow(static_cast<double>(args.beta1), args.step))),
      static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(args.beta2), args.step))),
      args.control.num_elements() == kControlSize};
  dispatch_format(args.grad.dtype(), "adamw_8bit", [&]<class G>(TypeTag<G>) {
    dispatch_format(args.copy ? args.copy.dtype() : base::DType::f32, "adamw_8bit", [&]<class C>(TypeTag<C>) {
      adamw_8bit_kernel<G, C><<<static_cast<unsigned>(div_up(count, kThreads)), kThreads, 0, native(stream)>>>(
          p, args.grad.data<G>(), args.copy.data<C>());
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void copy_columns(Stream& stream, const CopyColumnsArgs& args) {
  const int64_t rows = args.x.rows();
  if (rows == 0 || args.columns == 0) return;
  dispatch_format(args.x.dtype(), "copy_columns", [&]<class X>(TypeTag<X>) {
    dispatch_format(args.y.dtype(), "copy_columns", [&]<class Y>(TypeTag<Y>) {
      copy_columns_kernel<X, Y><<<grid_for(stream, rows * args.columns, kThreads), kThreads, 0, native(stream)>>>(
          args.x.data<X>() + args.x_first, args.y.data<Y>() + args.y_first, rows, args.columns, args.x.size(-1),
          args.y.size(-1), args.factors.data<float>(), args.divisors.data<float>(), args.accumulate);
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void column_dot(Stream& stream, const ColumnDotArgs& args) {
  const int64_t columns = args.y.num_elements();
  if (columns == 0) return;
  dispatch_format(args.a.dtype(), "column_dot", [&]<class A>(TypeTag<A>) {
    dispatch_format(args.b.dtype(), "column_dot", [&]<class B>(TypeTag<B>) {
      column_dot_kernel<A, B><<<static_cast<unsigned>(div_up(columns, 32)), dim3(32, 32), 0, native(stream)>>>(
          args.a.data<A>() + args.a_first, args.b.data<B>() + args.b_first, args.a.rows(), columns, args.a.size(-1),
          args.b.size(-1), args.y.data<float>(), args.divisors.data<float>(), args.accumulate);
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void row_norm(Stream& stream, const RowNormArgs& args) {
  if (args.x.rows() == 0) return;
  dispatch_format(args.x.dtype(), "row_norm", [&]<class X>(TypeTag<X>) {
    row_norm_kernel<X><<<static_cast<unsigned>(args.x.rows()), kThreads, 0, native(stream)>>>(
        args.x.data<X>(), args.y.data<float>(), args.x.size(-1));
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
