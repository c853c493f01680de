// Digests that file formats of the field ask for.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sinter::data {

std::array<uint8_t, 20> sha1(std::string_view bytes);
// The first eight bytes of the SHA-1 digest, little-endian: datatrove's "sha1" of 64 bits.
uint64_t sha1_prefix64(std::string_view bytes);
std::string sha256_hex(std::string_view bytes);

}  // namespace sinter::data
