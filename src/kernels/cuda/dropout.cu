// Dropout by counter: element i of the call draws number first_index + i, whatever the launch looks like.
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

}  // namespace

void dropout(Stream& stream, const DropoutArgs& args) {
  int64_t count = args.y.num_elements();
  if (count == 0) return;
  float factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(args.p)));
  dispatch_format(args.y.dtype(), "dropout", [&]<class T>(TypeTag<T>) {
    dropout_kernel<T><<<grid_for(stream, count / 4 + 2, kThreads), kThreads, 0, native(stream)>>>(
        args.x.data<T>(), args.y.data<T>(), count, args.p, factor, args.key, args.first_index);
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
