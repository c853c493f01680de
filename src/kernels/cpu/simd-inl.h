// Vector helpers for the Highway kernels, compiled once per target: loads and stores of f32, bf16 and f16 as floats,
// exponentials and their relatives. Not a normal header: see Highway on *-inl.h.
#if defined(SINTER_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SINTER_KERNELS_CPU_SIMD_INL_H_
#undef SINTER_KERNELS_CPU_SIMD_INL_H_
#else
#define SINTER_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstring>
#include <type_traits>

#include "base/dtype.h"
#include "hwy/highway.h"
#include "kernels/cpu/formats.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using base::bf16;
using base::f16;
using FloatTag = hn::ScalableTag<float>;
using UintTag = hn::RebindToUnsigned<FloatTag>;
using IntTag = hn::RebindToSigned<FloatTag>;
using Floats = hn::Vec<FloatTag>;
inline constexpr FloatTag kFloats;
inline constexpr UintTag kUints;
inline constexpr IntTag kInts;
inline constexpr size_t kLanes = hn::MaxLanes(FloatTag());
inline constexpr bool kIsScalar = kLanes == 1;

HWY_INLINE Floats set(float value) { return hn::Set(kFloats, value); }
HWY_INLINE Floats zero() { return hn::Zero(kFloats); }

// ---- a whole vector from and to memory -----------------------------------------------------------------------------
HWY_INLINE Floats load(const float* p) { return hn::LoadU(kFloats, p); }
HWY_INLINE Floats load(const bf16* p) {
  const hn::Rebind<uint16_t, FloatTag> tag;
  auto bits = hn::PromoteTo(kUints, hn::LoadU(tag, reinterpret_cast<const uint16_t*>(p)));
  return hn::BitCast(kFloats, hn::ShiftLeft<16>(bits));
}
HWY_INLINE Floats load(const f16* p) {
  if constexpr (kIsScalar) {
    return set(static_cast<float>(*p));
  } else {
    const hn::Rebind<hwy::float16_t, FloatTag> tag;
    return hn::PromoteTo(kFloats, hn::LoadU(tag, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}

// The bits of a bf16, rounded to nearest even, NaN kept, in the low half of each lane.
HWY_INLINE hn::Vec<UintTag> bf16_bits(Floats v) {
  auto u = hn::BitCast(kUints, v);
  auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(kUints, 1));
  auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(kUints, 0x7fff)), odd));
  auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(kUints, 0x40));
  return hn::IfThenElse(hn::RebindMask(kUints, hn::IsNaN(v)), quiet, rounded);
}

HWY_INLINE void store(Floats v, float* p) { hn::StoreU(v, kFloats, p); }
HWY_INLINE void store_exactly(Floats v, bf16* p) {
  const hn::Rebind<uint16_t, FloatTag> tag;
  hn::StoreU(hn::DemoteTo(tag, hn::BitCast(kInts, bf16_bits(v))), tag, reinterpret_cast<uint16_t*>(p));
}
// Where the CPU has an instruction for it (two operations instead of eleven), values below 2^-126 become 0. Written as
// asm because this code runs on CPUs with AVX-512 that do not have it, too.
HWY_INLINE void store(Floats v, bf16* p) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if (has_bf16_rounding) {
    __m256i rounded;
    asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(v.raw));
    return _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded);
  }
#endif
  store_exactly(v, p);
}
HWY_INLINE void store(Floats v, f16* p) {
  if constexpr (kIsScalar) {
    *p = f16(hn::GetLane(v));
  } else {
    const hn::Rebind<hwy::float16_t, FloatTag> tag;
    hn::StoreU(hn::DemoteTo(tag, v), tag, reinterpret_cast<hwy::float16_t*>(p));
  }
}

// Two vectors as 2 kLanes bf16, past the caches; p on a boundary of as many bytes.
HWY_INLINE void stream_pair(Floats low, Floats high, bf16* p) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if (has_bf16_rounding) {
    __m512i rounded;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low.raw), "v"(high.raw));
    return _mm512_stream_si512(reinterpret_cast<__m512i*>(p), rounded);
  }
