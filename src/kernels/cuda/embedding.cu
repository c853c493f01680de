// Token and position embedding. Backward adds the rows of dy that share a token in the order of the batch: tokens are
// sorted (stable), a block sums pieces of kPiece sorted rows, and runs that cross pieces are joined by a second kernel.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/softmax_rows.h"

namespace sinter::kernels::cuda {
namespace {

constexpr int kPiece = 32;
constexpr int kThreads = 128;

template <class T, int N>
__global__ void embedding_forward_kernel(const int32_t* tokens, const int32_t* positions, const T* table,
                                         const T* position_table, T* y, int64_t channels, int64_t vocab,
                                         int64_t max_positions) {
  int64_t t = blockIdx.x;
  int64_t token = min(max(int64_t{tokens[t]}, int64_t{0}), vocab - 1);  // a wrong token must not read outside
  int64_t position = position_table ? min(max(int64_t{positions[t]}, int64_t{0}), max_positions - 1) : 0;
  for (int64_t c = threadIdx.x * N; c < channels; c += int64_t{blockDim.x} * N) {
    float a[N], b[N];
    load_floats<T, N>(table + token * channels + c, a);
    if (position_table) {
      load_floats<T, N>(position_table + position * channels + c, b);
#pragma unroll
      for (int j = 0; j < N; ++j) a[j] += b[j];
    }
    store_floats<T, N>(y + t * channels + c, a);
  }
}

// Rows [first, first + vocab) of a table that several ranks share; other tokens give zeros.
template <class T, int N>
__global__ void vocab_forward_kernel(const int32_t* tokens, const T* table, T* y, int64_t channels, int64_t first,
                                     int64_t vocab) {
  int64_t t = blockIdx.x, row = int64_t{tokens[t]} - first;
  for (int64_t c = threadIdx.x * N; c < channels; c += int64_t{blockDim.x} * N) {
    float a[N] = {};
    if (row >= 0 && row < vocab) load_floats<T, N>(table + row * channels + c, a);
    store_floats<T, N>(y + t * channels + c, a);
  }
}

// A thread takes the four elements of a row whose numbers share one Philox block.
template <class T>
__global__ void row_noise_kernel(const int32_t* streams, const float* scales, T* y, int64_t rows, int64_t channels) {
  const int64_t blocks = (channels + 3) / 4;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < rows * blocks;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t r = i / blocks, block = i - r * blocks;
    const float scale = scales[r];
    if (scale == 0.0f) continue;
    const uint64_t low = static_cast<uint32_t>(streams[2 * r]), high = static_cast<uint32_t>(streams[2 * r + 1]);
    const uint4 bits = philox_block(0, high << 32 | low, static_cast<uint64_t>(block));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t c = 4 * block + j;
      if (c >= channels) continue;
      T& value = y[r * channels + c];
      value = from_float<T>(to_float(value) + scale * (2.0f * uniform_from_bits(word_of(bits, j)) - 1.0f));
    }
  }
}

// Adds up rows of dy, each times its weight where weights are given.
// Partials of piece p: [2 p] the run that came in from the piece before, [2 p + 1] the run that goes on into the next.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_runs_kernel(const int32_t* keys, const int32_t* sources, const T* dy, const float* weights, float* dtable,
                    float* partials, int64_t count, int64_t rows, int64_t channels) {
  int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  if (c >= channels) return;
  int64_t begin = int64_t{blockIdx.x} * kPiece, end = min(begin + kPiece, count);
  bool comes_in = begin > 0 && keys[begin - 1] == keys[begin];
  bool goes_on = end < count && keys[end - 1] == keys[end];
  float sum[N] = {};
  bool is_first = true;
  for (int64_t i = begin; i < end; ++i) {
    float a[N];
    load_floats<T, N>(dy + int64_t{sources[i]} * channels + c, a);
    const float weight = weights ? weights[sources[i]] : 1.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += weight * a[j];
    int32_t key = keys[i];
    if (i + 1 < end && keys[i + 1] == key) continue;
    if (is_first && comes_in) {
      store_floats<float, N>(partials + int64_t{blockIdx.x} * 2 * channels + c, sum);
    } else if (i + 1 == end && goes_on) {
      store_floats<float, N>(partials + (int64_t{blockIdx.x} * 2 + 1) * channels + c, sum);
    } else if (key < rows) {
      float old[N];
      load_floats<float, N>(dtable + int64_t{key} * channels + c, old);
#pragma unroll
      for (int j = 0; j < N; ++j) old[j] += sum[j];
      store_floats<float, N>(dtable + int64_t{key} * channels + c, old);
    }
    is_first = false;
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] = 0;
  }
}

// The block of the piece where a broken run starts adds up its parts.
template <int N>
__global__ void __launch_bounds__(kThreads) join_runs_kernel(const int32_t* keys, float* dtable, const float* partials,
                                                             int64_t count, int64_t rows, int64_t channels) {
  int64_t piece = blockIdx.x, begin = piece * kPiece, end = begin + kPiece;
  if (end >= count || keys[end - 1] != keys[end]) return;  // no run goes on from here
  int32_t key = keys[end - 1];
  if (begin > 0 && keys[begin] == key && keys[begin - 1] == key) return;  // it started before
  int64_t c = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * N;
  if (c >= channels || key >= rows) return;
  float sum[N], a[N];
  load_floats<float, N>(partials + (piece * 2 + 1) * channels + c, sum);
  for (int64_t next = piece + 1; next * kPiece < count && keys[next * kPiece] == key; ++next) {
    load_floats<float, N>(partials + next * 2 * channels + c, a);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += a[j];
    if (keys[min((next + 1) * kPiece, count) - 1] != key) break;
  }
  load_floats<float, N>(dtable + int64_t{key} * channels + c, a);
#pragma unroll
  for (int j = 0; j < N; ++j) a[j] += sum[j];
  store_floats<float, N>(dtable + int64_t{key} * channels + c, a);
}

