// Matrix products over groups of rows whose bounds only the device knows (experts): one launch for all experts. Without
// bounds all rows are one group: what products are made by where a row's result must not depend on the other rows
// (SINTER_BATCH_INVARIANT), since every sum runs over the whole inner size in one order.
//
// 16-bit formats run on tensor cores (mma.sync) with a three-stage cp.async pipeline; f32 by plain arithmetic.
// Operands stay as they lie: a tile is stored [m][k] or [k][m] as memory has it, and ldmatrix transposes on the way to
// the registers.
#include "kernels/cuda/mma.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kM = 128, kN = 128, kK = 32, kStages = 3, kThreads = 256;

struct GroupedParams {
  const void *a, *b;
  void* c;
  const void *bias, *addend;
  const int32_t* offsets;  // null: one group of `rows`
  int64_t m, n, k;  // of one product; rows of the group stand for m (plain) or k (transposed a) and come from offsets
  int64_t rows, c_stride;
  int groups;
  float alpha, beta;
  bool accumulate, vector_a, vector_b;
};

// The product one block works on a tile of.
struct Product {
  const void *a, *b;  // first element
  int64_t rows, columns, inner;
  int64_t row0, column0;
  int64_t c_first;  // element of c at (0, 0)
  bool has_work;
};

template <class T, bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ Product product_of(const GroupedParams& p) {
  Product q{};
  q.columns = p.n;
  q.column0 = int64_t{blockIdx.x} * kN;
  const T *a = static_cast<const T*>(p.a), *b = static_cast<const T*>(p.b);
  if constexpr (kTransposeA) {
    int64_t first = p.offsets[blockIdx.z];
    q.rows = p.m;
    q.row0 = int64_t{blockIdx.y} * kM;
    q.inner = p.offsets[blockIdx.z + 1] - first;
    q.a = a + first * p.m;
    q.b = b + first * p.n;
    q.c_first = int64_t{blockIdx.z} * p.m * p.n;
    q.has_work = true;
  } else if (!p.offsets) {
    q.rows = p.rows;
    q.row0 = int64_t{blockIdx.y} * kM;
    q.inner = p.k;
    q.a = a;
    q.b = b;
    q.has_work = q.row0 < q.rows;
  } else {
    int group = find_group(p.offsets, p.groups, 1, kM, blockIdx.y);
    int64_t first = p.offsets[group];
    q.rows = p.offsets[group + 1] - first;
    q.row0 = (blockIdx.y - tile_start(p.offsets, group, 1, kM)) * kM;
    q.inner = p.k;
    q.a = a + first * p.k;
    q.b = b + group * p.n * p.k;
    q.c_first = first * p.c_stride;
    q.has_work = q.row0 >= 0 && q.row0 < q.rows;
  }
  return q;
}

// A (kOuter, kInner) tile of a row-major matrix with `ld` elements a row, zeros outside (outer_end, inner_end).
template <class T, int kOuter, int kInner>
__device__ __forceinline__ void load_stage(T* tile, const T* from, int64_t ld, int64_t outer0, int64_t inner0,
                                           int64_t outer_end, int64_t inner_end, bool vector) {
  constexpr int kChunks = kInner / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kOuter * kChunks; i += kThreads) {
    int64_t o = i / kChunks, x = i % kChunks * 8;
    T* to = tile + o * (kInner + kPad) + x;
    bool row_valid = outer0 + o < outer_end;
    const T* source = from + (outer0 + o) * ld + inner0 + x;
    if (vector) {
      bool valid = row_valid && inner0 + x < inner_end;
      copy_async(to, valid ? source : from, valid);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = row_valid && inner0 + x + j < inner_end ? source[j] : from_float<T>(0.0f);
    }
  }
}

template <bool kTransposed, int kOuterSize>
constexpr int stage_elements() {
  return kTransposed ? kK * (kOuterSize + kPad) : kOuterSize * (kK + kPad);
}

