// What kernel tests that are no cases share: formats with their tolerances, random tensors, comparisons. For tests
// only.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cases/tolerances.h"
#include "kernels/table.h"

namespace sinter::kernels::testing {

using base::DType;
using core::Shape;

// A result is right when |actual - expected| <= tolerance * (|expected| + rms of all expected).
struct Format {
  DType dtype;
  double tolerance = cases::limits_of(cases::Result::rounded, dtype).element;
};
inline const Format kFormats[] = {{DType::f32}, {DType::bf16}, {DType::f16}};

inline core::Allocator& allocator() { return core::runtime({}).allocator(); }
inline core::Stream& stream() { return core::runtime({}).stream(); }

inline Tensor empty_tensor(Shape shape, DType dtype) {
  Tensor t(allocator(), shape, dtype);
  std::memset(t.raw(), 0x7f, t.bytes());  // large garbage: kernels must overwrite
  return t;
}
inline Tensor zero_tensor(Shape shape, DType dtype) {
  Tensor t(allocator(), shape, dtype);
  std::memset(t.raw(), 0, t.bytes());
  return t;
}
// Normal numbers of deviation `scale`, rounded to the format.
inline Tensor random_tensor(Shape shape, DType dtype, uint64_t seed, float scale = 1.0f) {
  base::CounterRng rng{seed, 77};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale * rng.normal(i);
  Tensor t(allocator(), shape, dtype);
  base::convert_elements(DType::f32, values.data(), dtype, t.raw(), values.size());
  return t;
}
inline Tensor clone(const Tensor& x) {
  if (!x) return {};
  Tensor t(allocator(), x.shape(), x.dtype());
  std::memcpy(t.raw(), x.raw(), x.bytes());
  return t;
}
inline Tensor int_tensor(const std::vector<int32_t>& values, Shape shape = {}) {
  return core::make_tensor(allocator(), shape.rank() ? shape : Shape{static_cast<int64_t>(values.size())}, values);
}

inline void expect_close(const Tensor& actual, const Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.num_elements(), expected.num_elements()) << what;
  if (actual.dtype() == DType::i32) {
    EXPECT_EQ(std::memcmp(actual.raw(), expected.raw(), actual.bytes()), 0) << what << ": integers differ";
    return;
  }
  std::vector<float> a = core::to_host_floats(actual), e = core::to_host_floats(expected);
  double squares = 0;
  for (float v : e) squares += std::isfinite(v) ? static_cast<double>(v) * v : 0.0;
  double rms = std::sqrt(squares / static_cast<double>(std::max<size_t>(e.size(), 1)));
  size_t worst = 0;
  double worst_error = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    if (a[i] == e[i] || (std::isnan(a[i]) && std::isnan(e[i]))) continue;
    double error = std::abs(static_cast<double>(a[i]) - e[i]) / (std::abs(e[i]) + rms);
    if (!(error <= worst_error)) worst_error = error, worst = i;
  }
  EXPECT_LE(worst_error, tolerance) << what << ": element " << worst << " is " << a[worst] << ", expected " << e[worst];
}

inline bool bit_equal(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

}  // namespace sinter::kernels::testing
