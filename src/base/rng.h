// Counter-based random numbers (Philox 4x32-10): a pure function of (seed, stream, index), so that any rank, thread or
// resumed run that asks for the same coordinate gets the same number.
#pragma once
#include <array>
#include <cmath>
#include <cstdint>

namespace sinter::base {

// One Philox block: 128 random bits for a 64-bit key and a 128-bit counter.
inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                            static_cast<uint32_t>(counter_high), static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// Uniform in [0, 1) with 24 bits.
inline float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

// A named sequence of random numbers addressed by index.
struct CounterRng {
  uint64_t seed = 0;
  uint64_t stream = 0;  // what the numbers are for: a parameter, a layer's dropout, a request

  std::array<uint32_t, 4> block(uint64_t index) const { return philox(seed, index, stream); }
  uint32_t bits(uint64_t index) const { return block(index >> 2)[index & 3]; }
  uint64_t bits64(uint64_t index) const {
    auto b = block(index);
    return (static_cast<uint64_t>(b[1]) << 32) | b[0];
  }
  float uniform(uint64_t index) const { return uniform_from_bits(bits(index)); }
  // Standard normal by Box-Muller; element i uses two of block i's words.
  float normal(uint64_t index) const {
    auto b = block(index);
    double u = (static_cast<double>(b[0]) + 1.0) * 0x1p-32, v = static_cast<double>(b[1]) * 0x1p-32;
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
};

// Mixes two words into a stream or seed (splitmix64 finaliser).
inline uint64_t mix_bits(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9e3779b97f4a7c15ull * (b + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace sinter::base
