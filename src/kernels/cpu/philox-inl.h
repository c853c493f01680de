// base::CounterRng::bits for runs of indices, many blocks at a time. Compiled once per target: see Highway on *-inl.h.
#if defined(SINTER_KERNELS_CPU_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SINTER_KERNELS_CPU_PHILOX_INL_H_
#undef SINTER_KERNELS_CPU_PHILOX_INL_H_
#else
#define SINTER_KERNELS_CPU_PHILOX_INL_H_
#endif

#include "base/rng.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

using Uints = hn::Vec<UintTag>;

#if HWY_TARGET != HWY_SCALAR
// The high and low halves of the 64-bit products of every lane.
HWY_INLINE void multiply_wide(Uints a, uint32_t factor, Uints& high, Uints& low) {
  const hn::RepartitionToWide<UintTag> wide;
  Uints f = hn::Set(kUints, factor);
  auto even = hn::MulEven(a, f);
  auto odd = hn::MulEven(hn::BitCast(kUints, hn::ShiftRight<32>(hn::BitCast(wide, a))), f);
  low = hn::OddEven(hn::BitCast(kUints, hn::ShiftLeft<32>(odd)), hn::BitCast(kUints, even));
  high = hn::OddEven(hn::BitCast(kUints, odd), hn::BitCast(kUints, hn::ShiftRight<32>(even)));
}

// Words of blocks first, first + 1, ..., first + kLanes - 1, in order: 4 kLanes words. `first` may not cross 2^32
// within the run.
HWY_INLINE void philox_vector(const base::CounterRng& rng, uint64_t first, uint32_t* out) {
  Uints c0 = hn::Add(hn::Set(kUints, static_cast<uint32_t>(first)), hn::Iota(kUints, 0));
  Uints c1 = hn::Set(kUints, static_cast<uint32_t>(first >> 32));
  Uints c2 = hn::Set(kUints, static_cast<uint32_t>(rng.stream)),
        c3 = hn::Set(kUints, static_cast<uint32_t>(rng.stream >> 32));
  uint32_t k0 = static_cast<uint32_t>(rng.seed), k1 = static_cast<uint32_t>(rng.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    Uints high0, low0, high1, low1;
    multiply_wide(c0, 0xD2511F53u, high0, low0);
    multiply_wide(c2, 0xCD9E8D57u, high1, low1);
    Uints n0 = hn::Xor(hn::Xor(high1, c1), hn::Set(kUints, k0)), n2 = hn::Xor(hn::Xor(high0, c3), hn::Set(kUints, k1));
    c0 = n0, c1 = low1, c2 = n2, c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, kUints, out);
}
#endif

// out[i] = rng.bits(first + i) for i < count. `out` needs room for count + 8 + 4 kLanes words; returns where element 0
// lies.
inline const uint32_t* random_bits(const base::CounterRng& rng, uint64_t first, size_t count, uint32_t* out) {
  uint64_t block = first >> 2, last = (first + count + 3) >> 2;
  uint32_t* p = out;
#if HWY_TARGET != HWY_SCALAR
  while (block < last && (block >> 32) == ((block + kLanes) >> 32)) {
    philox_vector(rng, block, p);
    block += kLanes;
    p += 4 * kLanes;
  }
#endif
  for (; block < last; ++block, p += 4) {
    auto words = rng.block(block);
    std::memcpy(p, words.data(), sizeof(words));
  }
  return out + (first & 3);
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
