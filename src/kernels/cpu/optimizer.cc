// AdamW and SGD, one pass over memory each. Formats other than f32 pass through small buffers that stay in cache.
#include <cmath>

#include "base/cpu.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/optimizer.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/philox-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

constexpr size_t kChunk = 1024;  // elements in a buffer
constexpr size_t kAhead = 512;   // elements between what is worked on and what is fetched

// Elements handed to a thread at a time: long stretches, since every stream starts slowly, but enough of them for all.
int64_t piece_of(int64_t count) {
  constexpr int64_t kShortest = 16 * kChunk, kLongest = 256 * kChunk;
  const int64_t share = count / (8 * base::num_threads()) / static_cast<int64_t>(kChunk) * static_cast<int64_t>(kChunk);
  return std::clamp(share, kShortest, kLongest);
}

// A chunk of a tensor as floats: the tensor's own memory when it is f32, else a converted copy.
struct Chunk {
  HWY_ALIGN float buffer[kChunk];
  float* floats = nullptr;

  void open(const Tensor& t, int64_t first, size_t count) {
    if (t.dtype() == base::DType::f32) {
      floats = t.data<float>() + first;
      return;
    }
    floats = buffer;
    with_format(t.dtype(), "optimizer", [&]<class T>(T) {
      const T* x = t.data<T>() + first;
      for_vectors(count, [&](size_t i, size_t n) HWY_ATTR { store_n(load_n(x + i, n), buffer + i, n); });
    });
  }
  // Room for results; close() rounds them into the tensor.
  void close(const Tensor& t, int64_t first, size_t count) {
    if (floats != buffer) return;
    with_format(t.dtype(), "optimizer", [&]<class T>(T) {
      T* x = t.data<T>() + first;
      for_vectors(count, [&](size_t i, size_t n) HWY_ATTR { store_n(load_n(buffer + i, n), x + i, n); });
    });
  }
};

template <class T>
void round_floats(const float* values, size_t count, T* y) {
  for_vectors(count, [&](size_t i, size_t n) HWY_ATTR { store_n(load_n(values + i, n), y + i, n); });
}

// Where a chunk of the weights' bf16 copy goes as soon as it is computed, past the caches, so that it is not read
// first; hwy::FlushStream() makes it seen by others. Null: the copy is in another format, or small enough to stay in a
// cache.
bf16* streamed_copy(const Tensor& copy, int64_t first, size_t count) {
  constexpr size_t kStreamedBytes = size_t{32} << 20, kLine = 64;
  if (kIsScalar || !copy || copy.dtype() != base::DType::bf16 || copy.bytes() < kStreamedBytes) return nullptr;
  bf16* y = copy.data<bf16>() + first;
  return count % (kLine / sizeof(bf16)) == 0 && reinterpret_cast<uintptr_t>(y) % kLine == 0 ? y : nullptr;
}

void write_copy(const Tensor& copy, int64_t first, const float* values, size_t count) {
  if (!copy) return;
  with_format(copy.dtype(), "optimizer", [&]<class T>(T) { round_floats(values, count, copy.data<T>() + first); });
}

// Replaces floats by the bf16 above or below them: adds 16 random bits, then truncates. `shift` picks the half word.
void round_stochastic(float* values, const uint32_t* bits, int shift, size_t count) {
  for_vectors(count, [&](size_t i, size_t n) HWY_ATTR {
    Floats v = load_n(values + i, n);
    auto u = hn::BitCast(kUints, v), word = hn::LoadU(kUints, bits + i);
    auto noise = shift ? hn::ShiftRight<16>(word) : hn::And(word, hn::Set(kUints, 0xffff));
    auto rounded = hn::And(hn::Add(u, noise), hn::Set(kUints, 0xffff0000u));
    store_n(hn::IfThenElse(hn::IsFinite(v), hn::BitCast(kFloats, rounded), v), values + i, n);
  });
}

