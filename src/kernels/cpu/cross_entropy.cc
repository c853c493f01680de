// Softmax cross entropy with the gradient in place: the logits are read and written once, every exponential taken once;
// the terms of a row wait in a cache.
#include <cmath>
#include <limits>

#include "kernels/cpu/aligned_buffer.h"
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

constexpr size_t kBlock = 1024;

// log(sum(exp(x))) in one pass over memory: block by block, the largest of a block from cache first, then its sum.
// Where `terms` is given, terms[i] becomes exp(x[i] - shifts[i / kBlock]) for the gradient to take up.
template <class T>
float log_sum_exp(const T* x, size_t count, float* terms, float* shifts) {
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
    // Only -inf (or NaN) so far: terms of 0 (or NaN), whatever the shift.
    Floats shift = set(largest == kLowest ? 0.0f : largest);
    if (terms) shifts[first / kBlock] = hn::GetLane(shift);
    for_vectors(length, [&](size_t i, size_t n) HWY_ATTR {
      Floats e = exp_nonpositive(hn::Sub(load_n(block + i, n), shift));
      if (terms) store_n(e, terms + first + i, n);
      if (n < kLanes) e = hn::IfThenElseZero(hn::FirstN(kFloats, n), e);
      sum = hn::Add(sum, e);
    });
  }
  return largest + std::log(sum_lanes(sum));
}

// x = exp(x - log_sum) scale, from the terms of log_sum_exp.
template <class T>
void write_softmax(T* x, size_t count, const float* terms, const float* shifts, float log_sum, float scale) {
  for (size_t first = 0; first < count; first += kBlock) {
    Floats factor = set(std::exp(shifts[first / kBlock] - log_sum) * scale);
    for_vectors(std::min(kBlock, count - first), [&](size_t i, size_t n) HWY_ATTR {
      store_n(hn::Mul(load_n(terms + first + i, n), factor), x + first + i, n);
    });
  }
}

template <class T>
void cross_entropy_rows(const CrossEntropyArgs& args) {
  size_t vocab = static_cast<size_t>(args.logits.size(-1)), num_blocks = (vocab + kBlock - 1) / kBlock;
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
    static thread_local AlignedBuffer kept;
    float* terms = args.write_gradient ? kept.reserve_array<float>(static_cast<int64_t>(vocab + num_blocks)) : nullptr;
    float* shifts = terms ? terms + vocab : nullptr;
    float log_sum = log_sum_exp(x, vocab, terms, shifts), hit = static_cast<float>(x[target]);
    args.losses.data<float>()[r] = log_sum - hit;
    if (!args.write_gradient) return;
    write_softmax(x, vocab, terms, shifts, log_sum, scale);
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
