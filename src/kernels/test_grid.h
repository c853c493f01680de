// What kernel tests share: the grid of formats with their tolerances, random tensors, comparisons. For tests only.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/threads.h"
#include "core/tensor.h"
#include "kernels/table.h"

namespace sinter::kernels::testing {

using base::DType;
using core::Shape;

// The one grid: a result is right when |actual - expected| <= tolerance * (|expected| + rms of all expected).
struct Format {
  DType dtype;
  double tolerance;
};
inline constexpr Format kFormats[] = {{DType::f32, 1e-5}, {DType::bf16, 1.2e-2}, {DType::f16, 1.5e-3}};
inline constexpr int64_t kOddSizes[] = {1, 3, 7, 17, 63, 65, 130};

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

// Runs one call on a table and returns its outputs; must build fresh outputs each time.
using Run = std::function<std::vector<Tensor>(const KernelTable&)>;

// The CPU table against the reference, then against itself with 1, 2 and 3 threads bit for bit.
inline void check_against_reference(const Run& run, double tolerance, const std::string& what) {
  int threads = base::num_threads();
  std::vector<Tensor> expected = run(*reference_table());
  base::set_num_threads(1);
  std::vector<Tensor> one = run(*cpu_table());
  ASSERT_EQ(one.size(), expected.size());
  for (size_t i = 0; i < one.size(); ++i) {
    expect_close(one[i], expected[i], tolerance, what + ", output " + std::to_string(i));
  }
  for (int count : {2, 3}) {
    base::set_num_threads(count);
    std::vector<Tensor> more = run(*cpu_table());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(bit_equal(one[i], more[i])) << what << ", output " << i << " differs with " << count << " threads";
    }
  }
  base::set_num_threads(threads);
}

}  // namespace sinter::kernels::testing
