// AdamW, SGD and what Muon does before its products, over flat ranges, one launch each; what to do (gradient factor,
// skip, bias corrections) is read on the device.
#include <cmath>

#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Rounds to bf16 up or down, up with the probability of the part cut off: adds 16 random bits, then truncates.
__device__ __forceinline__ bfloat16 round_stochastic(float value, uint32_t random16) {
  uint32_t u = __float_as_uint(value);
  if ((u & 0x7f800000u) != 0x7f800000u) u += random16;
  return __ushort_as_bfloat16(static_cast<unsigned short>(u >> 16));
}
template <class State, int N>
__device__ __forceinline__ void store_state(State* p, const float (&x)[N], const uint32_t (&random16)[N]) {
  Vector<State, N> out;
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if constexpr (sizeof(State) == 2) {
      out.v[j] = round_stochastic(x[j], random16[j]);
    } else {
      out.v[j] = x[j];
    }
  }
  *reinterpret_cast<Vector<State, N>*>(p) = out;
}

struct AdamwScalars {
  float lr, beta1, beta2, eps, weight_decay;
  float correction1, correction2;  // 1 / (1 - beta1^step), 1 / sqrt(1 - beta2^step)
  bool reads_corrections;          // from control instead
  RandomKey key;
};

// No copy is asked for with Copy = void.
template <class Grad, class State, class Copy, int N>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(float* master, const Grad* grad, State* m, State* v, Copy* copy, const float* control, int64_t count,
                 AdamwScalars a) {
  float grad_factor = control[0];
  if (control[1] == 0) return;
  const float correction1 = a.reads_corrections ? control[kControlCorrection1] : a.correction1;
  const float correction2 = a.reads_corrections ? control[kControlCorrection2] : a.correction2;
  int64_t stride = int64_t{gridDim.x} * kThreads * N;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N; i < count; i += stride) {
    float p[N], g[N], first[N], second[N];
    load_floats<float, N>(master + i, p);
    load_floats<Grad, N>(grad + i, g);
    load_floats<State, N>(m + i, first);
    load_floats<State, N>(v + i, second);
    uint32_t high[N] = {}, low[N] = {};
    if constexpr (sizeof(State) == 2) {
      uint4 bits = philox_block(a.key.seed, a.key.stream, static_cast<uint64_t>(i) / 4);  // N is 4 or 1
#pragma unroll
      for (int j = 0; j < N; ++j) {
        uint32_t word = word_of(bits, static_cast<uint32_t>((i + j) % 4));
        high[j] = word >> 16;
        low[j] = word & 0xffffu;
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float d = g[j] * grad_factor;
      first[j] = a.beta1 * first[j] + (1.0f - a.beta1) * d;
      second[j] = a.beta2 * second[j] + (1.0f - a.beta2) * d * d;
      float update = first[j] * correction1 / (sqrtf(second[j]) * correction2 + a.eps);
      p[j] -= a.lr * (update + a.weight_decay * p[j]);
    }
    store_floats<float, N>(master + i, p);
    store_state<State, N>(m + i, first, high);
    store_state<State, N>(v + i, second, low);
    if constexpr (!std::is_void_v<Copy>) store_floats<Copy, N>(copy + i, p);
  }
}

template <class Grad, class Copy, int N>
__global__ void __launch_bounds__(kThreads)
    sgd_kernel(float* master, const Grad* grad, float* velocity, Copy* copy, const float* control, int64_t count,
               float lr, float momentum, float weight_decay) {
  float grad_factor = control[0];
  if (control[1] == 0) return;
  int64_t stride = int64_t{gridDim.x} * kThreads * N;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N; i < count; i += stride) {
    float p[N], g[N], speed[N];
    load_floats<float, N>(master + i, p);
    load_floats<Grad, N>(grad + i, g);
    if (velocity) load_floats<float, N>(velocity + i, speed);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] = g[j] * grad_factor + weight_decay * p[j];
      if (velocity) g[j] += momentum * speed[j];
      p[j] -= lr * g[j];
    }
    if (velocity) store_floats<float, N>(velocity + i, g);
    store_floats<float, N>(master + i, p);
    if constexpr (!std::is_void_v<Copy>) store_floats<Copy, N>(copy + i, p);
  }
}