// factors: of the gradient, 1 / (1 - beta1^step), 1 / sqrt(1 - beta2^step). `streamed`: see streamed_copy.
template <bool kFetches>
HWY_INLINE void adamw_chunk(const AdamwArgs& args, const float* factors, float* p, const float* grad, float* m,
                            float* v, size_t count, bf16* streamed) {
  Floats beta1 = set(args.beta1), beta2 = set(args.beta2), rest1 = set(1.0f - args.beta1),
         rest2 = set(1.0f - args.beta2);
  Floats scale = set(factors[0]), c1 = set(factors[1]), c2 = set(factors[2]);
  Floats lr = set(args.lr), eps = set(args.eps), decay = set(args.weight_decay);
  auto update = [&](size_t i, size_t n) HWY_ATTR {
    if constexpr (kFetches) {
      for (const float* stream : std::initializer_list<const float*>{grad, m, v, p}) hwy::Prefetch(stream + i + kAhead);
    }
    Floats g = hn::Mul(load_n(grad + i, n), scale);
    Floats new_m = hn::MulAdd(beta1, load_n(m + i, n), hn::Mul(rest1, g));
    Floats new_v = hn::MulAdd(beta2, load_n(v + i, n), hn::Mul(rest2, hn::Mul(g, g)));
    Floats step = hn::Div(hn::Mul(new_m, c1), hn::MulAdd(hn::Sqrt(new_v), c2, eps));
    Floats old = load_n(p + i, n);
    Floats updated = hn::NegMulAdd(lr, hn::MulAdd(decay, old, step), old);
    store_n(updated, p + i, n);
    store_n(new_m, m + i, n);
    store_n(new_v, v + i, n);
    return updated;
  };
  if (!streamed) return for_vectors(count, [&](size_t i, size_t n) HWY_ATTR { update(i, n); });
  for (size_t i = 0; i < count; i += 2 * kLanes) {
    Floats low = update(i, kLanes), high = update(i + kLanes, kLanes);
    stream_pair(low, high, streamed + i);
  }
}

void adamw_any(const AdamwArgs& args, const float* factors) {
  base::CounterRng rng{args.key.seed, args.key.stream};
  bool rounds_m = args.m.dtype() == base::DType::bf16, rounds_v = args.v.dtype() == base::DType::bf16;
  // Four streams at once are more than the prefetchers of the CPUs with tiles keep up with: 15 % faster there by asking
  // ahead, 20 % slower on a Zen 4.
  const bool fetches = base::cpu_features().amx_bf16;
  base::parallel_for(args.master.num_elements(), piece_of(args.master.num_elements()), [&](int64_t begin, int64_t end) {
    Chunk grad, m, v;
    HWY_ALIGN uint32_t words[kChunk + 8 + 4 * kLanes];
    for (int64_t first = begin; first < end; first += kChunk) {
      size_t count = static_cast<size_t>(std::min<int64_t>(kChunk, end - first));
      float* p = args.master.data<float>() + first;
      grad.open(args.grad, first, count);
      m.open(args.m, first, count);
      v.open(args.v, first, count);
      auto update = fetches ? adamw_chunk<true> : adamw_chunk<false>;
      bf16* streamed = streamed_copy(args.copy, first, count);
      update(args, factors, p, grad.floats, m.floats, v.floats, count, streamed);
      if (rounds_m || rounds_v) {
        const uint32_t* bits = random_bits(rng, static_cast<uint64_t>(first), count, words);
        if (rounds_m) round_stochastic(m.floats, bits, 16, count);
        if (rounds_v) round_stochastic(v.floats, bits, 0, count);
      }
      m.close(args.m, first, count);
      v.close(args.v, first, count);
      if (!streamed) write_copy(args.copy, first, p, count);
    }
    hwy::FlushStream();
  });
}

