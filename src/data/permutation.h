// A shuffled order that needs no memory: a keyed bijection of [0, count), a pure function of (key, index).
#pragma once
#include <bit>
#include <cstdint>

#include "base/rng.h"

namespace sinter::data {

// Four-round Feistel network over the smallest even number of bits that holds count, walked until it lands inside.
class Permutation {
 public:
  Permutation(uint64_t count, uint64_t key) : count_(count), key_(key) {
    const int bits = count <= 1 ? 0 : std::bit_width(count - 1);
    half_ = (bits + 1) / 2;
    mask_ = (uint64_t{1} << half_) - 1;
  }
  uint64_t operator()(uint64_t index) const {
    if (count_ <= 1) return index;
    do {
      index = encrypt(index);
    } while (index >= count_);
    return index;
  }

 private:
  uint64_t encrypt(uint64_t value) const {
    uint64_t left = value >> half_, right = value & mask_;
    for (uint64_t round = 0; round < 4; ++round) {
      uint64_t next = left ^ (base::mix_bits(base::mix_bits(key_, round), right) & mask_);
      left = right;
      right = next;
    }
    return (left << half_) | right;
  }
  uint64_t count_, key_, mask_ = 0;
  int half_ = 0;
};

}  // namespace sinter::data