#endif
  HWY_ALIGN float words[kLanes];
  store(low, reinterpret_cast<bf16*>(words));
  store(high, reinterpret_cast<bf16*>(words) + kLanes);
  hn::Stream(hn::Load(kFloats, words), kFloats, reinterpret_cast<float*>(p));
}

// ---- `n` elements, n <= kLanes; the lanes beyond read as 0 and are not written
// ----------------------------------------
template <class T>
HWY_INLINE Floats load_n(const T* p, size_t n) {
  if (kIsScalar || n == kLanes) return load(p);
  T buffer[kLanes] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return load(buffer);
}
template <class T>
HWY_INLINE void store_n(Floats v, T* p, size_t n) {
  if (kIsScalar || n == kLanes) return store(v, p);
  T buffer[kLanes];
  store(v, buffer);
  std::memcpy(p, buffer, n * sizeof(T));
}

// The same for casts, which keep the smallest values too.
template <class T>
HWY_INLINE void store_exactly_n(Floats v, T* p, size_t n) {
  if constexpr (std::is_same_v<T, bf16>) {
    bf16 buffer[kLanes];
    store_exactly(v, buffer);
    std::memcpy(p, buffer, n * sizeof(T));
  } else {
    store_n(v, p, n);
  }
}

// Calls f(i, n) for i = 0, kLanes, ... below `count`; n is kLanes except in a last, partial turn.
template <class F>
HWY_INLINE void for_vectors(size_t count, F&& f) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) f(i, kLanes);
  if (i < count) f(i, count - i);
}

HWY_INLINE float sum_lanes(Floats v) { return hn::GetLane(hn::SumOfLanes(kFloats, v)); }
HWY_INLINE float max_lanes(Floats v) { return hn::GetLane(hn::MaxOfLanes(kFloats, v)); }

// x within [low, high]; a NaN stays one (x86 returns the second operand then).
HWY_INLINE Floats clamp(Floats x, float low, float high) { return hn::Min(set(high), hn::Max(set(low), x)); }

// ---- functions ---------------------------------------------------------------------------------------------------
// x 2^n for whole n in [-126, 127].
HWY_INLINE Floats times_power_of_two(Floats x, Floats n) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return Floats{_mm512_scalef_ps(x.raw, n.raw)};  // one instruction instead of four
#else
  auto power = hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(kInts, n), hn::Set(kInts, 127)));
  return hn::Mul(x, hn::BitCast(kFloats, power));
#endif
}

inline constexpr float kLog2E = 1.44269504088896341f, kLn2 = 0.69314718055994531f;

// 2^x for |x| <= 126; a NaN stays one. The short polynomial (7e-6) is for results rounded to bf16.
template <bool kIsShort>
HWY_INLINE Floats exp2_in_range(Floats x) {
  Floats n = hn::Round(x), f = hn::Sub(x, n), p;
  if constexpr (kIsShort) {
    p = hn::MulAdd(f, set(0.00965672575155f), set(0.0558384169641f));
    p = hn::MulAdd(p, f, set(0.240225300008f));
    p = hn::MulAdd(p, f, set(0.693136725512f));
  } else {
    p = hn::MulAdd(f, set(0.0001545318283f), set(0.00133908863321f));
    p = hn::MulAdd(p, f, set(0.00961808251999f));
    p = hn::MulAdd(p, f, set(0.0555035707115f));
    p = hn::MulAdd(p, f, set(0.240226507606f));
    p = hn::MulAdd(p, f, set(0.693147188035f));
  }
  return times_power_of_two(hn::MulAdd(p, f, set(1.0f)), n);
}
// The same for x below that, too: 0.
template <bool kIsShort>
HWY_INLINE Floats exp2_nonpositive(Floats x) {
  return hn::IfThenZeroElse(hn::Lt(x, set(-126.0f)), exp2_in_range<kIsShort>(x));
}

