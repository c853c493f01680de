// Products of few rows (small_product.h): weights go from memory straight to tensor-core registers.
//
// A block owns 16 columns of c, which are 16 rows of b; its 8 warps take turns along the inner size, 128 bytes of every
// row a turn, kAhead turns on their way at once: with two blocks a multiprocessor has 128 KB in flight, twice what the
// memory needs. A thread loads 16 bytes of a row. Which of them go to which place along the inner size of an
// mma.m16n8k16 does not matter as long as the factor from a has the same order, so no value moves between threads. The
// warps' sums meet in shared memory, in a fixed order.
//
// Weights are read before the kernel that makes `a` has ended (launch_dependent). Then, where it fits, all of `a` comes
// to shared memory at once: read where it lies it would cost each turn a wait as long as that. Blocks that end last ask
// for what the next product begins with (weight_order.h).
#include <cuda_fp8.h>

#include "kernels/cuda/matmul/fp8_rows.h"
#include "kernels/cuda/matmul/small_product.cuh"
#include "kernels/cuda/matmul/weight_order.h"

namespace sinter::kernels::cuda {
namespace {

// staged_stride: elements between rows of x in shared memory.
struct SmallParams : ProductParams {
  int staged_stride;
  NextWeights next;
};

constexpr int kWarps = kProductWarps, kThreads = kProductThreads, kAhead = 4;

__device__ __forceinline__ uint4 load_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// Two 16-bit numbers each from bytes 0, 2 and 1, 3 of a word of e4m3, times 2^-120 in bf16 and 2^-8 in f16: the bits
// moved to where the format has them.
template <class T>
__device__ __forceinline__ uint32_t widen_fp8(uint32_t high_bytes) {
  constexpr int kShift = std::is_same_v<T, bfloat16> ? 4 : 1;
  constexpr uint32_t kMask = std::is_same_v<T, bfloat16> ? 0x07f007f0u : 0x3f803f80u;
  return (high_bytes & 0x80008000u) | ((high_bytes >> kShift) & kMask);
}
template <class T>
inline constexpr float kFp8Factor = std::is_same_v<T, bfloat16> ? 0x1p20f : 0x1p8f;  // see scale_fp8_input

// Keeps products with such numbers in the range of f32.
template <class T>
__device__ __forceinline__ uint32_t scale_fp8_input(uint32_t pair) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const __nv_bfloat162 factor = __float2bfloat162_rn(0x1p100f);
    __nv_bfloat162 x = *reinterpret_cast<__nv_bfloat162*>(&pair) * factor;
    return *reinterpret_cast<uint32_t*>(&x);
  } else {
    return pair;
  }
}

// Eight numbers of a row as multiply() wants them beside codes: scaled, and in each four numbers 0, 2 and 1, 3
// together.
template <class T>
__device__ __forceinline__ uint4 order_for_fp8(const uint4& v) {
  const uint32_t a = scale_fp8_input<T>(v.x), b = scale_fp8_input<T>(v.y), c = scale_fp8_input<T>(v.z),
                 d = scale_fp8_input<T>(v.w);
  return {__byte_perm(a, b, 0x5410), __byte_perm(a, b, 0x7632), __byte_perm(c, d, 0x5410), __byte_perm(c, d, 0x7632)};
}

// One turn of a warp: 64 (16-bit) or 128 (fp8) columns of its 16 rows.
template <bool kFp8>
struct Turn {
  uint4 low[2], high[2];
  float low_scale, high_scale;
};

template <class T, int kTiles, bool kFp8, bool kStaged>
struct Streamer {
  static constexpr int kElements = kFp8 ? 16 : 8;     // of 16 bytes
  static constexpr int kColumns = 2 * 4 * kElements;  // of a turn
  static constexpr int kBytes = kFp8 ? 1 : 2;

  const SmallParams& p;
  const char *low, *high;
  const float *low_scales, *high_scales;
  float low_factor, high_factor;
  int low_group, high_group;  // columns of one scale
  int quad, row;
  const T* staged;

