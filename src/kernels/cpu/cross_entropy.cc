// Softmax cross entropy with the gradient in place: the logits are read twice and written once.
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

// log(sum(exp(x))) in one pass over memory: block by block, the largest of a block from cache first, then its sum.
template <class T>
float log_sum_exp(const T* x, size_t count) {
  constexpr size_t kBlock = 1024;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float largest = kLowest;
  Floats sum = zero();
  for (size_t first = 0; first < count; first += kBlock) {
    size_t length = std::min(kBlock, count - first);
    const T* block = x + first;
    Floats top = set(kLowest);
    for_vectors(length, [&](size_t i, size_t n) HWY_ATTR {
      Floats v = load_n(block + i, n);
      if (n < kLanes) v = hn::IfThenElse(hn::FirstN(kFloats, n), v, set(kLowest));
      top = hn::Max(top, v);
    });
    float block_largest = max_lanes(top);
    if (block_largest > largest) {
      if (largest > kLowest) sum = hn::Mul(sum, set(std::exp(largest - block_largest)));
      largest = block_largest;
    }
    if (largest == kLowest) continue;  // only -inf (or NaN) so far
    Floats shift = set(largest);
    for_vectors(length, [&](size_t i, size_t n) HWY_ATTR {
      Floats e = exp_nonpositive(hn::Sub(load_n(block + i, n), shift));
      if (n < kLanes) e = hn::IfThenElseZero(hn::FirstN(kFloats, n), e);
      sum = hn::Add(sum, e);
    });
  }
  return largest + std::log(sum_lanes(sum));
}

template <class T>
void cross_entropy_rows(const CrossEntropyArgs& args) {
  size_t vocab = static_cast<size_t>(args.logits.size(-1));
  float scale = args.write_gradient ? args.scale.data<float>()[0] : 0.0f;
  for_each_row(args.logits.rows(), args.logits.size(-1), [&](int64_t r) {
    T* x = args.logits.data<T>() + static_cast<size_t>(r) * vocab;
    int64_t target = args.targets.data<int32_t>()[r];
    if (target < 0) {
      args.losses.data<float>()[r] = 0.0f;
      if (args.write_gradient) std::fill(x, x + vocab, T{});
      return;
    }
    SINTER_CHECK(target < static_cast<int64_t>(vocab),
                 "[cross_entropy] target {} in row {}; the vocabulary has {} tokens", target, r, vocab);
    float log_sum = log_sum_exp(x, vocab), hit = static_cast<float>(x[target]);
    args.losses.data<float>()[r] = log_sum - hit;
    if (!args.write_gradient) return;
    Floats shift = set(log_sum), factor = set(scale);
    for_vectors(vocab, [&](size_t i, size_t n) HWY_ATTR {
      store_n(hn::Mul(exp_nonpositive(hn::Sub(load_n(x + i, n), shift)), factor), x + i, n);
    });
    x[target] = static_cast<T>((std::exp(hit - log_sum) - 1.0f) * scale);
  });
}

void cross_entropy_any(const CrossEntropyArgs& args) {
  with_format(args.logits.dtype(), "cross_entropy", [&]<class T>(T) { cross_entropy_rows<T>(args); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(cross_entropy_any);
void cross_entropy(Stream&, const CrossEntropyArgs& args) { HWY_DYNAMIC_DISPATCH(cross_entropy_any)(args); }

}  // namespace sinter::kernels::cpu
#endif