template <class Grad, class State, class Out, int N>
__global__ void __launch_bounds__(kThreads)
    muon_momentum_kernel(const Grad* grad, State* momentum, Out* direction, const float* control, int64_t count,
                         float mu, RandomKey key) {
  const float grad_factor = control[0];
  if (control[1] == 0) return;
  int64_t stride = int64_t{gridDim.x} * kThreads * N;
  for (int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * N; i < count; i += stride) {
    float g[N], b[N];
    load_floats<Grad, N>(grad + i, g);
    load_floats<State, N>(momentum + i, b);
    uint32_t high[N] = {};
    if constexpr (sizeof(State) == 2) {
      uint4 bits = philox_block(key.seed, key.stream, static_cast<uint64_t>(i) / 4);  // N is 4 or 1
#pragma unroll
      for (int j = 0; j < N; ++j) high[j] = word_of(bits, static_cast<uint32_t>((i + j) % 4)) >> 16;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      g[j] *= grad_factor * (1.0f - mu);
      b[j] = mu * b[j] + g[j];
      g[j] += mu * b[j];
    }
    store_state<State, N>(momentum + i, b, high);
    store_floats<Out, N>(direction + i, g);
  }
}

constexpr int kNormParts = 32, kNormThreads = 512;  // blocks a row

// partials[row][part]: sums of squares of the part's elements.
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) row_squares_kernel(const T* x, int64_t columns, float* partials) {
  __shared__ float shared[kNormThreads / 32];
  const T* row = x + int64_t{blockIdx.y} * columns;
  float sum = 0;
  for (int64_t i = (int64_t{blockIdx.x} * kNormThreads + threadIdx.x) * N; i < columns;
       i += int64_t{kNormParts} * kNormThreads * N) {
    float a[N];
    load_floats<T, N>(row + i, a);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += a[j] * a[j];
  }
  sum = block_sum<kNormThreads>(sum, shared);
  if (threadIdx.x == 0) partials[int64_t{blockIdx.y} * kNormParts + blockIdx.x] = sum;
}

template <class T, int N>
__global__ void __launch_bounds__(kNormThreads)
    scale_rows_kernel(T* x, int64_t columns, const float* partials, float eps) {
  // Every warp adds the parts in the same order, so all blocks of a row find the same norm.
  const float squares = warp_sum(partials[int64_t{blockIdx.y} * kNormParts + threadIdx.x % 32]);
  const float factor = 1.0f / (sqrtf(squares) + eps);
  T* row = x + int64_t{blockIdx.y} * columns;
  for (int64_t i = (int64_t{blockIdx.x} * kNormThreads + threadIdx.x) * N; i < columns;
       i += int64_t{kNormParts} * kNormThreads * N) {
    float a[N];
    load_floats<T, N>(row + i, a);
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] *= factor;
    store_floats<T, N>(row + i, a);
  }
}

template <class Body>
void dispatch_copy(const Tensor& copy, Body&& body) {
  if (!copy) {
    body(TypeTag<void>{});
  } else {
    dispatch_format(copy.dtype(), "optimizer", body);
  }
}
template <class Body>
void dispatch_grad(const Tensor& grad, Body&& body) {
  SINTER_CHECK(grad.dtype() == base::DType::f32 || grad.dtype() == base::DType::bf16,
               "[optimizer] gradients in {}; expected f32 or bf16", base::dtype_name(grad.dtype()));
  grad.dtype() == base::DType::f32 ? body(TypeTag<float>{}) : body(TypeTag<bfloat16>{});
}
// Four elements a turn need their count and addresses to be multiples of four elements.
bool takes_vectors(int64_t count, std::initializer_list<const Tensor*> tensors) {
  bool all = count % 4 == 0;
  for (const Tensor* t : tensors) all = all && is_aligned(t->raw());
  return all;
}

}  // namespace

