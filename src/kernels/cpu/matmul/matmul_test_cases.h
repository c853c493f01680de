// What the tests of matrix products share: random factors, the comparison with the reference, and a fixture that runs
// every test at each level of this CPU.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "base/threads.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::kernels::matmul_test {

using base::DType;
using base::Shape;
using cpu::MatmulIsa;

inline core::Allocator& allocator() { return core::runtime({}).allocator(); }

// Values in (-1, 1), small multiples of 1/64 mixed in so that 16-bit formats round some and hold others.
inline Tensor random_tensor(Shape shape, DType dtype, uint64_t seed) {
  Tensor t(allocator(), shape, dtype);
  base::CounterRng rng{seed, 7};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = 2 * rng.uniform(i) - 1;
  if (!values.empty()) base::convert_elements(DType::f32, values.data(), dtype, t.raw(), values.size());
  return t;
}

inline Tensor copy_of(const Tensor& t) {
  Tensor copy(allocator(), t.shape(), t.dtype());
  std::memcpy(copy.raw(), t.raw(), t.bytes());
  return copy;
}

inline void run(const MatmulArgs& args) { cpu::matmul(core::runtime({}).stream(), args); }

// The largest difference from the reference, counted in what rounding explains: 1 is the limit.
inline double excess_error(const MatmulArgs& args, int64_t k) {
  MatmulArgs expected = args;
  expected.c = copy_of(args.c);
  expected.b.derived = nullptr;
  run(args);
  reference_table()->matmul(core::runtime({}).stream(), expected);
  std::vector<float> ours = core::to_host_floats(args.c), theirs = core::to_host_floats(expected.c);
  // A chain of K sums of products below 1 in size wanders by about K * 1e-8; four times that, and room for short ones.
  double limit = (2e-6 + 4e-8 * static_cast<double>(k)) * (1 + std::fabs(args.alpha));
  double relative = args.c.dtype() == DType::bf16 ? 1.0 / 128 : args.c.dtype() == DType::f16 ? 1.0 / 1024 : 1e-6;
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    double difference = std::fabs(static_cast<double>(ours[i]) - theirs[i]);
    worst = std::max(worst, difference / (limit + relative * std::fabs(theirs[i])));
    if (!std::isfinite(ours[i])) return INFINITY;
  }
  return worst;
}

struct Case {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = true;
  DType dtype = DType::f32, c_dtype = DType::f32;
};

inline MatmulArgs make_args(const Case& c) {
  MatmulArgs args;
  args.a = random_tensor(c.transpose_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, c.dtype, 1);
  args.b.data = random_tensor(c.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, c.dtype, 2);
  args.c = random_tensor({c.m, c.n}, c.c_dtype, 3);
  args.transpose_a = c.transpose_a;
  args.transpose_b = c.transpose_b;
  return args;
}

inline constexpr std::pair<DType, DType> kFormats[] = {{DType::f32, DType::f32},
                                                       {DType::bf16, DType::bf16},
                                                       {DType::bf16, DType::f32},
                                                       {DType::f16, DType::f16},
                                                       {DType::f16, DType::f32}};

// Every test runs at each level of this CPU, and leaves the best one set.
class MatmulTest : public testing::TestWithParam<MatmulIsa> {
 protected:
  void SetUp() override {
    if (!cpu::can_run(GetParam())) GTEST_SKIP() << "this CPU has no " << cpu::matmul_isa_name(GetParam());
    best_ = cpu::matmul_isa();
    threads_ = base::num_threads();
    cpu::set_matmul_isa(GetParam());
  }
  void TearDown() override {
    if (threads_ == 0) return;
    cpu::set_matmul_isa(best_);
    base::set_num_threads(threads_);
  }

  // Whether numbers are multiplied as sums of three bf16, not as chains of f32.
  static bool has_parts(DType dtype) { return dtype == DType::f32 && GetParam() == MatmulIsa::amx; }

 private:
  MatmulIsa best_ = MatmulIsa::portable;
  int threads_ = 0;
};

}  // namespace sinter::kernels::matmul_test
