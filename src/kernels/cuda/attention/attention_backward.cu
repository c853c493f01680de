// Flash attention backward on tensor cores, without atomics: one pass whose rows are keys gives dK and dV, one whose
// rows are packed queries gives dQ. The scores are computed twice; in exchange every sum has one owner and one order.
//
// Both passes have one shape. With row operands (X1, X2) and column operands (Y1, Y2), keys pass: (K, V), (Q, dO);
// queries pass: (Q, dO), (K, V):
//   score = X1 Y1^T, p = exp(score - lse), dp = X2 Y2^T, ds = p (dp - delta)
//   first += ds Y1          (dK, or dQ)
//   second += p Y2          (dV; keys pass only)
#include "kernels/cuda/attention/attention.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kTile = 64;  // rows of a block (16 a warp), and columns of a turn
constexpr int kThreads = 128;

// Row tiles, and stages of column tiles with what belongs to their queries.
template <int kDim, int kStages>
constexpr size_t backward_shared_bytes() {
  return sizeof(uint16_t) * (2 + 2 * kStages) * kTile * (kDim + kPad) +
         kStages * (2 * sizeof(float) + sizeof(int)) * kTile;
}

// Where a packed query's lse and delta lie.
__device__ __forceinline__ int64_t statistics_index(const AttentionParams& p, const AttentionSequence& s, int m) {
  int64_t head = s.kv_head * p.group + m % p.group;
  return head * p.tokens + s.first + m / p.group;
}

// What a block works on: rows [row0, row0 + kTile) against the column tiles [first_tile, last_tile].
struct BlockWork {
  int row0, num_rows, num_columns, first_tile, last_tile;
};

template <bool kRowsAreKeys>
__device__ __forceinline__ BlockWork work_of(const AttentionParams& p, const AttentionSequence& s, int row0) {
  BlockWork w{row0, kRowsAreKeys ? s.queries : s.queries * p.group, kRowsAreKeys ? s.queries * p.group : s.queries, 0,
              -1};
  if (row0 < 0 || row0 >= w.num_rows) return w;
  int last_row = min(row0 + kTile, w.num_rows) - 1;
  if constexpr (kRowsAreKeys) {  // queries from the first key's own on, up to the last that still sees the last key
    int last_query = p.window > 0 ? min(s.queries - 1, last_row + p.window - 1) : s.queries - 1;
    w.first_tile = row0 * p.group / kTile;
    w.last_tile = (last_query * p.group + p.group - 1) / kTile;
  } else {
    int first_query = row0 / p.group, last_query = last_row / p.group;
    w.first_tile = p.window > 0 ? max(0, first_query - p.window + 1) / kTile : 0;
    w.last_tile = last_query / kTile;
  }
  return w;
}

