// Rotary position embedding: the table of angles, and the rotation of the query and key heads in place.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rope_table_kernel(const int32_t* positions, const int32_t* sequence_of, const float* inv_freq,
                                  bool is_shared, float scale, float* cos_sin, int64_t tokens, int half_dim) {
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= tokens * half_dim) return;
  int64_t t = i / half_dim, f = i % half_dim;
  int64_t row = is_shared ? 0 : max(0, sequence_of[t]);  // padding holds -1
  float angle = static_cast<float>(positions[t]) * inv_freq[row * half_dim + f];
  float sine, cosine;
  sincosf(angle, &sine, &cosine);
  cos_sin[t * 2 * half_dim + f] = cosine * scale;
  cos_sin[t * 2 * half_dim + half_dim + f] = sine * scale;
}

// N pairs a thread; `pairs` = num_rotated * D / 2 / N vectors of pairs a token.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rope_kernel(T* x, const float* cos_sin, int64_t tokens, int64_t width,
                                                        unsigned vectors, unsigned half_vectors, float sign) {
  let_next_begin();
  wait_for_previous();
  int64_t total = tokens * vectors;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= total) return;
  int64_t t = total <= UINT32_MAX ? static_cast<uint32_t>(i) / vectors : i / vectors;
  unsigned v = static_cast<unsigned>(i - t * vectors), head = v / half_vectors, place = (v - head * half_vectors) * N;
  unsigned half_dim = half_vectors * N;
  T* first = x + t * width + int64_t{head} * 2 * half_dim + place;
  const float* angles = cos_sin + t * 2 * half_dim + place;
  float a[N], b[N], c[N], s[N];
  load_floats<T, N>(first, a);
  load_floats<T, N>(first + half_dim, b);
  load_floats<float, N>(angles, c);
  load_floats<float, N>(angles + half_dim, s);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float sine = sign * s[j], old = a[j];
    a[j] = old * c[j] - b[j] * sine;
    b[j] = b[j] * c[j] + old * sine;
  }
  store_floats<T, N>(first, a);
  store_floats<T, N>(first + half_dim, b);
}

}  // namespace

void rope_table(Stream& stream, const RopeTableArgs& args) {
  int64_t tokens = args.positions.num_elements(), half_dim = args.inv_freq.size(-1);
  if (tokens == 0) return;
  unsigned grid = static_cast<unsigned>(div_up(tokens * half_dim, kThreads));
  rope_table_kernel<<<grid, kThreads, 0, native(stream)>>>(
      args.positions.data<int32_t>(), args.sequence_of.data<int32_t>(), args.inv_freq.data<float>(),
      args.inv_freq.rows() == 1, args.scale, args.cos_sin.data<float>(), tokens, static_cast<int>(half_dim));
  SINTER_CUDA_LAUNCHED();
}

void rope(Stream& stream, const RopeArgs& args) {
  int64_t tokens = args.x.rows(), width = args.x.size(-1), half_dim = args.head_dim / 2;
  if (tokens == 0 || args.num_rotated == 0) return;
  dispatch_format(args.x.dtype(), "rope", [&]<class T>(TypeTag<T>) {
    auto launch = [&]<int N>(std::integral_constant<int, N>) {
      int64_t vectors = args.num_rotated * half_dim / N;
      unsigned grid = static_cast<unsigned>(div_up(tokens * vectors, kThreads));
      launch_dependent(stream, rope_kernel<T, N>, dim3(grid), kThreads, 0, args.x.data<T>(), args.cos_sin.data<float>(),
                       tokens, width, static_cast<unsigned>(vectors), static_cast<unsigned>(half_dim / N),
                       args.inverse ? -1.0f : 1.0f);
    };
    bool aligned = is_aligned(args.x.raw()) && is_aligned(args.cos_sin.raw()) && width % kWidth<T> == 0;
    if (aligned && half_dim % kWidth<T> == 0) {
      launch(std::integral_constant<int, kWidth<T>>{});
    } else {
      launch(std::integral_constant<int, 1>{});
    }
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
