// The parts of a microkernel that differ only in their vectors: the register tile, and the plain loops that pack and
// finish what does not fill a vector. Included by one file per instruction set, each compiled with its own flags:
// everything here has internal linkage, so that no copy built for a newer CPU can stand in for an older one's.
#pragma once
#include "base/dtype.h"
#include "kernels/cpu/matmul/matmul_kernel.h"

namespace sinter::kernels::cpu {
namespace {

// How a panel of b stands in memory: Element, and load(p), a vector of units from there.
template <class V>
struct PanelOfUnits {
  using Element = uint32_t;
  static typename V::Vector load(const uint32_t* p) { return V::load(p); }
};

// R rows by V::kVectors vectors of sums in registers. V offers Vector, Sum, kLanes, kVectors, kRows, load(units),
// broadcast(unit), zero(), load_sum, store_sum and multiply_add(a, b, sum).
template <class V, int R, class Panel>
void multiply_rows(int64_t units, const uint32_t* a, const typename Panel::Element* b, float* tile, int64_t tile_stride,
                   bool continues, Ahead& shared_ahead) {
  // Without anything to ask for: the panel right behind this one.
  const bool is_told = shared_ahead.at != nullptr;
  const char* ahead = is_told ? shared_ahead.at : reinterpret_cast<const char*>(a + units * V::kRows);
  const int64_t bytes_per_unit = is_told ? shared_ahead.bytes_per_unit : V::kRows * kUnitBytes;
  if (is_told) shared_ahead.at += units * bytes_per_unit;
  typename V::Sum sums[R][V::kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V::kVectors; ++v) {
      sums[r][v] = continues ? V::load_sum(tile + r * tile_stride + v * V::kLanes) : V::zero();
    }
  }
#pragma GCC unroll 2
  for (int64_t u = 0; u < units; ++u) {
    typename V::Vector bs[V::kVectors];
    __builtin_prefetch(ahead, 0, 2);  // it lies in a cache that others share, or in none
    ahead += bytes_per_unit;
#pragma GCC unroll 8
    for (int v = 0; v < V::kVectors; ++v) bs[v] = Panel::load(b + v * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      typename V::Vector x = V::broadcast(a + r);
#pragma GCC unroll 8
      for (int v = 0; v < V::kVectors; ++v) sums[r][v] = V::multiply_add(x, bs[v], sums[r][v]);
    }
    a += V::kRows;
    b += V::kVectors * V::kLanes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V::kVectors; ++v) V::store_sum(tile + r * tile_stride + v * V::kLanes, sums[r][v]);
  }
}

template <class V, int R, class Panel>
void multiply_num_rows(const TileProduct& x, Ahead& ahead) {
  const auto* b = reinterpret_cast<const typename Panel::Element*>(x.b);
  multiply_rows<V, R, Panel>(x.units, x.a, b, x.tile, x.tile_stride, x.continues, ahead);
}

template <class V, class Panel = PanelOfUnits<V>>
void multiply_tile(const TileProduct& x, Ahead& ahead) {
  static_assert(V::kRows == 4 || V::kRows == 8);
  if constexpr (V::kRows == 8) {
    switch (x.num_rows) {
      case 8:
        return multiply_num_rows<V, 8, Panel>(x, ahead);
      case 7:
        return multiply_num_rows<V, 7, Panel>(x, ahead);
      case 6:
        return multiply_num_rows<V, 6, Panel>(x, ahead);
      case 5:
        return multiply_num_rows<V, 5, Panel>(x, ahead);
      default:
        break;
    }
  }
  switch (x.num_rows) {
    case 4:
      return multiply_num_rows<V, 4, Panel>(x, ahead);
    case 3:
      return multiply_num_rows<V, 3, Panel>(x, ahead);
    case 2:
      return multiply_num_rows<V, 2, Panel>(x, ahead);
    default:
      return multiply_num_rows<V, 1, Panel>(x, ahead);
  }
}

template <class V, class Bf16Panel, class F16Panel>
void multiply_narrow_tile(const TileProduct& x, base::DType dtype, Ahead& ahead) {
  dtype == base::DType::bf16 ? multiply_tile<V, Bf16Panel>(x, ahead) : multiply_tile<V, F16Panel>(x, ahead);
}

inline float read_float(const void* data, base::DType dtype, int64_t i) {
  switch (dtype) {
    case base::DType::bf16:
      return static_cast<float>(static_cast<const base::bf16*>(data)[i]);
    case base::DType::f16:
      return static_cast<float>(static_cast<const base::f16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

// Packs [first, first + count) lines of one f32 panel of kWidth lines, any source format. Lines past num_lines are
// zero.
template <int kWidth>
void pack_floats_plainly(const PackSource& source, const PackRange& range, uint32_t* panels) {
  for (int64_t line = 0; line < range.num_lines; line += kWidth) {
    float* panel = reinterpret_cast<float*>(panels + line / kWidth * range.panel_stride);
    int64_t width = range.num_lines - line < kWidth ? range.num_lines - line : kWidth;
    for (int64_t k = 0; k < range.num_k; ++k) {
      for (int64_t w = 0; w < kWidth; ++w) {
        int64_t at_line = range.first_line + line + w, at_k = range.first_k + k;
        int64_t at = source.k_is_contiguous ? at_line * source.stride + at_k : at_k * source.stride + at_line;
        panel[k * kWidth + w] = w < width ? read_float(source.data, source.dtype, at) : 0.0f;
      }
    }
  }
}

// The rest of a row of c from `first` on.
inline void finish_row_plainly(const TileOutput& out, int64_t row, int64_t first) {
  const float* tile = out.tile + row * out.tile_stride;
  for (int64_t j = first; j < out.columns; ++j) {
    int64_t at = row * out.c_stride + j;
    float value = out.alpha * tile[j];
    if (out.bias) value += read_float(out.bias, out.dtype, j);
    if (out.added) value += read_float(out.added, out.dtype, at);
    switch (out.dtype) {
      case base::DType::bf16:
        static_cast<base::bf16*>(out.c)[at] = base::bf16(value);
        break;
      case base::DType::f16:
        static_cast<base::f16*>(out.c)[at] = base::f16(value);
        break;
      default:
        static_cast<float*>(out.c)[at] = value;
    }
  }
}

// Sixteen sums side by side, whatever the vectors.
inline float sum_squares_plainly(const float* x, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int kSums = 16;
  float sums[kSums] = {};
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    int64_t j = 0;
    for (; j + kSums <= columns; j += kSums) {
      for (int i = 0; i < kSums; ++i) sums[i] += x[j + i] * x[j + i];
    }
    for (int i = 0; i < columns - j; ++i) sums[i] += x[j + i] * x[j + i];
  }
  for (int width = kSums / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

inline void do_nothing() {}

// Twelve independent chains of the multiply instruction, enough to fill two pipes of latency six.
template <class V>
double spin_registers(int64_t steps) {
  constexpr int kChains = 12;
  typename V::Sum sums[kChains];
  static const uint32_t ones[2 * V::kLanes] = {};
  typename V::Vector x = V::load(ones);
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) sums[c] = V::zero();
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      sums[c] = V::multiply_add(x, x, sums[c]);
      V::keep(sums[c]);
    }
  }
  float sink[V::kLanes];
  volatile float kept = 0;
#pragma GCC unroll 12
  for (int c = 0; c < kChains; ++c) {
    V::store_sum(sink, sums[c]);
    kept = kept + sink[0];
  }
  return static_cast<double>(steps) * kChains * V::kLanes * 2 * V::kElementsPerUnit;
}

}  // namespace
}  // namespace sinter::kernels::cpu