// e^x for |x| <= 87, within 1 ulp or so.
HWY_INLINE Floats exp_in_range(Floats x) {
  // x = n ln 2 + r, |r| <= ln 2 / 2; e^r by a polynomial fitted on that interval (error 8e-9).
  Floats n = hn::Round(hn::Mul(x, set(kLog2E)));
  Floats r = hn::NegMulAdd(n, set(0.693145751953125f), x);
  r = hn::NegMulAdd(n, set(1.42860682030941723212e-6f), r);
  Floats p = hn::MulAdd(r, set(0.00139261835877f), set(0.00836317905272f));
  p = hn::MulAdd(p, r, set(0.0416665546172f));
  p = hn::MulAdd(p, r, set(0.166665769897f));
  p = hn::MulAdd(p, r, set(0.5f));
  return times_power_of_two(hn::MulAdd(hn::Mul(p, r), r, hn::Add(r, set(1.0f))), n);
}
// The same for x below that, too: 0.
HWY_INLINE Floats exp_nonpositive(Floats x) { return hn::IfThenZeroElse(hn::Lt(x, set(-87.0f)), exp_in_range(x)); }

// 1 / x within 1 ulp or so, for x in the middle of the range: 14 bits of an estimate doubled by one Newton step cost a
// third of a division on AVX-512. Other targets have only 12 bits, or none.
HWY_INLINE Floats reciprocal(Floats x) {
  if constexpr (kLanes < 16) {
    return hn::Div(set(1.0f), x);
  } else {
    Floats estimate = hn::ApproximateReciprocal(x);
    return hn::MulAdd(estimate, hn::NegMulAdd(x, estimate, set(1.0f)), estimate);
  }
}

// The sigmoid of x, 1 / (1 + e^-x), and one minus it, both without cancellation, from e^-x for |x| <= 86. The short one
// is for results rounded to bf16.
struct Sigmoid {
  Floats value, rest;
};
template <bool kIsShort>
HWY_INLINE Sigmoid sigmoid_of(Floats exp_minus_x) {
  Floats sum = hn::Add(set(1.0f), exp_minus_x);
  Floats value = kIsShort && kLanes >= 16 ? hn::ApproximateReciprocal(sum) : reciprocal(sum);
  return {value, hn::Mul(exp_minus_x, value)};
}

// The normal distribution at x: its density and its integral from minus infinity.
struct NormalAt {
  Floats density, cdf;
};
HWY_INLINE NormalAt normal_at(Floats x) {
  // erfc(z) = e^(-z^2) t q(t) with t = 1 / (1 + z / 2), z = |x| / sqrt 2; q fitted on z in [0, 28] (error 9e-9).
  Floats z = hn::Mul(hn::Abs(x), set(0.70710678118654752f));
  Floats t = hn::Div(set(1.0f), hn::MulAdd(z, set(0.5f), set(1.0f)));
  Floats q = hn::MulAdd(t, set(0.0443452090623f), set(-0.240767841693f));
  q = hn::MulAdd(q, t, set(0.507273257934f));
  q = hn::MulAdd(q, t, set(-0.472085130918f));
  q = hn::MulAdd(q, t, set(0.145410009223f));
  q = hn::MulAdd(q, t, set(-0.0656824545531f));
  q = hn::MulAdd(q, t, set(0.0954502087242f));
  q = hn::MulAdd(q, t, set(0.174947671449f));
  q = hn::MulAdd(q, t, set(0.246922285083f));
  q = hn::MulAdd(q, t, set(0.282091971837f));
  q = hn::MulAdd(q, t, set(0.282094819645f));
  Floats bell = exp_nonpositive(hn::Mul(hn::Mul(x, x), set(-0.5f)));
  Floats tail = hn::Mul(hn::Mul(hn::Mul(q, t), bell), set(0.5f));
  Floats cdf = hn::IfThenElse(hn::Lt(x, zero()), tail, hn::Sub(set(1.0f), tail));
  return {hn::Mul(bell, set(0.39894228040143267794f)), cdf};
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