  __device__ Streamer(const SmallParams& params, const RowPair& rows, const T* shared_rows)
      : p(params), quad(threadIdx.x % 4), row(threadIdx.x % 32 / 4), staged(shared_rows) {
    find(min(rows.low + row, p.n - 1), low, low_scales, low_factor, low_group);
    find(min(rows.high + row, p.n - 1), high, high_scales, high_factor, high_group);
  }
  __device__ __forceinline__ void find(int n, const char*& begin, const float*& scales, float& factor,
                                       int& group) const {
    ProductPart part = p.parts[0];
#pragma unroll
    for (int i = 1; i < kMostParts; ++i) {
      if (i < p.num_parts && n >= p.parts[i].first) part = p.parts[i];
    }
    begin = part.rows + int64_t{n - part.first} * p.k * kBytes;
    scales = part.scales + int64_t{n - part.first} * part.groups;
    factor = part.factor;
    group = part.group_columns;
  }
  __device__ __forceinline__ int column(int turn, int half) const {
    return turn * kColumns + (half * 4 + quad) * kElements;
  }
  __device__ __forceinline__ Turn<kFp8> load(int turn) const {
    Turn<kFp8> t{};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int c = column(turn, h);
      if (c >= p.k) continue;
      t.low[h] = load_once(low + int64_t{c} * kBytes);
      t.high[h] = load_once(high + int64_t{c} * kBytes);
    }
    if constexpr (kFp8) {
      const int first = turn * kColumns;  // most rows have one scale: no division
      t.low_scale = low_scales[low_group >= p.k ? 0 : first / low_group] * low_factor * kFp8Factor<T>;
      t.high_scale = high_scales[high_group >= p.k ? 0 : first / high_group] * high_factor * kFp8Factor<T>;
    }
    return t;
  }
  __device__ __forceinline__ void multiply(const Turn<kFp8>& t, int turn, float (&sum)[kTiles][4]) const {
    float part[2][kTiles][4] = {};  // two chains of products are half as long
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float(&to)[kTiles][4] = kFp8 ? part[h] : sum;
      const int c = column(turn, h);
      const uint32_t* a = &t.low[h].x;
      const uint32_t* b = &t.high[h].x;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int m = i * 8 + row;
        const bool valid = m < p.m && c < p.k;
        const T* x = kStaged ? staged + m * p.staged_stride + c : static_cast<const T*>(p.x) + int64_t{m} * p.k + c;
        if constexpr (kFp8) {
          uint32_t v[8] = {};
          if (valid) {
            uint4 first = *reinterpret_cast<const uint4*>(x), second = *reinterpret_cast<const uint4*>(x + 8);
            if constexpr (!kStaged) first = order_for_fp8<T>(first), second = order_for_fp8<T>(second);
            v[0] = first.x, v[1] = first.y, v[2] = first.z, v[3] = first.w;
            v[4] = second.x, v[5] = second.y, v[6] = second.z, v[7] = second.w;
          }
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const uint32_t operand[4] = {widen_fp8<T>(a[j] << 8), widen_fp8<T>(b[j] << 8), widen_fp8<T>(a[j]),
                                         widen_fp8<T>(b[j])};
            mma_16x8x16<T>(to[i], operand, v[2 * j], v[2 * j + 1]);
          }
        } else {
          uint4 v{};
          if (valid) v = *reinterpret_cast<const uint4*>(x);
          const uint32_t first[4] = {a[0], b[0], a[1], b[1]}, second[4] = {a[2], b[2], a[3], b[3]};
          mma_16x8x16<T>(to[i], first, v.x, v.y);
          mma_16x8x16<T>(to[i], second, v.z, v.w);
        }
      }
    }
    if constexpr (kFp8) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        sum[i][0] += t.low_scale * (part[0][i][0] + part[1][i][0]);
        sum[i][1] += t.low_scale * (part[0][i][1] + part[1][i][1]);
        sum[i][2] += t.high_scale * (part[0][i][2] + part[1][i][2]);
        sum[i][3] += t.high_scale * (part[0][i][3] + part[1][i][3]);
      }
    }
  }
};

// Between rows of x in shared memory: the accesses of two rows meet no bank twice.
template <bool kFp8>
constexpr int kStagedPad = kFp8 ? 8 : 32;
constexpr size_t kMostStagedBytes = size_t{96} << 10;  // two blocks have room

template <class T, bool kFp8>
__device__ __forceinline__ void stage_rows(T* to, const SmallParams& p) {
  const int chunks = p.k / 8;
  for (int i = threadIdx.x; i < p.m * chunks; i += kThreads) {
    const int m = i / chunks, c = i % chunks * 8;
    uint4 v = *reinterpret_cast<const uint4*>(static_cast<const T*>(p.x) + int64_t{m} * p.k + c);
    if constexpr (kFp8) v = order_for_fp8<T>(v);
    *reinterpret_cast<uint4*>(to + m * p.staged_stride + c) = v;
  }
  __syncthreads();
}

