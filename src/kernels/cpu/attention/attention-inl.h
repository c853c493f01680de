// Tiles of attention on vectors: products in f32, packing, 2^x. Compiled once per target: see Highway on *-inl.h.
#if defined(SINTER_KERNELS_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SINTER_KERNELS_CPU_ATTENTION_INL_H_
#undef SINTER_KERNELS_CPU_ATTENTION_INL_H_
#else
#define SINTER_KERNELS_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"
#if HWY_ARCH_X86
#include "kernels/cpu/matmul/transpose_avx512.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

// ---- c (rows, columns) = a (rows, depth) b (depth, columns) (+ c), f32; columns a multiple of 16
// ------------------------
#if HWY_TARGET == HWY_SCALAR
inline void multiply_floats(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_stride,
                            const float* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  for (int64_t r = 0; r < rows; ++r) {
    float* out = c + r * c_stride;
    if (!accumulate) std::fill(out, out + columns, 0.0f);
    for (int64_t k = 0; k < depth; ++k) {
      float x = a[r * a_stride + k];
      const float* row = b + k * b_stride;
      for (int64_t n = 0; n < columns; ++n) out[n] += x * row[n];
    }
  }
}
#else
// kRows x kVectors sums in registers; each is one chain over the depth.
template <int kRows, int kVectors>
HWY_INLINE void multiply_block(int64_t depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                               float* c, int64_t c_stride, bool accumulate) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[r][v] = accumulate ? load(c + r * c_stride + v * kLanes) : zero();
  }
  for (int64_t k = 0; k < depth; ++k) {
    Floats bs[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bs[v] = load(b + k * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Floats x = set(a[r * a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(x, bs[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(sums[r][v], c + r * c_stride + v * kLanes);
  }
}

template <int kVectors>
void multiply_columns(int64_t rows, int64_t depth, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                      float* c, int64_t c_stride, bool accumulate) {
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6) {
    multiply_block<6, kVectors>(depth, a + r * a_stride, a_stride, b, b_stride, c + r * c_stride, c_stride, accumulate);
  }
  a += r * a_stride;
  c += r * c_stride;
  switch (rows - r) {
    case 5:
      return multiply_block<5, kVectors>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
    case 4:
      return multiply_block<4, kVectors>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
    case 3:
      return multiply_block<3, kVectors>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
    case 2:
      return multiply_block<2, kVectors>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
    case 1:
      return multiply_block<1, kVectors>(depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
    default:
      return;
  }
}

inline void multiply_floats(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_stride,
                            const float* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  constexpr int kMost = kLanes >= 16 ? 4 : 2;  // vectors of sums: what 32 or 16 registers hold with 6 rows
  int64_t vectors = columns / static_cast<int64_t>(kLanes);
  for (; vectors >= kMost; vectors -= kMost) {
    multiply_columns<kMost>(rows, depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
    b += kMost * kLanes;
    c += kMost * kLanes;
  }
  if constexpr (kMost > 2) {
    if (vectors == 3) return multiply_columns<3>(rows, depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
    if (vectors == 2) return multiply_columns<2>(rows, depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
  }
  if (vectors == 1) multiply_columns<1>(rows, depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
}
#endif

// ---- packing ------------------------------------------------------------------------------------------------------
// out (columns, rows) = transpose of in (rows, columns), 4-byte units; rows and columns multiples of 16.
inline void transpose_units(const uint32_t* in, int64_t rows, int64_t columns, uint32_t* out) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = in[r * columns + c];
  }
#elif HWY_TARGET <= HWY_AVX3
  for (int64_t r = 0; r < rows; r += 16) {
    for (int64_t c = 0; c < columns; c += 16) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) x[i] = _mm512_loadu_si512(in + (r + i) * columns + c);
      transpose_16x16(x);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + (c + i) * rows + r, x[i]);
    }
  }
#else
  const hn::CappedTag<uint32_t, 4> d32;
  const hn::CappedTag<uint64_t, 2> d64;
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < columns; c += 4) {
      const uint32_t* p = in + r * columns + c;
      auto a0 = hn::LoadU(d32, p), a1 = hn::LoadU(d32, p + columns);
      auto a2 = hn::LoadU(d32, p + 2 * columns), a3 = hn::LoadU(d32, p + 3 * columns);
      auto b0 = hn::BitCast(d64, hn::InterleaveLower(d32, a0, a1)),
           b1 = hn::BitCast(d64, hn::InterleaveLower(d32, a2, a3));
      auto b2 = hn::BitCast(d64, hn::InterleaveUpper(d32, a0, a1)),
           b3 = hn::BitCast(d64, hn::InterleaveUpper(d32, a2, a3));
      uint32_t* q = out + c * rows + r;
      hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d64, b0, b1)), d32, q);
      hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d64, b0, b1)), d32, q + rows);
      hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d64, b2, b3)), d32, q + 2 * rows);
      hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d64, b2, b3)), d32, q + 3 * rows);
    }
  }
#endif
}

// How tiles are kept and multiplied: as f32 ...
struct FloatTiles {
  static constexpr int64_t kPerUnit = 1, kDimMultiple = 16;
  using Unit = float;

