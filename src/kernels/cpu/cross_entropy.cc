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

// Adds a stretch of a row to its `largest` and to its `sum` (lanes) of exp(x - largest), in one pass over memory: block
// by block, the largest of a block from cache first, then its sum. Where `terms` is given, terms[i] becomes
// exp(x[i] - shifts[i / kBlock]) for the gradient to take up.
template <class T>
void add_exponentials(const T* x, size_t count, float* terms, float* shifts, float& largest, Floats& sum) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
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
    Floats running = sum;  // a copy: the sum itself would be written and read again beside every term
    if (terms) shifts[first / kBlock] = hn::GetLane(shift);
    const Floats shift_of_log2 = hn::Mul(shift, set(kLog2E));
    for_vectors(length, [&](size_t i, size_t n) HWY_ATTR {
      Floats v = load_n(block + i, n), e;
      if constexpr (std::is_same_v<T, bf16>) {
        e = exp2_nonpositive<true>(hn::MulSub(v, set(kLog2E), shift_of_log2));
      } else {
        e = exp_nonpositive(hn::Sub(v, shift));
      }
      if (terms) store_n(e, terms + first + i, n);
      if (n < kLanes) e = hn::IfThenElseZero(hn::FirstN(kFloats, n), e);
      running = hn::Add(running, e);
    });
    sum = running;
  }
}

// x = exp(x - log_sum) scale, from the terms of add_exponentials.
template <class T>
void write_softmax(T* x, size_t count, const float* terms, const float* shifts, float log_sum, float scale) {
  for (size_t first = 0; first < count; first += kBlock) {
    Floats factor = set(std::exp(shifts[first / kBlock] - log_sum) * scale);
    for_vectors(std::min(kBlock, count - first), [&](size_t i, size_t n) HWY_ATTR {
      store_n(hn::Mul(load_n(terms + first + i, n), factor), x + first + i, n);
    });
  }
}

size_t blocks_of(size_t count) { return (count + kBlock - 1) / kBlock; }

template <class T>
void cross_entropy_rows(const CrossEntropyArgs& args) {
  const size_t split = static_cast<size_t>(args.logits.size(-1));
  const size_t apart = args.last_logits ? static_cast<size_t>(args.last_logits.size(-1)) : 0, vocab = split + apart;
  const float whole_scale = args.write_gradient ? args.scale.data<float>()[0] : 0.0f;
  const float* weights = args.weights.data<float>();
  for_each_row(args.logits.rows(), static_cast<int64_t>(vocab), [&](int64_t r) {
    T* x = args.logits.data<T>() + static_cast<size_t>(r) * split;
    T* last = apart ? args.last_logits.data<T>() + static_cast<size_t>(r) * apart : nullptr;
    int64_t target = args.targets.data<int32_t>()[r];
    if (target < 0) {
      args.losses.data<float>()[r] = 0.0f;
      if (args.write_gradient) std::fill(x, x + split, T{});
      if (args.write_gradient && apart) std::fill(last, last + apart, T{});
      return;
    }
    SINTER_CHECK(target < static_cast<int64_t>(vocab),
                 "[cross_entropy] target {} in row {}; the vocabulary has {} tokens", target, r, vocab);
    static thread_local AlignedBuffer kept;
    float *terms = nullptr, *last_terms = nullptr, *shifts = nullptr, *last_shifts = nullptr;
    if (args.write_gradient) {
      terms = kept.reserve_array<float>(static_cast<int64_t>(vocab + blocks_of(split) + blocks_of(apart)));
      last_terms = terms + split;
      shifts = last_terms + apart;
      last_shifts = shifts + blocks_of(split);
    }
    float largest = -std::numeric_limits<float>::infinity();
    Floats sum = zero();
    add_exponentials(x, split, terms, shifts, largest, sum);
    if (apart) add_exponentials(last, apart, last_terms, last_shifts, largest, sum);
    T* hit = static_cast<size_t>(target) < split ? x + target : last + (static_cast<size_t>(target) - split);
    const float log_sum = largest + std::log(sum_lanes(sum)), hit_logit = static_cast<float>(*hit);
    const float loss = log_sum - hit_logit, scale = weights ? whole_scale * weights[r] : whole_scale;
    args.losses.data<float>()[r] = weights ? loss * weights[r] : loss;
    if (!args.write_gradient) return;
    write_softmax(x, split, terms, shifts, log_sum, scale);
    if (apart) write_softmax(last, apart, last_terms, last_shifts, log_sum, scale);
    *hit = static_cast<T>((std::exp(hit_logit - log_sum) - 1.0f) * scale);
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