// kOut columns of the result a block: a head of 256 is done in two halves, or the sums would not fit in registers. The
// 64 columns of a turn are worked on in two halves for the same reason. With two stages a turn's columns are loaded
// while the one before is worked on; one is for cards whose blocks have too little shared memory. Positions of queries
// are divided out once a tile, not once an element: that division, and dropout's random numbers in the unrolled loop,
// had made this kernel eight times slower.
template <class T, int kDim, int kOut, int kStages, bool kRowsAreKeys, bool kDropout>
__global__ void __launch_bounds__(kThreads) backward_kernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int kStride = kDim + kPad, kHalf = 32;
  T* x1 = reinterpret_cast<T*>(shared);
  T* x2 = x1 + kTile * kStride;
  T* columns = x2 + kTile * kStride;  // stage i: y1 at 2 i tiles, y2 one further
  float* lse_shared = reinterpret_cast<float*>(columns + 2 * kStages * kTile * kStride);
  float* delta_shared = lse_shared + kStages * kTile;
  int* query_shared = reinterpret_cast<int*>(delta_shared + kStages * kTile);

  int scale_rows = kRowsAreKeys ? 1 : p.group;
  int64_t block = kRowsAreKeys ? int64_t{blockIdx.x} : int64_t{gridDim.x} - 1 - blockIdx.x;  // most work first
  int s_index = find_group(p.offsets, p.num_sequences, scale_rows, kTile, block);
  AttentionSequence s = sequence_at(p, s_index, blockIdx.y);
  BlockWork w =
      work_of<kRowsAreKeys>(p, s, static_cast<int>(block - tile_start(p.offsets, s_index, scale_rows, kTile)) * kTile);
  if (w.row0 < 0 || w.row0 >= w.num_rows) return;
  int out0 = blockIdx.z * kOut;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  auto load_queries = [&](T* q, T* d, int m0) {
    int count = s.queries * p.group;
    load_tile<T, kTile, kDim, kThreads>(q, p,
                                        [&](int r) { return m0 + r < count ? query_row<T>(p, s, m0 + r) : nullptr; });
    load_tile<T, kTile, kDim, kThreads>(
        d, p, [&](int r) { return m0 + r < count ? out_row<T>(p, p.dout, s, m0 + r) : nullptr; });
  };
  auto load_keys = [&](T* k, T* v, int j0) {
    load_tile<T, kTile, kDim, kThreads>(
        k, p, [&](int r) { return j0 + r < s.queries ? key_row<T>(p, s, j0 + r, 0) : nullptr; });
    load_tile<T, kTile, kDim, kThreads>(
        v, p, [&](int r) { return j0 + r < s.queries ? key_row<T>(p, s, j0 + r, 1) : nullptr; });
  };
  auto load_columns = [&](int t) {
    int stage = (t - w.first_tile) % kStages, column0 = t * kTile;
    T* y1 = columns + 2 * stage * kTile * kStride;
    kRowsAreKeys ? load_queries(y1, y1 + kTile * kStride, column0) : load_keys(y1, y1 + kTile * kStride, column0);
    if (kRowsAreKeys && threadIdx.x < kTile) {
      int m = column0 + static_cast<int>(threadIdx.x), at_shared = stage * kTile + static_cast<int>(threadIdx.x);
      bool valid = m < w.num_columns;
      int64_t at = valid ? statistics_index(p, s, m) : 0;
      lse_shared[at_shared] = valid ? p.lse[at] * kLog2e : 0.0f;
      delta_shared[at_shared] = valid ? p.delta[at] : 0.0f;
      query_shared[at_shared] = m / p.group;
    }
  };
  kRowsAreKeys ? load_keys(x1, x2, w.row0) : load_queries(x1, x2, w.row0);
  load_columns(w.first_tile);
  copy_commit();

  int row[2] = {w.row0 + warp * 16 + lane / 4, w.row0 + warp * 16 + lane / 4 + 8};
  int row_query[2] = {row[0] / p.group, row[1] / p.group};  // of rows that are queries
  float row_lse[2] = {}, row_delta[2] = {};
  if constexpr (!kRowsAreKeys) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row[h] >= w.num_rows) continue;
      row_lse[h] = p.lse[statistics_index(p, s, row[h])] * kLog2e;
      row_delta[h] = p.delta[statistics_index(p, s, row[h])];
    }
  }
  float first[kOut / 8][4] = {}, second[kRowsAreKeys ? kOut / 8 : 1][4] = {};
  float scale2 = p.scale * kLog2e;
  bool rows_full = w.row0 + kTile <= w.num_rows;

  for (int t = w.first_tile; t <= w.last_tile; ++t) {
    int column0 = t * kTile, stage = (t - w.first_tile) % kStages;
    __syncthreads();  // the stage that is loaded next is no longer read
    if constexpr (kStages > 1) {
      if (t < w.last_tile) load_columns(t + 1);
    } else {
      if (t > w.first_tile) load_columns(t);
    }
    copy_commit();
    copy_wait<kStages - 1>();
    __syncthreads();
    const T* y1 = columns + 2 * stage * kTile * kStride;
    const T* y2 = y1 + kTile * kStride;
    // Inside: every row sees every column, and both tiles are whole.
    int first_query = kRowsAreKeys ? column0 / p.group : w.row0 / p.group;
    int last_query = kRowsAreKeys ? (column0 + kTile - 1) / p.group : (w.row0 + kTile - 1) / p.group;
    int first_key = kRowsAreKeys ? w.row0 : column0, last_key = first_key + kTile - 1;
    bool is_inner = rows_full && column0 + kTile <= w.num_columns && last_key <= first_query &&
                    (p.window == 0 || first_key > last_query - p.window);
#pragma unroll 1
    for (int half0 = 0; half0 < kTile; half0 += kHalf) {
      float score[kHalf / 8][4] = {}, dp[kHalf / 8][4] = {};
#pragma unroll
      for (int k = 0; k < kDim; k += 16) {
        uint32_t a1[4], a2[4];
        load_a(a1, x1, kStride, warp * 16, k, lane);
        load_a(a2, x2, kStride, warp * 16, k, lane);
#pragma unroll
        for (int n = 0; n < kHalf; n += 16) {
          uint32_t b[4];
          load_b(b, y1, kStride, half0 + n, k, lane);
          mma_16x8x16<T>(score[n / 8], a1, b[0], b[1]);
          mma_16x8x16<T>(score[n / 8 + 1], a1, b[2], b[3]);
          load_b(b, y2, kStride, half0 + n, k, lane);
          mma_16x8x16<T>(dp[n / 8], a2, b[0], b[1]);
          mma_16x8x16<T>(dp[n / 8 + 1], a2, b[2], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int in_tile = half0 + n * 8 + lane % 4 * 2 + i % 2, at_shared = stage * kTile + in_tile;
          float lse = kRowsAreKeys ? lse_shared[at_shared] : row_lse[i / 2];
          float delta = kRowsAreKeys ? delta_shared[at_shared] : row_delta[i / 2];
          float prob = exp2f(score[n][i] * scale2 - lse), factor = 1.0f;
          if (!is_inner || kDropout) {
            int column = column0 + in_tile, r = row[i / 2], key = kRowsAreKeys ? r : column;
            int query = kRowsAreKeys ? query_shared[at_shared] : row_query[i / 2];
            bool valid = r < w.num_rows && column < w.num_columns && sees(p, query, key);
            if (!valid) prob = 0.0f;
            if (kDropout && valid) factor = dropout_factor(p, s, kRowsAreKeys ? column : r, key);
          }
          score[n][i] = prob * factor;                              // what values were weighted with
          dp[n][i] = prob * (dp[n][i] * factor - delta) * p.scale;  // ds
        }
      }
#pragma unroll
      for (int k = 0; k < kHalf; k += 16) {
        uint32_t ds[4] = {pack<T>(dp[k / 8][0], dp[k / 8][1]), pack<T>(dp[k / 8][2], dp[k / 8][3]),
                          pack<T>(dp[k / 8 + 1][0], dp[k / 8 + 1][1]), pack<T>(dp[k / 8 + 1][2], dp[k / 8 + 1][3])};
        uint32_t prob[4];
        if constexpr (kRowsAreKeys) {
          prob[0] = pack<T>(score[k / 8][0], score[k / 8][1]);
          prob[1] = pack<T>(score[k / 8][2], score[k / 8][3]);
          prob[2] = pack<T>(score[k / 8 + 1][0], score[k / 8 + 1][1]);
          prob[3] = pack<T>(score[k / 8 + 1][2], score[k / 8 + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < kOut; n += 16) {
          uint32_t b[4];
          load_b_transposed(b, y1, kStride, out0 + n, half0 + k, lane);
          mma_16x8x16<T>(first[n / 8], ds, b[0], b[1]);
          mma_16x8x16<T>(first[n / 8 + 1], ds, b[2], b[3]);
          if constexpr (kRowsAreKeys) {
            load_b_transposed(b, y2, kStride, out0 + n, half0 + k, lane);
            mma_16x8x16<T>(second[n / 8], prob, b[0], b[1]);
            mma_16x8x16<T>(second[n / 8 + 1], prob, b[2], b[3]);
          }
        }
      }
    }
  }

  auto store = [&](const T* like, const float(&values)[kOut / 8][4], int h) {
    T* to = static_cast<T*>(p.dqkv) + (like - static_cast<const T*>(p.qkv));  // dqkv has qkv's layout
#pragma unroll
    for (int d = 0; d < kOut / 8; ++d) {
      int column = out0 + d * 8 + lane % 4 * 2;
      if (p.vector) {
        if (column < p.head_dim) {
          *reinterpret_cast<uint32_t*>(to + column) = pack<T>(values[d][2 * h], values[d][2 * h + 1]);
        }
      } else {
        if (column < p.head_dim) to[column] = from_float<T>(values[d][2 * h]);
        if (column + 1 < p.head_dim) to[column + 1] = from_float<T>(values[d][2 * h + 1]);
      }
    }
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row[h] >= w.num_rows) continue;
    if constexpr (kRowsAreKeys) {
      store(key_row<T>(p, s, row[h], 0), first, h);
      store(key_row<T>(p, s, row[h], 1), second, h);
    } else {
      store(query_row<T>(p, s, row[h]), first, h);
    }
  }
}

// delta = row sums of dout * out, a warp a head of a token.
template <class T>
__global__ void __launch_bounds__(256) delta_kernel(AttentionParams p) {
  int64_t i = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  if (i >= p.tokens * p.num_heads) return;
  int64_t t = i / p.num_heads, h = i % p.num_heads;
  const T *a = static_cast<const T*>(p.dout) + i * p.head_dim, *b = static_cast<const T*>(p.saved_out) + i * p.head_dim;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < p.head_dim; d += 32) sum += to_float(a[d]) * to_float(b[d]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) p.delta[h * p.tokens + t] = sum;
}