// One thread asks for what the block has to.
__device__ __forceinline__ void fetch_next(const NextWeights& next) {
  const unsigned block = gridDim.x - 1 - blockIdx.x, first = block * next.block_bytes;
  if (!next.begin || threadIdx.x > 0 || block >= static_cast<unsigned>(next.blocks) || first >= next.bytes) return;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const unsigned bytes = min(next.block_bytes, next.bytes - first);
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(next.begin + first), "r"(bytes) : "memory");
#endif
}

template <class T, int kTiles, bool kFp8, ProductKind kKind, bool kStaged>
__global__ void __launch_bounds__(kThreads, 2) small_product_kernel(const SmallParams p) {
  extern __shared__ __align__(16) unsigned char staged_bytes[];
  __shared__ float parts[kWarps][kProductRows][kTiles * 8 + 1];
  let_next_begin();
  const RowPair rows = rows_of<kKind>(p, blockIdx.x);
  T* staged = reinterpret_cast<T*>(staged_bytes);
  const Streamer<T, kTiles, kFp8, kStaged> streamer(p, rows, staged);
  const int warp = threadIdx.x / 32, turns = (p.k + streamer.kColumns - 1) / streamer.kColumns;
  Turn<kFp8> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (warp + i * kWarps < turns) ahead[i] = streamer.load(warp + i * kWarps);
  }
  wait_for_previous();
  if constexpr (kStaged) stage_rows<T, kFp8>(staged, p);
  float sum[kTiles][4] = {};
  for (int turn = warp; turn < turns; turn += kAhead * kWarps) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int now = turn + i * kWarps, next = now + kAhead * kWarps;
      if (now >= turns) break;
      streamer.multiply(ahead[i], now, sum);
      if (next < turns) ahead[i] = streamer.load(next);
    }
  }
  fetch_next(p.next);
  keep_sums<kTiles>(parts, sum);
  __syncthreads();
  write_columns<T, kTiles, kKind>(p, rows, parts, 0);
}

template <class T, int kTiles, bool kFp8, bool kStaged>
void launch_kind(Stream& stream, const SmallParams& p, ProductKind kind) {
  const int blocks = kind == ProductKind::plain ? (p.n + 15) / 16 : p.n / 16;
  const size_t bytes = static_cast<size_t>(p.m * p.staged_stride) * sizeof(T);
  auto run = [&](auto kernel) {
    if constexpr (kStaged)
      SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostStagedBytes));
    launch_dependent(stream, kernel, dim3(static_cast<unsigned>(blocks)), kThreads, bytes, p);
  };
  switch (kind) {
    case ProductKind::plain:
      return run(small_product_kernel<T, kTiles, kFp8, ProductKind::plain, kStaged>);
    case ProductKind::gated:
      return run(small_product_kernel<T, kTiles, kFp8, ProductKind::gated, kStaged>);
    case ProductKind::rotated:
      return run(small_product_kernel<T, kTiles, kFp8, ProductKind::rotated, kStaged>);
  }
}

template <class T, bool kFp8>
void launch(Stream& stream, const ProductParams& product, ProductKind kind) {
  SmallParams p{product, 0, {}};
  const ProductPart& first = p.parts[0];
  const int64_t rows = p.num_parts > 1 ? p.parts[1].first : p.n;
  const int blocks = (p.n + 15) / 16;
  const void* weight = p.c_is_f32 ? nullptr : first.rows;  // logits end a step
  p.next = next_weights(stream, weight, static_cast<size_t>(rows * p.k) * (kFp8 ? 1 : sizeof(T)), blocks);
  if (p.m > 8) return launch_kind<T, 2, kFp8, false>(stream, p, kind);
  const int stride = p.k + kStagedPad<kFp8>;
  const size_t bytes = static_cast<size_t>(p.m) * static_cast<size_t>(stride) * sizeof(T);
  if (bytes > kMostStagedBytes || 2 * kMostStagedBytes > most_shared_bytes(stream.device)) {
    return launch_kind<T, 1, kFp8, false>(stream, p, kind);
  }
  p.staged_stride = stride;
  launch_kind<T, 1, kFp8, true>(stream, p, kind);
}

template <class T>
void dispatch(Stream& stream, const ProductParams& p, ProductKind kind) {
  p.parts[0].scales ? launch<T, true>(stream, p, kind) : launch<T, false>(stream, p, kind);
}

