// Choosing code by a tensor's number format, and pieces of work for threads.
#pragma once
#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "base/threads.h"
#include "core/tensor.h"

namespace sinter::kernels::cpu {

// Whether this CPU rounds floats to bf16 by an instruction of its own (AVX512-BF16). Set before the first kernel runs.
inline bool has_bf16_rounding = false;

// Calls f with a value-initialised float, bf16 or f16: f([]<class T>(T)).
template <class F>
auto with_format(base::DType dtype, const char* kernel, F&& f) {
  switch (dtype) {
    case base::DType::f32:
      return f(float{});
    case base::DType::bf16:
      return f(base::bf16{});
    case base::DType::f16:
      return f(base::f16{});
    default:
      base::fail("[{}] number format {}; expected f32, bf16 or f16", kernel, base::dtype_name(dtype));
  }
}

// Rows in a piece of parallel_for: some 16 thousand elements, enough to hide the cost of handing it out. Rows are
// independent wherever this is used, so the number changes no result.
inline int64_t rows_per_piece(int64_t row_elements) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(row_elements, 1));
}

// Calls body(row) for every row, on all threads.
template <class Body>
void for_each_row(int64_t rows, int64_t row_elements, Body&& body) {
  base::parallel_for(rows, rows_per_piece(row_elements), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

// Asks for `count` elements that will be read soon.
template <class T>
inline void ask_for(const T* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(p + i);
}

// How sums over rows are cut: at most 64 parts of at least 16 rows, fixed by the number of rows alone, so that the
// result is the same for any number of threads.
struct RowParts {
  int64_t rows, per_part, count;
  explicit RowParts(int64_t total) : rows(total), per_part(std::max<int64_t>(16, (total + 63) / 64)) {
    count = (total + per_part - 1) / per_part;
  }
  int64_t begin(int64_t part) const { return part * per_part; }
  int64_t end(int64_t part) const { return std::min(rows, (part + 1) * per_part); }
};

}  // namespace sinter::kernels::cpu
