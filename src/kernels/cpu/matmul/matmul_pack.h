// Packing panels, for any vector of 4-byte units. Included by one file per instruction set; internal linkage for the
// reason given in matmul_tile.h.
//
// The work goes by blocks of L lines by L units held in L vectors of L lanes. What the source gives and what the panel
// wants are each one of two views of such a block: a vector per line (its lanes run along K), or a vector per unit of K
// (its lanes are lines). When they differ the block is transposed in registers.
//
// A Reader reads one source format: kPerUnit elements to a unit, kBytes each; along_k(p, count) up to L units of one
// line from `count` elements; across(p, next, lines) one unit of K for up to L lines, `next` the same lines' following
// k, null when there is none. Its Block offers Vector, kLanes, zero(), transpose(), store(), store_low() and
// store_high() (halves).
#pragma once
#include "kernels/cpu/matmul/matmul_kernel.h"

namespace sinter::kernels::cpu {
namespace {

// Vectors of a block, by line when kByLine, else by unit. Lines and elements that are not there read as zero.
template <class Reader, bool kContiguous, bool kByLine>
inline void read_block(const PackSource& source, int64_t line, int64_t num_lines, int64_t k, int64_t num_k,
                       typename Reader::Block::Vector (&x)[Reader::Block::kLanes]) {
  using Block = typename Reader::Block;
  constexpr int kLanes = Block::kLanes;
  const char* data = static_cast<const char*>(source.data);
  int64_t step = source.stride * Reader::kBytes;
  if constexpr (kContiguous) {
    const char* p = data + line * step + k * Reader::kBytes;
    if (num_lines >= kLanes && num_k >= kLanes * Reader::kPerUnit) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        x[i] = Reader::along_k(p + i * step, kLanes * Reader::kPerUnit);
        __builtin_prefetch(p + i * step + 256, 0, 2);  // of many short streams, which the CPU does not follow by itself
      }
    } else {
      for (int i = 0; i < kLanes; ++i) x[i] = i < num_lines ? Reader::along_k(p + i * step, num_k) : Block::zero();
    }
  } else {
    const char* p = data + k * step + line * Reader::kBytes;
    for (int i = 0; i < kLanes; ++i, p += Reader::kPerUnit * step) {
      int64_t left = num_k - i * Reader::kPerUnit;
      for (int j = 0; j < Reader::kPerUnit; ++j) __builtin_prefetch(p + (kLanes * Reader::kPerUnit + j) * step, 0, 2);
      x[i] = left <= 0 || num_lines <= 0 ? Block::zero() : Reader::across(p, left > 1 ? p + step : nullptr, num_lines);
    }
  }
  if constexpr (kContiguous != kByLine) Block::transpose(x);
}

// Goes through all blocks of a range in the order in which the source lies in memory.
template <bool kContiguous, int kLineStep, int kKStep>
struct BlockWalk {
  int64_t num_lines, num_k;
  int64_t line = 0, k = 0;
  bool is_done() const { return line >= num_lines || k >= num_k; }
  void next() {
    int64_t &inner = kContiguous ? k : line, &outer = kContiguous ? line : k;
    inner += kContiguous ? kKStep : kLineStep;
    if (inner < (kContiguous ? num_k : num_lines)) return;
    inner = 0;
    outer += kContiguous ? kLineStep : kKStep;
  }
};

// Panels of kWidth lines, [unit][line]: a multiple of the block's lines, or half of them, when one block fills two
// panels.
template <int kWidth, class Reader, bool kContiguous>
void pack_units(const PackSource& source, const PackRange& range, uint32_t* panels) {
  using Block = typename Reader::Block;
  constexpr int kPerUnit = Reader::kPerUnit, kLanes = Block::kLanes;
  constexpr bool kIsHalf = kWidth < kLanes;
  constexpr int kStep = kIsHalf ? kLanes : kWidth;
  static_assert(kIsHalf ? 2 * kWidth == kLanes : kWidth % kLanes == 0);
  const int64_t units = (range.num_k + kPerUnit - 1) / kPerUnit;
  BlockWalk<kContiguous, kStep, kLanes * kPerUnit> at{range.num_lines, range.num_k};
  for (; !at.is_done(); at.next()) {
    const int64_t u = at.k / kPerUnit;
    uint32_t* panel = panels + at.line / kWidth * range.panel_stride;
    const int count = units - u < kLanes ? static_cast<int>(units - u) : kLanes;
    for (int w = 0; w < kStep; w += kLanes) {
      int64_t lines = range.num_lines - at.line - w;
      typename Block::Vector x[kLanes];
      read_block<Reader, kContiguous, false>(source, range.first_line + at.line + w, lines, range.first_k + at.k,
                                             range.num_k - at.k, x);
      if constexpr (kIsHalf) {
        uint32_t* to = panel + u * kWidth;
        for (int i = 0; i < count; ++i) Block::store_low(to + i * kWidth, x[i]);
        if (lines <= kWidth) continue;
        to += range.panel_stride;
        for (int i = 0; i < count; ++i) Block::store_high(to + i * kWidth, x[i]);
      } else {
        uint32_t* to = panel + u * kWidth + w;
        for (int i = 0; i < count; ++i) Block::store(to + i * kWidth, x[i]);
      }
    }
  }
}

template <int kWidth, class Reader>
void pack_from(const PackSource& source, const PackRange& range, uint32_t* panels) {
  return source.k_is_contiguous ? pack_units<kWidth, Reader, true>(source, range, panels)
                                : pack_units<kWidth, Reader, false>(source, range, panels);
}

// Panels of floats from any format.
template <int kWidth, class FromF32, class FromBf16, class FromF16>
void pack_floats(const PackSource& source, const PackRange& range, uint32_t* panels) {
  switch (source.dtype) {
    case base::DType::bf16:
      return pack_from<kWidth, FromBf16>(source, range, panels);
    case base::DType::f16:
      return pack_from<kWidth, FromF16>(source, range, panels);
    default:
      return pack_from<kWidth, FromF32>(source, range, panels);
  }
}

}  // namespace
}  // namespace sinter::kernels::cpu
