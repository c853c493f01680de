// Dropout by counter: element i of the call draws number first_index + i, or that of its row, whatever the launch looks
// like.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A thread takes the (up to) four elements whose numbers share one Philox block.
template <class T>
__global__ void dropout_kernel(const T* x, T* y, int64_t count, float p, float factor, RandomKey key,
                               uint64_t first_index) {
  uint64_t first_block = first_index / 4;
  uint64_t blocks = (first_index + static_cast<uint64_t>(count) + 3) / 4 - first_block;
  for (uint64_t b = blockIdx.x * uint64_t{kThreads} + threadIdx.x; b < blocks; b += uint64_t{gridDim.x} * kThreads) {
    uint4 bits = philox_block(key.seed, key.stream, first_block + b);
    int64_t first = static_cast<int64_t>((first_block + b) * 4 - first_index);  // negative for a first, cut block
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int64_t i = first + j;
      if (i < 0 || i >= count) continue;
      bool keep = uniform_from_bits(word_of(bits, j)) >= p;
      y[i] = from_float<T>(keep ? to_float(x[i]) * factor : 0.0f);
    }
  }
}

// Element c of row r draws number rows[r] * channels + c.
template <class T>
__global__ void dropout_rows_kernel(const T* x, T* y, const int32_t* rows, int64_t count, int64_t channels, float p,
                                    float factor, RandomKey key) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads) {
    const int64_t r = i / channels;
    const auto number = static_cast<uint64_t>(rows[r]) * static_cast<uint64_t>(channels) + (i - r * channels);
    y[i] = from_float<T>(random_uniform(key, number) >= p ? to_float(x[i]) * factor : 0.0f);
  }
}

float factor_of(float p) { return static_cast<float>(1.0 / (1.0 - static_cast<double>(p))); }

}  // namespace

void dropout(Stream& stream, const DropoutArgs& args) {
  int64_t count = args.y.num_elements();
  if (count == 0) return;
  dispatch_format(args.y.dtype(), "dropout", [&]<class T>(TypeTag<T>) {
    dropout_kernel<T><<<grid_for(stream, count / 4 + 2, kThreads), kThreads, 0, native(stream)>>>(
        args.x.data<T>(), args.y.data<T>(), count, args.p, factor_of(args.p), args.key, args.first_index);
  });
  SINTER_CUDA_LAUNCHED();
}

void dropout_rows(Stream& stream, const RowDropoutArgs& args) {
  const int64_t count = args.y.num_elements();
  if (count == 0) return;
  dispatch_format(args.y.dtype(), "dropout_rows", [&]<class T>(TypeTag<T>) {
    dropout_rows_kernel<T><<<grid_for(stream, count, kThreads), kThreads, 0, native(stream)>>>(
        args.x.data<T>(), args.y.data<T>(), args.rows.data<int32_t>(), count, args.x.size(-1), args.p,
        factor_of(args.p), args.key);
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