// Where the weight's rows lie; false where the kernel does not read such a weight.
bool find_parts(const core::WeightView& weight, base::DType compute, ProductParams& p) {
  if (weight.is_plain()) {
    p.num_parts = 1;
    p.parts[0] = {weight.data.data<char>(), nullptr, 1.0f, 0, 0, 1};
    return weight.data.dtype() == compute && is_aligned(weight.data.raw());
  }
  const core::WeightBlocks& blocks = *weight.blocks;
  if (blocks.experts != 1 || blocks.parts.size() > kMostParts || blocks.columns % 16 != 0) return false;
  constexpr int64_t kTurnColumns = 128;
  int64_t first = 0;
  for (const core::WeightPart& part : blocks.parts) {
    if (part.format != base::WeightFormat::fp8_e4m3 || part.permutation || part.group <= 0) return false;
    if (part.group != blocks.columns && part.group % kTurnColumns != 0) return false;
    if (!is_aligned(part.data.raw())) return false;
    const int64_t groups = div_up(blocks.columns, part.group);
    p.parts[p.num_parts++] = {part.data.data<char>(),  part.scales.data<float>(), part.global_scale,
                              static_cast<int>(first), static_cast<int>(groups),  static_cast<int>(part.group)};
    first += part.rows;
  }
  return true;
}

// Fills what all kinds share; false where the kernel does not take the call.
bool describe(const Stream& stream, const MatmulArgs& args, ProductParams& p) {
  const base::DType t = args.a.dtype();
  if (!options().small_products || (t != base::DType::bf16 && t != base::DType::f16)) return false;
  if (!args.transpose_b || args.transpose_a || args.accumulate || args.alpha != 1.0f || args.batch != 1) return false;
  if (args.group_offsets || args.c_columns != 0 || args.c_squares || (args.addend && args.beta != 1.0f)) return false;
  if (takes_fp8_rows(stream, args)) return false;
  const int64_t m = args.a.rows(), k = args.a.size(-1), n = args.b.rows();
  if (m < 1 || m > (args.b.is_plain() ? kMostSmallRows : kMostQuantizedRows) || n < 16 || n % 8 != 0 || k % 16 != 0 ||
      k >= (int64_t{1} << 30))
    return false;
  if (args.c.rows() != m || n >= (int64_t{1} << 30)) return false;
  if (args.c.dtype() != t && args.c.dtype() != base::DType::f32) return false;
  if (args.bias && args.bias.dtype() != t) return false;
  p = {};
  if (!is_aligned(args.a.raw())) return false;
  if (m > kMostSmallRows || !find_parts(args.b, t, p)) {
    p.is_quantized = true;
    if (args.b.is_plain() || !find_quantized_parts(stream, args.b, p)) return false;
  }
  p.x = args.a.raw(), p.c = args.c.raw();
  p.bias = args.bias.raw(), p.addend = args.addend.raw();
  p.c_stride = args.c.size(-1);
  p.m = static_cast<int>(m), p.n = static_cast<int>(n), p.k = static_cast<int>(k);
  p.c_is_f32 = args.c.dtype() == base::DType::f32;
  return true;
}

bool run(Stream& stream, const MatmulArgs& args, const ProductParams& p, ProductKind kind) {
  if (p.is_quantized) {
    if (!has_one_format_a_block(p, kind)) return false;
    quantized_product(stream, args.a.dtype(), p, kind);
  } else if (args.a.dtype() == base::DType::bf16) {
    dispatch<bfloat16>(stream, p, kind);
  } else {
    dispatch<half>(stream, p, kind);
  }
  return true;
}

}  // namespace

bool small_matmul(Stream& stream, const MatmulArgs& args) {
  ProductParams p;
  return describe(stream, args, p) && run(stream, args, p, ProductKind::plain);
}

bool small_fused_matmul(Stream& stream, const FusedMatmulArgs& args) {
  ProductParams p;
  const MatmulArgs& product = args.product;
  if (!args.gated || !args.pre_activation || args.activation_input || args.a_sums || args.c_sums) return false;
  if (!describe(stream, product, p) || product.addend || p.n % 16 != 0 || p.c_is_f32) return false;
  p.pre = args.pre_activation.raw();
  p.activation = args.activation;
  return run(stream, product, p, ProductKind::gated);
}

bool small_rotated_matmul(Stream& stream, const RotatedMatmulArgs& args) {
  ProductParams p;
  const RopeArgs& rope = args.rope;
  if (rope.inverse || rope.head_dim % 16 != 0 || args.product.addend || !describe(stream, args.product, p))
    return false;
  if (p.n % rope.head_dim != 0 || p.c_is_f32) return false;
  p.cos_sin = rope.cos_sin.data<float>();
  p.half_dim = static_cast<int>(rope.head_dim / 2);
  p.num_rotated = static_cast<int>(rope.num_rotated);
  return run(stream, args.product, p, ProductKind::rotated);
}

}  // namespace sinter::kernels::cuda
