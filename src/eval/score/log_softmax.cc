#include "eval/score/log_softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/clones.h"

namespace sinter::eval {
namespace {

constexpr size_t kBlock = 512;  // summed in float before it joins the sum in double

SINTER_CLONES float max_of(const float* x, size_t count) {
  float m = -INFINITY;
#pragma omp simd reduction(max : m)
  for (size_t i = 0; i < count; ++i) m = std::max(m, x[i]);
  return m;
}

// exp(x - shift) summed; x <= shift. 2^k by the exponent's bits, the rest by a polynomial (relative error 2e-7).
SINTER_CLONES float sum_exp(const float* x, size_t count, float shift) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) {
    const float z = std::max((x[i] - shift) * 1.44269504f, -126.0f);
    const auto k = static_cast<int32_t>(z - 0.5f);  // towards zero, z <= 0: nearest
    const float f = (z - static_cast<float>(k)) * 0.693147181f;
    float p = 1.0f / 720;
    p = p * f + 1.0f / 120;
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    sum += p * std::bit_cast<float>((k + 127) << 23);
  }
  return sum;
}

}  // namespace

LogitRow read_logits(const float* logits, size_t count) {
  LogitRow row;
  row.max = max_of(logits, count);
  double sum = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    sum += sum_exp(logits + begin, std::min(kBlock, count - begin), row.max);
  }
  row.log_sum = row.max + std::log(sum);
  return row;
}

size_t find_max(const float* logits, size_t count, float max) {
  return static_cast<size_t>(std::find(logits, logits + count, max) - logits);
}

}  // namespace sinter::eval