// kTransposeA: a lies [k][m]. kRowsB: b lies [k][n], else [n][k].
template <class T, class Out, bool kTransposeA, bool kRowsB>
__global__ void __launch_bounds__(kThreads) grouped_kernel(GroupedParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int kStageA = stage_elements<kTransposeA, kM>(), kStageB = stage_elements<kRowsB, kN>();
  T* a_tiles = reinterpret_cast<T*>(shared);
  T* b_tiles = a_tiles + kStages * kStageA;
  Product q = product_of<T, kTransposeA, !kRowsB>(p);
  if (!q.has_work) return;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;  // each warp: 64 x 32

  auto load = [&](int stage, int64_t k0) {
    T* a = a_tiles + stage * kStageA;
    T* b = b_tiles + stage * kStageB;
    if constexpr (kTransposeA) {
      load_stage<T, kK, kM>(a, static_cast<const T*>(q.a), p.m, k0, q.row0, q.inner, q.rows, p.vector_a);
    } else {
      load_stage<T, kM, kK>(a, static_cast<const T*>(q.a), p.k, q.row0, k0, q.rows, q.inner, p.vector_a);
    }
    if constexpr (kRowsB) {
      load_stage<T, kK, kN>(b, static_cast<const T*>(q.b), p.n, k0, q.column0, q.inner, q.columns, p.vector_b);
    } else {
      load_stage<T, kN, kK>(b, static_cast<const T*>(q.b), p.k, q.column0, k0, q.columns, q.inner, p.vector_b);
    }
  };
  int64_t turns = (q.inner + kK - 1) / kK;
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < turns) load(stage, int64_t{stage} * kK);
    copy_commit();
  }
  float sum[4][4][4] = {};
  for (int64_t turn = 0; turn < turns; ++turn) {
    copy_wait<kStages - 2>();
    __syncthreads();  // this turn's tiles are here, and the last turn's are no longer read
    int64_t ahead = turn + kStages - 1;
    if (ahead < turns) load(static_cast<int>(ahead % kStages), ahead * kK);
    copy_commit();
    const T* a = a_tiles + turn % kStages * kStageA;
    const T* b = b_tiles + turn % kStages * kStageB;
#pragma unroll
    for (int k = 0; k < kK; k += 16) {
      uint32_t fragment_a[4][4], fragment_b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kTransposeA) {
          load_a_transposed(fragment_a[i], a, kM + kPad, warp_m + i * 16, k, lane);
        } else {
          load_a(fragment_a[i], a, kK + kPad, warp_m + i * 16, k, lane);
        }
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (kRowsB) {
          load_b_transposed(fragment_b[j], b, kN + kPad, warp_n + j * 16, k, lane);
        } else {
          load_b(fragment_b[j], b, kK + kPad, warp_n + j * 16, k, lane);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          mma_16x8x16<T>(sum[i][j], fragment_a[i], fragment_b[j / 2][j % 2 * 2], fragment_b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
  copy_wait<0>();
  Out* c = static_cast<Out*>(p.c) + q.c_first;
  const Out* bias = static_cast<const Out*>(p.bias);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        int64_t row = q.row0 + warp_m + i * 16 + lane / 4 + e / 2 * 8;
        int64_t column = q.column0 + warp_n + j * 8 + lane % 4 * 2 + e % 2;
        if (row >= q.rows || column >= q.columns) continue;
        float value = p.alpha * sum[i][j][e] + (bias ? to_float(bias[column]) : 0.0f);
        Out* to = c + row * p.c_stride + column;
        if (p.addend) value += p.beta * to_float(static_cast<const Out*>(p.addend)[to - static_cast<Out*>(p.c)]);
        *to = from_float<Out>(p.accumulate ? to_float(*to) + value : value);
      }
    }
  }
}

// f32: a block of 16 x 16 threads, an 8 x 8 piece each over tiles of 16 columns of k.
template <bool kTransposeA, bool kRowsB>
__global__ void __launch_bounds__(kThreads) grouped_f32_kernel(GroupedParams p) {
  constexpr int kDepth = 16;
  __shared__ float a_tile[kDepth][kM + 4], b_tile[kDepth][kN + 4];
  Product q = product_of<float, kTransposeA, !kRowsB>(p);
  if (!q.has_work) return;
  const float *a = static_cast<const float*>(q.a), *b = static_cast<const float*>(q.b);
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float sum[8][8] = {};
  for (int64_t k0 = 0; k0 < q.inner; k0 += kDepth) {
    __syncthreads();
    for (int i = threadIdx.x; i < kDepth * kM; i += kThreads) {
      int k = kTransposeA ? i / kM : i % kDepth, m = kTransposeA ? i % kM : i / kDepth;
      int64_t row = q.row0 + m, inner = k0 + k;
      bool valid = row < q.rows && inner < q.inner;
      a_tile[k][m] = valid ? a[kTransposeA ? inner * p.m + row : row * p.k + inner] : 0.0f;
    }
    for (int i = threadIdx.x; i < kDepth * kN; i += kThreads) {
      int k = kRowsB ? i / kN : i % kDepth, n = kRowsB ? i % kN : i / kDepth;
      int64_t column = q.column0 + n, inner = k0 + k;
      bool valid = column < q.columns && inner < q.inner;
      b_tile[k][n] = valid ? b[kRowsB ? inner * p.n + column : column * p.k + inner] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float x[8], y[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] = a_tile[k][i * 16 + ty];
#pragma unroll
      for (int j = 0; j < 8; ++j) y[j] = b_tile[k][j * 16 + tx];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] += x[i] * y[j];
      }
    }
  }
  float* c = static_cast<float*>(p.c) + q.c_first;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      int64_t row = q.row0 + i * 16 + ty, column = q.column0 + j * 16 + tx;
      if (row >= q.rows || column >= q.columns) continue;
      float value = p.alpha * sum[i][j] + (p.bias ? static_cast<const float*>(p.bias)[column] : 0.0f);
      float* to = c + row * p.c_stride + column;
      if (p.addend) value += p.beta * static_cast<const float*>(p.addend)[to - static_cast<float*>(p.c)];
      *to = p.accumulate ? *to + value : value;
    }
  }
}

