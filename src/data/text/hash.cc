#include "data/text/hash.h"

#include <bit>
#include <cstring>

namespace sinter::data {
namespace {

uint32_t load_big(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

// Calls block(pointer) for every 64 bytes of the padded message (both digests pad alike).
template <class Block>
void each_block(std::string_view bytes, Block block) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t at = 0;
  for (; at + 64 <= bytes.size(); at += 64) block(data + at);
  uint8_t tail[128] = {};
  const size_t left = bytes.size() - at;
  if (left > 0) std::memcpy(tail, data + at, left);
  tail[left] = 0x80;
  const size_t size = left < 56 ? 64 : 128;
  const uint64_t bits = static_cast<uint64_t>(bytes.size()) * 8;
  for (size_t i = 0; i < 8; ++i) tail[size - 1 - i] = static_cast<uint8_t>(bits >> (8 * i));
  for (size_t i = 0; i < size; i += 64) block(tail + i);
}

struct Sha1 {
  uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
  void operator()(const uint8_t* p) {
    uint32_t w[80];
    for (int i = 0; i < 16; ++i) w[i] = load_big(p + 4 * i);
    for (int i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    uint32_t a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    auto step = [&](int i, uint32_t f, uint32_t k) {
      const uint32_t t = std::rotl(a, 5) + f + e + k + w[i];
      e = d;
      d = c;
      c = std::rotl(b, 30);
      b = a;
      a = t;
    };
    for (int i = 0; i < 20; ++i) step(i, (b & c) | (~b & d), 0x5a827999);
    for (int i = 20; i < 40; ++i) step(i, b ^ c ^ d, 0x6ed9eba1);
    for (int i = 40; i < 60; ++i) step(i, (b & c) | (b & d) | (c & d), 0x8f1bbcdc);
    for (int i = 60; i < 80; ++i) step(i, b ^ c ^ d, 0xca62c1d6);
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
  }
};

constexpr uint32_t kSha256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

struct Sha256 {
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  void operator()(const uint8_t* p) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = load_big(p + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    std::memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
      const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kSha256[i] + w[i];
      const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
      const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      for (int k = 7; k > 0; --k) v[k] = v[k - 1];
      v[4] += t1;
      v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) h[i] += v[i];
  }
};

}  // namespace

std::array<uint8_t, 20> sha1(std::string_view bytes) {
  Sha1 digest;
  each_block(bytes, [&](const uint8_t* p) { digest(p); });
  std::array<uint8_t, 20> out;
  for (size_t i = 0; i < 20; ++i) out[i] = static_cast<uint8_t>(digest.h[i / 4] >> (24 - 8 * (i % 4)));
  return out;
}

uint64_t sha1_prefix64(std::string_view bytes) {
  const std::array<uint8_t, 20> digest = sha1(bytes);
  uint64_t value;
  std::memcpy(&value, digest.data(), 8);
  return value;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 digest;
  each_block(bytes, [&](const uint8_t* p) { digest(p); });
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (uint32_t word : digest.h) {
    for (int shift = 28; shift >= 0; shift -= 4) out.push_back(kDigits[(word >> shift) & 15]);
  }
  return out;
}

}  // namespace sinter::data
