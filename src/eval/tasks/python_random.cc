#include "eval/tasks/python_random.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

#include "base/error.h"

namespace sinter::eval {

PythonRandom::PythonRandom(uint64_t seed) {
  std::vector<uint32_t> key{static_cast<uint32_t>(seed)};
  if (seed >> 32) key.push_back(static_cast<uint32_t>(seed >> 32));
  seed_by(key);
}

PythonRandom PythonRandom::from_digits(std::string_view digits) {
  std::vector<uint32_t> key{0};  // 32-bit words, least first
  for (char c : digits) {
    SINTER_CHECK(c >= '0' && c <= '9', "the seed '{}' is not a whole number", digits);
    uint64_t carry = static_cast<uint64_t>(c - '0');
    for (uint32_t& word : key) {
      carry += uint64_t{word} * 10;
      word = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
    if (carry) key.push_back(static_cast<uint32_t>(carry));
  }
  PythonRandom random;
  random.seed_by(key);
  return random;
}

// init_by_array of the reference implementation.
void PythonRandom::seed_by(const std::vector<uint32_t>& key) {
  constexpr size_t kSize = 624;
  state_[0] = 19650218;
  for (uint32_t i = 1; i < kSize; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
  size_t i = 1, j = 0;
  auto wrap = [&] {
    if (++i < kSize) return;
    state_[0] = state_[kSize - 1];
    i = 1;
  };
  for (size_t k = std::max(kSize, key.size()); k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525u)) + key[j] + static_cast<uint32_t>(j);
    wrap();
    if (++j >= key.size()) j = 0;
  }
  for (size_t k = kSize - 1; k > 0; --k) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941u)) - static_cast<uint32_t>(i);
    wrap();
  }
  state_[0] = 0x80000000u;
  at_ = kSize;
}

uint32_t PythonRandom::next32() {
  constexpr size_t kSize = 624;
  if (at_ >= kSize) {
    for (size_t k = 0; k < kSize; ++k) {
      const uint32_t y = (state_[k] & 0x80000000u) | (state_[(k + 1) % kSize] & 0x7fffffffu);
      state_[k] = state_[(k + 397) % kSize] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    at_ = 0;
  }
  uint32_t y = state_[at_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  return y ^ (y >> 18);
}

double PythonRandom::random() {
  const double high = next32() >> 5, low = next32() >> 6;
  return (high * 67108864.0 + low) / 9007199254740992.0;
}

uint32_t PythonRandom::below(uint32_t n) {
  const int bits = std::bit_width(n);
  for (;;) {
    const uint32_t r = next32() >> (32 - bits);
    if (r < n) return r;
  }
}

std::vector<uint32_t> PythonRandom::sample(uint32_t n, uint32_t k) {
  SINTER_CHECK(k <= n, "{} examples asked for, but there are only {}", k, n);
  uint64_t set_size = 21;  // beyond it Python keeps a set of what it took instead of the list of what is left
  if (k > 5) {
    uint64_t power = 1;
    while (power < uint64_t{3} * k) power *= 4;
    set_size += power;
  }
  std::vector<uint32_t> taken;
  if (n <= set_size) {
    std::vector<uint32_t> pool(n);
    for (uint32_t i = 0; i < n; ++i) pool[i] = i;
    for (uint32_t i = 0; i < k; ++i) {
      const uint32_t j = below(n - i);
      taken.push_back(pool[j]);
      pool[j] = pool[n - i - 1];
    }
    return taken;
  }
  std::unordered_set<uint32_t> seen;
  for (uint32_t i = 0; i < k; ++i) {
    uint32_t j = below(n);
    while (!seen.insert(j).second) j = below(n);
    taken.push_back(j);
  }
  return taken;
}

std::vector<uint32_t> PythonRandom::choices(uint32_t n, uint32_t count) {
  std::vector<uint32_t> places(count);
  for (uint32_t& place : places) place = static_cast<uint32_t>(random() * static_cast<double>(n));
  return places;
}

}  // namespace sinter::eval