template <class T, class Out, bool kTransposeA, bool kRowsB>
void launch(Stream& stream, const GroupedParams& p, dim3 grid) {
  if constexpr (std::is_same_v<T, float>) {
    grouped_f32_kernel<kTransposeA, kRowsB><<<grid, kThreads, 0, native(stream)>>>(p);
  } else {
    constexpr size_t kBytes = sizeof(T) * kStages * (stage_elements<kTransposeA, kM>() + stage_elements<kRowsB, kN>());
    auto kernel = grouped_kernel<T, Out, kTransposeA, kRowsB>;
    SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    kernel<<<grid, kThreads, kBytes, native(stream)>>>(p);
  }
  SINTER_CUDA_LAUNCHED();
}

}  // namespace

void grouped_matmul(Stream& stream, const MatmulArgs& args) {
  const size_t first = static_cast<size_t>(args.c_first_column) * base::dtype_bytes(args.c.dtype());
  GroupedParams p{};
  p.a = args.a.raw();
  p.b = args.b.data.raw();
  p.c = args.c.data<char>() + first;
  p.bias = args.bias.raw();
  p.addend = args.addend ? args.addend.data<char>() + first : nullptr;
  p.offsets = args.group_offsets.data<int32_t>();
  p.groups = args.group_offsets ? static_cast<int>(args.group_offsets.num_elements() - 1) : 1;
  p.alpha = args.alpha;
  p.beta = args.beta;
  p.accumulate = args.accumulate;
  p.n = columns_of(args);
  p.c_stride = args.c.size(-1);
  p.m = args.a.size(-1);  // of a transposed product; else the inner size
  p.k = args.a.size(-1);
  int64_t rows = args.a.rows();
  p.rows = rows;
  if (p.groups <= 0 || p.n == 0 || (rows == 0 && !args.transpose_a)) return;
  SINTER_CHECK(args.a.dtype() == args.b.data.dtype(), "[matmul] a in {} but b in {}; expected one format",
               base::dtype_name(args.a.dtype()), base::dtype_name(args.b.data.dtype()));
  SINTER_CHECK(args.c.dtype() == args.a.dtype() || args.c.dtype() == base::DType::f32,
               "[matmul] c in {} for a in {}; expected that or f32", base::dtype_name(args.c.dtype()),
               base::dtype_name(args.a.dtype()));
  bool rows_b = args.transpose_a || !args.transpose_b;
  p.vector_a = is_aligned(p.a) && p.k % 8 == 0;
  p.vector_b = is_aligned(p.b) && (rows_b ? p.n : p.k) % 8 == 0;
  unsigned columns = static_cast<unsigned>(div_up(p.n, kN));
  dim3 grid = args.transpose_a ? dim3(columns, static_cast<unsigned>(div_up(p.m, kM)), static_cast<unsigned>(p.groups))
                               : dim3(columns, static_cast<unsigned>(rows / kM + p.groups));
  dispatch_format(args.a.dtype(), "matmul", [&]<class T>(TypeTag<T>) {
    auto with_out = [&]<class Out>(TypeTag<Out>) {
      if (args.transpose_a) {
        launch<T, Out, true, true>(stream, p, grid);
      } else if (rows_b) {
        launch<T, Out, false, true>(stream, p, grid);
      } else {
        launch<T, Out, false, false>(stream, p, grid);
      }
    };
    args.c.dtype() == base::DType::f32 ? with_out(TypeTag<float>{}) : with_out(TypeTag<T>{});
  });
}

}  // namespace sinter::kernels::cuda