void muon_momentum_any(const MuonMomentumArgs& args, float grad_factor) {
  base::CounterRng rng{args.key.seed, args.key.stream};
  const bool rounds = args.momentum.dtype() == base::DType::bf16;
  Floats scale = set(grad_factor), mu = set(args.mu), rest = set(1.0f - args.mu);
  base::parallel_for(args.grad.num_elements(), piece_of(args.grad.num_elements()), [&](int64_t begin, int64_t end) {
    Chunk grad, momentum, direction;
    HWY_ALIGN uint32_t words[kChunk + 8 + 4 * kLanes];
    for (int64_t first = begin; first < end; first += kChunk) {
      size_t count = static_cast<size_t>(std::min<int64_t>(kChunk, end - first));
      grad.open(args.grad, first, count);
      momentum.open(args.momentum, first, count);
      for_vectors(count, [&](size_t i, size_t n) HWY_ATTR {
        Floats g = hn::Mul(rest, hn::Mul(scale, load_n(grad.floats + i, n)));
        Floats b = hn::MulAdd(mu, load_n(momentum.floats + i, n), g);
        store_n(b, momentum.floats + i, n);
        store_n(hn::MulAdd(mu, b, g), direction.buffer + i, n);
      });
      with_format(args.direction.dtype(), "optimizer",
                  [&]<class T>(T) { round_floats(direction.buffer, count, args.direction.data<T>() + first); });
      if (rounds) {
        round_stochastic(momentum.floats, random_bits(rng, static_cast<uint64_t>(first), count, words), 16, count);
      }
      momentum.close(args.momentum, first, count);
    }
  });
}

void sgd_any(const SgdArgs& args, float grad_scale) {
  Floats scale = set(grad_scale), lr = set(args.lr), momentum = set(args.momentum), decay = set(args.weight_decay);
  base::parallel_for(args.master.num_elements(), piece_of(args.master.num_elements()), [&](int64_t begin, int64_t end) {
    Chunk grad, velocity;
    for (int64_t first = begin; first < end; first += kChunk) {
      size_t count = static_cast<size_t>(std::min<int64_t>(kChunk, end - first));
      float* p = args.master.data<float>() + first;
      grad.open(args.grad, first, count);
      if (args.velocity) velocity.open(args.velocity, first, count);
      for_vectors(count, [&](size_t i, size_t n) HWY_ATTR {
        Floats old = load_n(p + i, n);
        Floats step = hn::MulAdd(load_n(grad.floats + i, n), scale, hn::Mul(decay, old));
        if (args.velocity) {
          step = hn::MulAdd(momentum, load_n(velocity.floats + i, n), step);
          store_n(step, velocity.floats + i, n);
        }
        store_n(hn::NegMulAdd(lr, step, old), p + i, n);
      });
      if (args.velocity) velocity.close(args.velocity, first, count);
      write_copy(args.copy, first, p, count);
    }
    hwy::FlushStream();
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(adamw_any);
HWY_EXPORT(sgd_any);
HWY_EXPORT(muon_momentum_any);

void adamw(Stream&, const AdamwArgs& args) {
  const float* control = args.control.data<float>();
  if (control[1] == 0) return;
  double correction1 = 1.0 - std::pow(static_cast<double>(args.beta1), args.step);
  double correction2 = 1.0 - std::pow(static_cast<double>(args.beta2), args.step);
  float factors[3] = {control[0], static_cast<float>(1.0 / correction1),
                      static_cast<float>(1.0 / std::sqrt(correction2))};
  if (args.control.num_elements() == kControlSize) {
    factors[1] = control[kControlCorrection1];
    factors[2] = control[kControlCorrection2];
  }
  HWY_DYNAMIC_DISPATCH(adamw_any)(args, factors);
}

void sgd(Stream&, const SgdArgs& args) {
  const float* control = args.control.data<float>();
  if (control[1] == 0) return;
  HWY_DYNAMIC_DISPATCH(sgd_any)(args, control[0]);
}

void muon_momentum(Stream&, const MuonMomentumArgs& args) {
  const float* control = args.control.data<float>();
  if (control[1] == 0) return;
  HWY_DYNAMIC_DISPATCH(muon_momentum_any)(args, control[0]);
}

void normalize(Stream& stream, const NormalizeArgs& args) {
  const Tensor rows = args.x.reshape({args.x.rows(), args.x.size(-1)});
  for (int64_t r = 0; r < rows.size(0); ++r) {
    Tensor row = rows.slice(r, 1);
    float squares = 0;
    sum_squares(stream, {.x = row, .total = Tensor::view_of(&squares, {1}, base::DType::f32, args.x.device())});
    axpby(stream, {.x = row, .y = row, .alpha = 1.0f / (std::sqrt(squares) + args.eps)});
  }
}

}  // namespace sinter::kernels::cpu
#endif