  template <class T>
  static void load_row(const T* row, size_t dim, size_t padded, float* out) {
    for_vectors(dim, [&](size_t i, size_t n) HWY_ATTR { store_n(load_n(row + i, n), out + i, n); });
    std::fill(out + dim, out + padded, 0.0f);
  }
  // Rows (kTileKeys, padded) as the second factor of a product over rows.
  static const float* stack(const float* rows, int64_t, float*) { return rows; }
  static constexpr int64_t stack_units(int64_t) { return 0; }
  // A row of probabilities as the first factor of a product over keys: kTileKeys floats.
  static float* factor_row(float* probabilities, float*) { return probabilities; }
  static HWY_INLINE void store_factors(Floats low, Floats high, float* out) {
    store(low, out);
    store(high, out + kLanes);
  }
  static void multiply(const PairKernel*, int64_t rows, int64_t columns, int64_t depth, const float* a,
                       int64_t a_stride, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                       bool accumulate) {
    multiply_floats(rows, columns, depth, a, a_stride, b, b_stride, c, c_stride, accumulate);
  }
};

#if HWY_TARGET <= HWY_AVX3
// ... or as bf16 pairs, multiplied by the kernel that is passed along.
struct PairTiles {
  static constexpr int64_t kPerUnit = 2, kDimMultiple = 32;
  using Unit = uint32_t;

  static HWY_INLINE void load_row(const bf16* row, size_t dim, size_t padded, uint32_t* out) {
    size_t i = 0;
    for (; i + kDimMultiple <= dim; i += kDimMultiple) _mm512_storeu_si512(out + i / 2, _mm512_loadu_si512(row + i));
    if (i < padded) {
      _mm512_storeu_si512(out + i / 2, _mm512_maskz_loadu_epi16((__mmask32{1} << (dim - i)) - 1, row + i));
    }
  }
  // Rows 2 j and 2 j + 1 interleaved: (kTileKeys / 2, padded) units.
  static const uint32_t* stack(const uint32_t* rows, int64_t padded, uint32_t* out) {
    // Interleaving takes low or high halves of each 16 bytes: what is to come first is put into the low ones.
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    int64_t units = padded / kPerUnit;
    for (int64_t j = 0; j < kTileKeys / 2; ++j, rows += 2 * units, out += padded) {
      for (int64_t i = 0; i < units; i += 16) {
        __m512i even = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(rows + i));
        __m512i odd = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(rows + units + i));
        _mm512_storeu_si512(out + 2 * i, _mm512_unpacklo_epi16(even, odd));
        _mm512_storeu_si512(out + 2 * i + 16, _mm512_unpackhi_epi16(even, odd));
      }
    }
    return out - kTileKeys / 2 * padded;
  }
  static constexpr int64_t stack_units(int64_t padded) { return kTileKeys / 2 * padded; }
  // Kernels for pairs are of CPUs that have this instruction; the compiler is told of AVX-512 alone.
  static HWY_INLINE void store_factors(Floats low, Floats high, uint32_t* out) {
    __m512i rounded;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low.raw), "v"(high.raw));
    _mm512_storeu_si512(out, rounded);
  }
  static void multiply(const PairKernel* kernel, int64_t rows, int64_t columns, int64_t units, const uint32_t* a,
                       int64_t a_stride, const uint32_t* b, int64_t b_stride, float* c, int64_t c_stride,
                       bool accumulate) {
    kernel->multiply(rows, columns, units, a, a_stride, b, b_stride, c, c_stride, accumulate);
  }
};
#endif

// ---- softmax ------------------------------------------------------------------------------------------------------
#if HWY_TARGET <= HWY_AVX3
// Lane i: the largest lane of x[i]. Pairs of vectors become one that holds as much of both, four times.
HWY_INLINE Floats max_lanes_of_16(Floats (&x)[16]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    x[i] = hn::Max(hn::InterleaveLower(kFloats, x[2 * i], x[2 * i + 1]),
                   hn::InterleaveUpper(kFloats, x[2 * i], x[2 * i + 1]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512d a = _mm512_castps_pd(x[2 * i].raw), b = _mm512_castps_pd(x[2 * i + 1].raw);
    x[i].raw = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  auto join = [](Floats a, Floats b) HWY_ATTR {
    return Floats{_mm512_max_ps(_mm512_shuffle_f32x4(a.raw, b.raw, 0x88), _mm512_shuffle_f32x4(a.raw, b.raw, 0xdd))};
  };
  return join(join(x[0], x[1]), join(x[2], x[3]));
}
#endif

// factors[j] = 1 / (1 - p) where key first_key + j is kept for this head and row, else 0; `words` is scratch.
inline void dropout_factors(const AttentionShape& shape, int64_t head, int64_t row, int64_t first_key, float* factors) {
  uint32_t words[kTileKeys + 8 + 4 * kLanes];
  uint64_t index = shape.first_dropped(head, row) + static_cast<uint64_t>(first_key);
  const uint32_t* bits = random_bits({shape.key.seed, shape.key.stream}, index, kTileKeys, words);
  float scale = 1.0f / (1.0f - shape.dropout);
  for (int64_t j = 0; j < kTileKeys; ++j) factors[j] = base::uniform_from_bits(bits[j]) >= shape.dropout ? scale : 0.0f;
}

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
