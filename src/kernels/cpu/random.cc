#include "kernels/random.h"

#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/random.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After them, like every *-inl.h.
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR
using DoubleTag = hn::ScalableTag<double>;
using WideTag = hn::RebindToUnsigned<DoubleTag>;
using HalfFloatTag = hn::Rebind<float, DoubleTag>;
using Doubles = hn::Vec<DoubleTag>;
inline constexpr DoubleTag kDoubles;
inline constexpr WideTag kWide;
inline constexpr HalfFloatTag kHalfFloats;

// The first two words of the blocks in `index`, one to a lane, as numbers.
HWY_INLINE void philox_numbers(const base::CounterRng& rng, hn::Vec<WideTag> index, Doubles& first, Doubles& second) {
  const hn::Repartition<uint32_t, WideTag> words;
  auto times = [&](hn::Vec<WideTag> a, uint64_t factor) HWY_ATTR {  // reads the low halves of the lanes
    return hn::MulEven(hn::BitCast(words, a), hn::BitCast(words, hn::Set(kWide, factor)));
  };
  hn::Vec<WideTag> c0 = index, c1 = hn::ShiftRight<32>(index);
  hn::Vec<WideTag> c2 = hn::Set(kWide, rng.stream), c3 = hn::Set(kWide, rng.stream >> 32);
  uint32_t k0 = static_cast<uint32_t>(rng.seed), k1 = static_cast<uint32_t>(rng.seed >> 32);
  for (int round = 0; round < 10; ++round) {  // the high halves of c1 and c3 hold what nobody reads
    const auto p0 = times(c0, 0xD2511F53u), p1 = times(c2, 0xCD9E8D57u);
    c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p1), c1), hn::Set(kWide, uint64_t{k0}));
    c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(p0), c3), hn::Set(kWide, uint64_t{k1}));
    c1 = p1, c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  // A word below 2^52 in the mantissa of 2^52 is the number 2^52 + word.
  const auto low = hn::Set(kWide, 0xffffffffull), exponent = hn::Set(kWide, 0x4330000000000000ull);
  auto number = [&](hn::Vec<WideTag> word) HWY_ATTR {
    return hn::Sub(hn::BitCast(kDoubles, hn::Or(hn::And(word, low), exponent)), hn::Set(kDoubles, 0x1p52));
  };
  first = number(c0);
  second = number(c1);
}
#endif

// CounterRng::normal with vectors whose logarithm and cosine err by a few units of a double. Their error is far below
// kError, so where both ends of that interval round to one float, it is the float that the scalar code gives; where
// they do not (once in some hundred thousand numbers), the scalar code decides.
void draw_normals(const base::CounterRng& rng, uint64_t first, float scale, std::span<float> out) {
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr double kError = 1e-13;
  const size_t lanes = hn::Lanes(kDoubles);
  for (; i + lanes <= out.size(); i += lanes) {
    const auto index = hn::Add(hn::Set(kWide, first + i), hn::Iota(kWide, 0));
    Doubles a, b;
    philox_numbers(rng, index, a, b);
    const Doubles u = hn::Mul(hn::Add(a, hn::Set(kDoubles, 1.0)), hn::Set(kDoubles, 0x1p-32));
    const Doubles angle = hn::Mul(hn::Set(kDoubles, 6.283185307179586), hn::Mul(b, hn::Set(kDoubles, 0x1p-32)));
    const Doubles radius = hn::Sqrt(hn::Mul(hn::Set(kDoubles, -2.0), hn::Log(kDoubles, u)));
    const Doubles value = hn::Mul(radius, hn::Cos(kDoubles, angle));
    const Doubles error = hn::Mul(radius, hn::Set(kDoubles, kError));
    const auto low = hn::DemoteTo(kHalfFloats, hn::Sub(value, error)),
               high = hn::DemoteTo(kHalfFloats, hn::Add(value, error));
    // A radius of 0 leaves the sign of the zero open.
    const bool is_sure =
        hn::AllTrue(kHalfFloats, hn::Eq(low, high)) && hn::AllTrue(kDoubles, hn::Gt(radius, hn::Zero(kDoubles)));
    if (is_sure) {
      hn::StoreU(hn::Mul(low, hn::Set(kHalfFloats, scale)), kHalfFloats, out.data() + i);
    } else {
      for (size_t j = i; j < i + lanes; ++j) out[j] = scale * rng.normal(first + j);
    }
  }
#endif
  for (; i < out.size(); ++i) out[i] = scale * rng.normal(first + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels {
namespace cpu {
HWY_EXPORT(draw_normals);
}  // namespace cpu

void draw_normal(const base::CounterRng& rng, uint64_t first, float scale, std::span<float> out) {
  using namespace cpu;  // NOLINT: Highway's table of targets
  HWY_DYNAMIC_DISPATCH(draw_normals)(rng, first, scale, out);
}

}  // namespace sinter::kernels
#endif