void adamw(Stream& stream, const AdamwArgs& args) {
  int64_t count = args.master.num_elements();
  if (count == 0) return;
  SINTER_CHECK(args.m.dtype() == args.v.dtype(), "[adamw] m in {} but v in {}; expected one format",
               base::dtype_name(args.m.dtype()), base::dtype_name(args.v.dtype()));
  auto rest = [&](float beta) { return 1.0 - std::pow(static_cast<double>(beta), args.step); };
  AdamwScalars scalars{args.lr,
                       args.beta1,
                       args.beta2,
                       args.eps,
                       args.weight_decay,
                       static_cast<float>(1.0 / rest(args.beta1)),
                       static_cast<float>(1.0 / std::sqrt(rest(args.beta2))),
                       args.control.num_elements() == kControlSize,
                       args.key};
  bool vector = takes_vectors(count, {&args.master, &args.grad, &args.m, &args.v, &args.copy});
  dispatch_grad(args.grad, [&]<class Grad>(TypeTag<Grad>) {
    dispatch_grad(args.m, [&]<class State>(TypeTag<State>) {
      dispatch_copy(args.copy, [&]<class Copy>(TypeTag<Copy>) {
        auto launch = [&]<int N>(std::integral_constant<int, N>) {
          adamw_kernel<Grad, State, Copy, N>
              <<<grid_for(stream, count, kThreads * N, 32), kThreads, 0, native(stream)>>>(
                  args.master.data<float>(), args.grad.data<Grad>(), args.m.data<State>(), args.v.data<State>(),
                  args.copy.data<Copy>(), args.control.data<float>(), count, scalars);
        };
        vector ? launch(std::integral_constant<int, 4>{}) : launch(std::integral_constant<int, 1>{});
      });
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void sgd(Stream& stream, const SgdArgs& args) {
  int64_t count = args.master.num_elements();
  if (count == 0) return;
  SINTER_CHECK(!args.velocity || args.velocity.dtype() == base::DType::f32, "[sgd] velocity in {}; expected f32",
               base::dtype_name(args.velocity.dtype()));
  bool vector = takes_vectors(count, {&args.master, &args.grad, &args.velocity, &args.copy});
  dispatch_grad(args.grad, [&]<class Grad>(TypeTag<Grad>) {
    dispatch_copy(args.copy, [&]<class Copy>(TypeTag<Copy>) {
      auto launch = [&]<int N>(std::integral_constant<int, N>) {
        sgd_kernel<Grad, Copy, N><<<grid_for(stream, count, kThreads * N, 32), kThreads, 0, native(stream)>>>(
            args.master.data<float>(), args.grad.data<Grad>(), args.velocity.data<float>(), args.copy.data<Copy>(),
            args.control.data<float>(), count, args.lr, args.momentum, args.weight_decay);
      };
      vector ? launch(std::integral_constant<int, 4>{}) : launch(std::integral_constant<int, 1>{});
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void muon_momentum(Stream& stream, const MuonMomentumArgs& args) {
  int64_t count = args.grad.num_elements();
  if (count == 0) return;
  bool vector = takes_vectors(count, {&args.grad, &args.momentum, &args.direction});
  dispatch_grad(args.grad, [&]<class Grad>(TypeTag<Grad>) {
    dispatch_grad(args.momentum, [&]<class State>(TypeTag<State>) {
      dispatch_grad(args.direction, [&]<class Out>(TypeTag<Out>) {
        auto launch = [&]<int N>(std::integral_constant<int, N>) {
          muon_momentum_kernel<Grad, State, Out, N>
              <<<grid_for(stream, count, kThreads * N, 32), kThreads, 0, native(stream)>>>(
                  args.grad.data<Grad>(), args.momentum.data<State>(), args.direction.data<Out>(),
                  args.control.data<float>(), count, args.mu, args.key);
        };
        vector ? launch(std::integral_constant<int, 4>{}) : launch(std::integral_constant<int, 1>{});
      });
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void normalize(Stream& stream, const NormalizeArgs& args) {
  const int64_t columns = args.x.size(-1), rows = args.x.rows();
  if (args.x.num_elements() == 0) return;
  auto* partials =
      static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * static_cast<size_t>(rows * kNormParts)));
  dim3 grid(kNormParts, static_cast<unsigned>(rows));
  dispatch_format(args.x.dtype(), "normalize", [&]<class T>(TypeTag<T>) {
    auto launch = [&]<int N>(std::integral_constant<int, N>) {
      row_squares_kernel<T, N><<<grid, kNormThreads, 0, native(stream)>>>(args.x.data<T>(), columns, partials);
      scale_rows_kernel<T, N><<<grid, kNormThreads, 0, native(stream)>>>(args.x.data<T>(), columns, partials, args.eps);
    };
    bool vector = columns % kWidth<T> == 0 && is_aligned(args.x.raw());
    vector ? launch(std::integral_constant<int, kWidth<T>>{}) : launch(std::integral_constant<int, 1>{});
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
