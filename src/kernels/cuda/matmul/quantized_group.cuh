// Groups of 32 columns of a row, in blocks or codes, as operands of mma.m16n8k16.
//
// Codes become 16-bit numbers that are exact (nf4's and fp4's values rounded), with a few instructions for two of them:
// a code of at most seven bits, put behind the high byte of kBias, is kBias + code. Scales and minima stay apart, in
// f32, and go to the products' sums. Which columns come to which place of an operand does not matter as long as both
// operands have the same order: each format has the one that is cheapest to make (Order).
#pragma once
#include <cuda_fp8.h>

#include "base/block_decode.h"
#include "kernels/cuda/mma.cuh"

namespace sinter::kernels::cuda {

using base::WeightFormat;

constexpr int kGroupColumns = 32;

// The columns of the eight numbers that thread `quad` of four has of a group, two by two.
enum class Order {
  whole,    // 8 quad + (0, 1) (2, 3) (4, 5) (6, 7)
  crossed,  // 8 quad + (0, 4) (1, 5) (2, 6) (3, 7)
  split,    // 4 quad + (0, 1) (2, 3) (16, 17) (18, 19)
  folded,   // 4 quad + (0, 16) (1, 17) (2, 18) (3, 19)
};
constexpr Order order_of(WeightFormat format) {
  using enum WeightFormat;
  return format == int4                     ? Order::crossed
         : format == mxfp4                  ? Order::folded
         : format == q4_0 || format == q6_k ? Order::split
                                            : Order::whole;
}

// ---- bytes of shared memory at any address ----
// The word at or before an address; a cast of the number would lose which memory it is of.
__device__ __forceinline__ const uint32_t* words_at(const uint8_t* p, unsigned& shift) {
  const auto odd = static_cast<unsigned>(reinterpret_cast<uintptr_t>(p)) & 3u;
  shift = odd * 8;
  return reinterpret_cast<const uint32_t*>(p - odd);
}
__device__ __forceinline__ uint32_t word_at(const uint8_t* p) {  // up to 4 bytes behind them are read too
  unsigned shift;
  const uint32_t* words = words_at(p, shift);
  return __funnelshift_r(words[0], words[1], shift);
}
__device__ __forceinline__ void two_words_at(const uint8_t* p, uint32_t (&w)[2]) {
  unsigned shift;
  const uint32_t* words = words_at(p, shift);
  const uint32_t middle = words[1];
  w[0] = __funnelshift_r(words[0], middle, shift);
  w[1] = __funnelshift_r(middle, words[2], shift);
}
__device__ __forceinline__ float half_at(const uint8_t* p) {  // of an even address
  return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
}

// ---- pairs of 16-bit numbers ----
template <class T>
inline constexpr uint32_t kBiasPair = std::is_same_v<T, bfloat16> ? 0x43004300u : 0x64006400u;
template <class T>
inline constexpr float kBias = std::is_same_v<T, bfloat16> ? 128.0f : 1024.0f;

template <class T>
__device__ __forceinline__ uint32_t minus(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    __nv_bfloat162 d = __hsub2(*reinterpret_cast<__nv_bfloat162*>(&a), *reinterpret_cast<__nv_bfloat162*>(&b));
    return *reinterpret_cast<uint32_t*>(&d);
  } else {
    __half2 d = __hsub2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
    return *reinterpret_cast<uint32_t*>(&d);
  }
}
// kBias + bytes 0, 1 (or 2, 3) of a word.
template <class T>
__device__ __forceinline__ uint32_t biased(uint32_t word, int first_byte) {
  return __byte_perm(word, kBiasPair<T>, first_byte == 0 ? 0x5150u : 0x5352u);
}
// A whole number as a pair of it, kBias more.
template <class T>
constexpr uint32_t bias_and(uint32_t number) {
  return kBiasPair<T> + number * 0x00010001u;
}
// Signed bytes 0, 1 (or 2, 3) of a word.
template <class T>
__device__ __forceinline__ uint32_t signed_pair(uint32_t word, int first_byte) {
  if constexpr (std::is_same_v<T, bfloat16>) {  // 128 + the low seven bits, minus 128, or 256 where the sign is set
    const uint32_t pair = biased<T>(word, first_byte);
    return minus<T>(pair & 0xff7fff7fu, pair & 0xff80ff80u);
  } else {
    return minus<T>(biased<T>(word ^ 0x80808080u, first_byte), bias_and<T>(128));
  }
}

__device__ __forceinline__ float nibble_value(WeightFormat format, int code) {
  if (format == WeightFormat::nf4) return base::block::nf4_value(code);
  if (format == WeightFormat::fp4) return base::block::fp4_value(code);
  return static_cast<float>(base::block::fp4_doubled(code));  // e2m1
}
// Of 16 codes, in the low half of a word each: sixteen words lie in banks of their own, so lanes never wait for each
// other.
template <class T>
__device__ __forceinline__ uint32_t table_entry(WeightFormat format, int code) {
  return pack<T>(nibble_value(format, code), 0.0f);
}
// The numbers behind the halves of byte `byte` of a word, the low half's first.
__device__ __forceinline__ uint32_t both_halves(const uint32_t* table, uint32_t word, int byte, bool high_first) {
  const uint32_t low = table[word >> 8 * byte & 15u], high = table[word >> (8 * byte + 4) & 15u];
  return high_first ? __byte_perm(high, low, 0x5410) : __byte_perm(low, high, 0x5410);
}