template <class T>
void launch_delta(Stream& stream, const AttentionParams& p) {
  delta_kernel<T><<<static_cast<unsigned>(div_up(p.tokens * p.num_heads, 8)), 256, 0, native(stream)>>>(p);
  SINTER_CUDA_LAUNCHED();
}

template <class T, int kDim, int kStages, bool kRowsAreKeys, bool kDropout>
void launch_pass(Stream& stream, const AttentionParams& p) {
  constexpr int kOut = kDim > 128 ? 128 : kDim;
  constexpr size_t kBytes = backward_shared_bytes<kDim, kStages>();
  auto kernel = backward_kernel<T, kDim, kOut, kStages, kRowsAreKeys, kDropout>;
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  int64_t blocks = p.tokens * (kRowsAreKeys ? 1 : p.group) / kTile + p.num_sequences;
  dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.num_kv_heads), kDim / kOut);
  kernel<<<grid, kThreads, kBytes, native(stream)>>>(p);
  SINTER_CUDA_LAUNCHED();
}

template <class T>
void launch_backward(Stream& stream, const AttentionParams& p) {
  launch_delta<T>(stream, p);
  const size_t most_bytes = most_shared_bytes(stream.device);
  dispatch_head_dim(p.head_dim, p.dropout > 0, [&](auto dim, auto dropout) {
    constexpr int kDim = decltype(dim)::value;
    constexpr bool kDropout = decltype(dropout)::value;
    auto launch = [&](auto stages) {
      launch_pass<T, kDim, decltype(stages)::value, true, kDropout>(stream, p);
      launch_pass<T, kDim, decltype(stages)::value, false, kDropout>(stream, p);
    };
    using One = std::integral_constant<int, 1>;
    using Two = std::integral_constant<int, 2>;
    if (backward_shared_bytes<kDim, 2>() <= most_bytes) return launch(Two());
    if constexpr (kDim >= 128) {  // smaller ones fit in two stages on every card
      SINTER_CHECK((backward_shared_bytes<kDim, 1>() <= most_bytes),
                   "[attention] the gradient of heads of {} needs {} bytes of shared memory a block, this GPU has {}; "
                   "use a GPU of the class of A100 or H100, or heads of 128 and less",
                   p.head_dim, backward_shared_bytes<kDim, 1>(), most_bytes);
      launch(One());
    }
  });
}

}  // namespace

void flash_backward(Stream& stream, const AttentionBackwardArgs& args) {
  AttentionParams p = make_attention_params(args.shape, *args.batch, args.qkv);
  if (p.tokens == 0 || p.num_sequences == 0) return;
  p.saved_out = args.out.raw();
  p.dout = args.dout.raw();
  p.lse = args.lse.data<float>();
  p.delta = args.delta.data<float>();
  p.dqkv = args.dqkv.raw();
  p.vector = p.vector && is_aligned(p.dout) && is_aligned(p.dqkv);
  zero_padding_rows(stream, p, args.dqkv, nullptr);
  switch (args.qkv.dtype()) {
    case base::DType::f32:
      launch_delta<float>(stream, p);
      flash_backward_f32(stream, p);
      return;
    case base::DType::bf16:
      launch_backward<bfloat16>(stream, p);
      return;
    case base::DType::f16:
      launch_backward<half>(stream, p);
      return;
    default:
      base::fail("[attention] format {} on CUDA; expected f32, bf16 or f16", base::dtype_name(args.qkv.dtype()));
  }
}

}  // namespace sinter::kernels::cuda