// dtable[indices[i] - first] += dy[i], of those that lie in it.
template <class T>
void add_rows(Stream& stream, const Tensor& indices, const Tensor& dy, const Tensor& weights, const Tensor& dtable,
              int64_t first = 0) {
  int64_t count = indices.num_elements(), channels = dy.size(-1), rows = dtable.size(0);
  SortedKeys sorted = sort_keys(stream, indices.data<int32_t>(), count, rows, first);
  int64_t pieces = div_up(count, kPiece);
  auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * 2 * pieces * channels));
  auto launch = [&]<int N>(std::integral_constant<int, N>) {
    dim3 grid(static_cast<unsigned>(pieces), static_cast<unsigned>(div_up(channels, kThreads * N)));
    sum_runs_kernel<T, N><<<grid, kThreads, 0, native(stream)>>>(sorted.keys, sorted.positions, dy.data<T>(),
                                                                 weights.data<float>(), dtable.data<float>(), partials,
                                                                 count, rows, channels);
    SINTER_CUDA_LAUNCHED();
    join_runs_kernel<N>
        <<<grid, kThreads, 0, native(stream)>>>(sorted.keys, dtable.data<float>(), partials, count, rows, channels);
    SINTER_CUDA_LAUNCHED();
  };
  bool vector = channels % kWidth<T> == 0 && is_aligned(dy.raw()) && is_aligned(dtable.raw());
  vector ? launch(std::integral_constant<int, kWidth<T>>{}) : launch(std::integral_constant<int, 1>{});
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForwardArgs& args) {
  int64_t tokens = args.tokens.num_elements(), channels = args.y.size(-1);
  if (tokens == 0) return;
  dispatch_format(args.y.dtype(), "embedding_forward", [&]<class T>(TypeTag<T>) {
    auto launch = [&]<int N>(std::integral_constant<int, N>) {
      embedding_forward_kernel<T, N><<<static_cast<unsigned>(tokens), 128, 0, native(stream)>>>(
          args.tokens.data<int32_t>(), args.positions.data<int32_t>(), args.table.data<T>(),
          args.position_table.data<T>(), args.y.data<T>(), channels, args.table.size(0),
          args.position_table ? args.position_table.size(0) : 1);
    };
    bool aligned = is_aligned(args.table.raw()) && is_aligned(args.position_table.raw()) && is_aligned(args.y.raw());
    aligned&& channels % kWidth<T> == 0 ? launch(std::integral_constant<int, kWidth<T>>{})
                                        : launch(std::integral_constant<int, 1>{});
  });
  SINTER_CUDA_LAUNCHED();
}

void row_noise(Stream& stream, const RowNoiseArgs& args) {
  const int64_t rows = args.y.rows(), channels = args.y.size(-1);
  if (rows == 0) return;
  dispatch_format(args.y.dtype(), "row_noise", [&]<class T>(TypeTag<T>) {
    row_noise_kernel<T><<<grid_for(stream, rows * div_up(channels, 4), kThreads), kThreads, 0, native(stream)>>>(
        args.streams.data<int32_t>(), args.scales.data<float>(), args.y.data<T>(), rows, channels);
  });
  SINTER_CUDA_LAUNCHED();
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args) {
  if (args.tokens.num_elements() == 0) return;
  dispatch_format(args.dy.dtype(), "embedding_backward", [&]<class T>(TypeTag<T>) {
    if (args.dtable) add_rows<T>(stream, args.tokens, args.dy, {}, args.dtable);
    if (args.dposition_table) add_rows<T>(stream, args.positions, args.dy, {}, args.dposition_table);
  });
}

void vocab_embedding_forward(Stream& stream, const VocabEmbeddingForwardArgs& args) {
  int64_t tokens = args.tokens.num_elements(), channels = args.y.size(-1);
  if (tokens == 0) return;
  dispatch_format(args.y.dtype(), "vocab_embedding_forward", [&]<class T>(TypeTag<T>) {
    auto launch = [&]<int N>(std::integral_constant<int, N>) {
      vocab_forward_kernel<T, N><<<static_cast<unsigned>(tokens), 128, 0, native(stream)>>>(
          args.tokens.data<int32_t>(), args.table.data<T>(), args.y.data<T>(), channels, args.first,
          args.table.size(0));
    };
    bool vector = is_aligned(args.table.raw()) && is_aligned(args.y.raw()) && channels % kWidth<T> == 0;
    vector ? launch(std::integral_constant<int, kWidth<T>>{}) : launch(std::integral_constant<int, 1>{});
  });
  SINTER_CUDA_LAUNCHED();
}

void vocab_embedding_backward(Stream& stream, const VocabEmbeddingBackwardArgs& args) {
  if (args.tokens.num_elements() == 0 || args.dtable.size(0) == 0) return;
  dispatch_format(args.dy.dtype(), "vocab_embedding_backward",
                  [&]<class T>(TypeTag<T>) { add_rows<T>(stream, args.tokens, args.dy, {}, args.dtable, args.first); });
}

void add_weighted_rows(Stream& stream, const Tensor& indices, const Tensor& x, const Tensor& weights,
                       const Tensor& table) {
  if (indices.num_elements() == 0) return;
  dispatch_format(x.dtype(), "add_weighted_rows",
                  [&]<class T>(TypeTag<T>) { add_rows<T>(stream, indices, x, weights, table); });
}

}  // namespace sinter::kernels::cuda