// ---- codes ----
// What the codes of a group are beside the numbers: the sum of products with them takes `bias` times the sum of a's
// numbers too much.
template <class T>
constexpr float code_bias(WeightFormat format) {
  using enum WeightFormat;
  return (format == q4_k || format == q5_k || format == int4) && std::is_same_v<T, bfloat16> ? kBias<T> : 0.0f;
}
constexpr bool has_minimum(WeightFormat format) {  // something is subtracted for every number of a
  using enum WeightFormat;
  return format == q4_k || format == q5_k || format == int4 || format == int8;
}

// Numbers of group `group` (of eight) of a turn of a row. `table`: of table_entry(), where the format has one.
template <class T, WeightFormat kFormat>
__device__ __forceinline__ void decode_group(const uint8_t* turn, int group, int quad, const uint32_t* table,
                                             uint32_t (&out)[4]) {
  using enum WeightFormat;
  auto without_bias = [&](uint32_t pair) { return code_bias<T>(kFormat) > 0 ? pair : minus<T>(pair, bias_and<T>(0)); };
  if constexpr (kFormat == q8_0 || kFormat == int8) {
    uint32_t w[2];
    if constexpr (kFormat == q8_0) {
      two_words_at(turn + group * 34 + 2 + quad * 8, w);
    } else {
      const uint2 codes = *reinterpret_cast<const uint2*>(turn + group * kGroupColumns + quad * 8);
      w[0] = codes.x ^ 0x80808080u, w[1] = codes.y ^ 0x80808080u;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = signed_pair<T>(w[i / 2], i % 2 * 2);
  } else if constexpr (kFormat == q4_0) {
    const uint32_t w = word_at(turn + group * 18 + 2 + quad * 4), low = w & 0x0f0f0f0fu, high = w >> 4 & 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = minus<T>(biased<T>(i < 2 ? low : high, i % 2 * 2), bias_and<T>(8));
  } else if constexpr (kFormat == mxfp4) {
    const uint32_t w = word_at(turn + group * 17 + 1 + quad * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = both_halves(table, w, i, false);
  } else if constexpr (kFormat == q4_k || kFormat == q5_k) {
    const int from = (kFormat == q4_k ? 16 : 48) + group / 2 * 32 + quad * 8, shift = group % 2 * 4;
    const uint2 codes = *reinterpret_cast<const uint2*>(turn + from);
    uint32_t w[2] = {codes.x >> shift & 0x0f0f0f0fu, codes.y >> shift & 0x0f0f0f0fu};
    if constexpr (kFormat == q5_k) {
      const uint2 high = *reinterpret_cast<const uint2*>(turn + 16 + quad * 8);
      w[0] |= (high.x >> group & 0x01010101u) << 4;
      w[1] |= (high.y >> group & 0x01010101u) << 4;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = without_bias(biased<T>(w[i / 2], i % 2 * 2));
  } else if constexpr (kFormat == q6_k) {
    const int half = group / 4, part = group % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t low = word_at(turn + half * 64 + part % 2 * 32 + h * 16 + quad * 4),
                     high = word_at(turn + 128 + half * 32 + h * 16 + quad * 4),
                     w = (low >> 4 * (part / 2) & 0x0f0f0f0fu) | (high >> 2 * part & 0x03030303u) << 4;
      out[2 * h] = minus<T>(biased<T>(w, 0), bias_and<T>(32));
      out[2 * h + 1] = minus<T>(biased<T>(w, 2), bias_and<T>(32));
    }
  } else if constexpr (kFormat == int4) {  // the first of a pair in the low half
    const uint32_t w = *reinterpret_cast<const uint32_t*>(turn + group * 16 + quad * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = without_bias((w >> 4 * i & 0x000f000fu) | kBiasPair<T>);
  } else if constexpr (kFormat == nf4 || kFormat == fp4) {  // the first of a pair in the high half
    const uint32_t w = *reinterpret_cast<const uint32_t*>(turn + group * 16 + quad * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = both_halves(table, w, i, true);
  } else {
    static_assert(kFormat == fp8_e4m3);
    const uint2 codes = *reinterpret_cast<const uint2*>(turn + group * kGroupColumns + quad * 8);
    const uint32_t w[2] = {codes.x, codes.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair = static_cast<__nv_fp8x2_storage_t>(w[i / 2] >> 16 * (i % 2) & 0xffffu);
      const float2 values = __half22float2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
      out[i] = pack<T>(values.x, values.y);
    }
  }
}

// Eight numbers of a row of a in the order of a format's codes; `row` begins with the group.
template <WeightFormat kFormat>
__device__ __forceinline__ uint4 load_ordered(const void* row, int quad) {
  constexpr Order kOrder = order_of(kFormat);
  if constexpr (kOrder == Order::whole || kOrder == Order::crossed) {
    const uint4 v = static_cast<const uint4*>(row)[quad];
    if constexpr (kOrder == Order::whole) return v;
    return {__byte_perm(v.x, v.z, 0x5410), __byte_perm(v.x, v.z, 0x7632), __byte_perm(v.y, v.w, 0x5410),
            __byte_perm(v.y, v.w, 0x7632)};
  } else {
    const uint2 low = static_cast<const uint2*>(row)[quad], high = static_cast<const uint2*>(row)[quad + 4];
    if constexpr (kOrder == Order::split) return {low.x, low.y, high.x, high.y};
    return {__byte_perm(low.x, high.x, 0x5410), __byte_perm(low.x, high.x, 0x7632), __byte_perm(low.y, high.y, 0x5410),
            __byte_perm(low.y, high.y, 0x7632)};
  }
}

}  // namespace sinter::kernels::cuda
