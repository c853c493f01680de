// A fast 64-bit hash of bytes for finding damage and naming content; not for secrets. The value is part of file formats
// (docs/formats.md): it never changes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/rng.h"

namespace sinter::base {

// h starts as mix(seed, length); every 8 bytes (little-endian, the last padded with zeros) do h = mix(h ^ word, 0),
// with mix = mix_bits of rng.h.
inline uint64_t hash_bytes(std::span<const std::byte> bytes, uint64_t seed = 0) {
  uint64_t h = mix_bits(seed, bytes.size());
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    h = mix_bits(h ^ word, 0);
  }
  if (i < bytes.size()) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, bytes.size() - i);
    h = mix_bits(h ^ word, 0);
  }
  return h;
}
inline uint64_t hash_text(std::string_view text, uint64_t seed = 0) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())), seed);
}

}  // namespace sinter::base
