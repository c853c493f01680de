// 256 columns of a row of a weight, from each format of integer_form.h, written once over the few operations that an
// instruction set (Isa) gives:
//
//   Bytes                        32 bytes; load(p), load_nibbles(p): 16 bytes to 32 codes, low halves first
//   shift_and<n, mask>(x)        every byte >> n & mask          raise<n>(x)  every byte << n, which loses nothing
//   join(a, b)                   a | b                           flip(x)      every byte ^ 128
//   bits(n)                      16 in byte i where bit i is set lookup(t, x) t[byte] for each byte below 16
//   Ints                         8 whole numbers of 32 bits; set_ints, load_ints, add, subtract, times, shift_left<n>
//   split(p, even, odd)          16 signed bytes
//   dot<is_wide>(codes, x)       Ints: sums of four products each of codes (to 127, or 255 when wide) and signed bytes
//   fold(eight, low, high)       sums of the first and of the last four of each of eight Ints
//   Lanes                        8 f32; zero, set, load_lanes, multiply, to_lanes(Ints), of_bytes(u64), sum as a tree
//   strided_halves(p, n)         halves at p, p + n, ...         half(p)      one
//   add_product(a, b, c)         a * b + c, fused                subtract_product(a, b, c)  c - a * b, fused
#pragma once
#include <array>
#include <cstring>
#include <utility>

#include "base/block_decode.h"
#include "kernels/cpu/quantized/integer_form.h"

namespace sinter::kernels::cpu {

template <class Isa>
struct IntegerGroup {
  typename Isa::Bytes codes[8];                // a block of 32 columns each
  typename Isa::Lanes scale, min;              // of the blocks
  typename Isa::Ints halves[2], half_mins[2];  // factors of the first and last 16 columns of the blocks
};

namespace {

inline uint64_t load_u64(const uint8_t* p) {
  uint64_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline uint32_t load_u32(const uint8_t* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

}  // namespace

// What codes of four bits stand for, 2^shift added.
inline constexpr auto kIq4Codes = [] {
  std::array<uint8_t, 16> codes{};
  for (size_t i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(base::block::kIq4Values[i] + 128);
  return codes;
}();
inline constexpr auto kFp4Codes = [] {
  std::array<uint8_t, 16> codes{};
  for (size_t i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(base::block::kFp4Doubled[i] + 16);
  return codes;
}();

template <class Isa, base::WeightFormat kFormat>
struct IntegerUnpack {
  using Bytes = typename Isa::Bytes;
  using Ints = typename Isa::Ints;
  using Lanes = typename Isa::Lanes;
  using Group = IntegerGroup<Isa>;
  using F = base::WeightFormat;
  static constexpr bool kIsSmall = kFormat == F::q4_0 || kFormat == F::q4_1 || kFormat == F::q5_0 ||
                                   kFormat == F::q5_1 || kFormat == F::q8_0 || kFormat == F::iq4_nl ||
                                   kFormat == F::mxfp4;  // blocks of 32

  [[gnu::always_inline]] static Bytes small_codes(const uint8_t* block) {
    if constexpr (kFormat == F::q8_0) return Isa::flip(Isa::load(block + 2));
    if constexpr (kFormat == F::q4_0) return Isa::load_nibbles(block + 2);
    if constexpr (kFormat == F::q4_1) return Isa::load_nibbles(block + 4);
    if constexpr (kFormat == F::q5_0) return Isa::join(Isa::load_nibbles(block + 6), Isa::bits(load_u32(block + 2)));
    if constexpr (kFormat == F::q5_1) return Isa::join(Isa::load_nibbles(block + 8), Isa::bits(load_u32(block + 4)));
    if constexpr (kFormat == F::iq4_nl) return Isa::lookup(kIq4Codes.data(), Isa::load_nibbles(block + 2));
    if constexpr (kFormat == F::mxfp4) return Isa::lookup(kFp4Codes.data(), Isa::load_nibbles(block + 1));
  }

  // Eight blocks of 32.
  [[gnu::always_inline]] static Group small(const uint8_t* w) {
    constexpr int64_t kBytes = group_bytes(kFormat) / 8;
    Group group{};
    for (int b = 0; b < 8; ++b) group.codes[b] = small_codes(w + b * kBytes);
    if constexpr (kFormat == F::mxfp4) {
      float scale[8];
      for (int b = 0; b < 8; ++b) scale[b] = base::block::half_of_e8m0(w[b * kBytes]);
      group.scale = Isa::load_lanes(scale);
    } else {
      group.scale = Isa::strided_halves(w, kBytes);
    }
    if constexpr (kFormat == F::q4_1 || kFormat == F::q5_1)
      group.min = Isa::multiply(Isa::set(-1.0f), Isa::strided_halves(w + 2, kBytes));
    return group;
  }

  // q4_k and q5_k: eight scales and minimums of six bits in twelve bytes.
  [[gnu::always_inline]] static void steps_k4(const uint8_t* w, uint64_t& scales, uint64_t& mins) {
    const uint64_t first = load_u32(w + 4), second = load_u32(w + 8), third = load_u32(w + 12);
    constexpr uint64_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
    scales = (first & kSix) | ((third & kFour) | (first >> 6 & kTwo) << 4) << 32;
    mins = (second & kSix) | ((third >> 4 & kFour) | (second >> 6 & kTwo) << 4) << 32;
  }

  [[gnu::always_inline]] static Group k4(const uint8_t* w) {
    constexpr bool kFive = kFormat == F::q5_k;
    Group group{};
    uint64_t scales, mins;
    steps_k4(w, scales, mins);
    group.scale = Isa::multiply(Isa::set(Isa::half(w)), Isa::of_bytes(scales));
    group.min = Isa::multiply(Isa::set(Isa::half(w + 2)), Isa::of_bytes(mins));
    const uint8_t* low = w + (kFive ? 48 : 16);
    const Bytes high = kFive ? Isa::load(w + 16) : Bytes{};
    auto pair = [&]<int kPair>() __attribute__((always_inline)) {
      const Bytes both = Isa::load(low + kPair * 32);
      Bytes one = Isa::template shift_and<0, 15>(both), two = Isa::template shift_and<4, 15>(both);
      if constexpr (kFive) {
        one = Isa::join(one, Isa::template raise<4>(Isa::template shift_and<2 * kPair, 1>(high)));
        two = Isa::join(two, Isa::template raise<4>(Isa::template shift_and<2 * kPair + 1, 1>(high)));
      }
      group.codes[2 * kPair] = one, group.codes[2 * kPair + 1] = two;
    };
    pair.template operator()<0>(), pair.template operator()<1>(), pair.template operator()<2>(),
        pair.template operator()<3>();
    return group;
  }

  // q6_k, q3_k and q2_k: code `kRun` of eight.
  template <int kRun>
  [[gnu::always_inline]] static Bytes run(const uint8_t* w) {
    constexpr int kHalf = kRun / 4, kQuarter = kRun % 4;
    if constexpr (kFormat == F::q6_k) {
      const Bytes low = Isa::template shift_and<4 * (kQuarter / 2), 15>(Isa::load(w + kHalf * 64 + kQuarter % 2 * 32));
      const Bytes high = Isa::template shift_and<2 * kQuarter, 3>(Isa::load(w + 128 + kHalf * 32));
      return Isa::join(low, Isa::template raise<4>(high));
    } else if constexpr (kFormat == F::q3_k) {
      const Bytes low = Isa::template shift_and<2 * kQuarter, 3>(Isa::load(w + 32 + kHalf * 32));
      return Isa::join(low, Isa::template raise<2>(Isa::template shift_and<kRun, 1>(Isa::load(w))));
    } else {
      return Isa::template shift_and<2 * kQuarter, 3>(Isa::load(w + 16 + kHalf * 32));
    }
  }

  [[gnu::always_inline]] static Group halves(const uint8_t* w) {
    Group group{};
    auto all = [&]<int... kRuns>(std::integer_sequence<int, kRuns...>) __attribute__((always_inline)) {
      ((group.codes[kRuns] = run<kRuns>(w)), ...);
    };
    all(std::make_integer_sequence<int, 8>());
    uint64_t factors[2];
    if constexpr (kFormat == F::q6_k) {
      group.scale = Isa::set(Isa::half(w + 208));
      std::memcpy(factors, w + 192, sizeof factors);
    } else if constexpr (kFormat == F::q3_k) {
      constexpr uint64_t kFours = 0x0f0f0f0f0f0f0f0f, kTwos = 0x03030303;
      group.scale = Isa::set(Isa::half(w + 108));
      const uint64_t low = load_u64(w + 96), high = load_u32(w + 104);
      factors[0] = (low & kFours) | ((high & kTwos) | (high >> 2 & kTwos) << 32) << 4;
      factors[1] = (low >> 4 & kFours) | ((high >> 4 & kTwos) | (high >> 6 & kTwos) << 32) << 4;
    } else {
      constexpr uint64_t kFours = 0x0f0f0f0f0f0f0f0f;
      group.scale = Isa::set(Isa::half(w + 80)), group.min = Isa::set(Isa::half(w + 82));
      const uint64_t one = load_u64(w), two = load_u64(w + 8);
      factors[0] = one & kFours, factors[1] = two & kFours;
      const uint64_t mins[2] = {one >> 4 & kFours, two >> 4 & kFours};
      Isa::split(mins, group.half_mins[0], group.half_mins[1]);
    }
    Isa::split(factors, group.halves[0], group.halves[1]);
    if constexpr (kFormat == F::q3_k) {
      for (Ints& half : group.halves) half = Isa::subtract(half, Isa::set_ints(32));
    }
    return group;
  }

  [[gnu::always_inline]] static Group iq4_xs(const uint8_t* w) {
    Group group{};
    float scale[8];
    for (int b = 0; b < 8; ++b) {
      group.codes[b] = Isa::lookup(kIq4Codes.data(), Isa::load_nibbles(w + 8 + 16 * b));
      scale[b] = static_cast<float>(base::block::scale_iq4xs(w, b));
    }
    group.scale = Isa::multiply(Isa::set(Isa::half(w)), Isa::load_lanes(scale));
    return group;
  }

  // Group `g` of a row with `blocks` blocks of 32 columns; blocks that the row lacks are zeros.
  [[gnu::always_inline]] static Group read(const uint8_t* row, int64_t g, int64_t blocks) {
    constexpr int64_t kBytes = group_bytes(kFormat);
    const uint8_t* from = row + g * kBytes;
    if constexpr (kIsSmall) {
      if (blocks - 8 * g >= 8) return small(from);
      uint8_t room[kBytes] = {};
      std::memcpy(room, from, static_cast<size_t>((blocks - 8 * g) * (kBytes / 8)));
      return small(room);
    } else {
      if constexpr (kFormat == F::q4_k || kFormat == F::q5_k)
        return k4(from);
      else if constexpr (kFormat == F::iq4_xs)
        return iq4_xs(from);
      else
        return halves(from);
    }
  }
};

// Calls f.template operator()<format>() for a format that has the form; false for others.
template <class F>
bool visit_integer_format(base::WeightFormat format, F&& f) {
  return has_integer_form(format) && base::block::visit_format(format, [&]<base::WeightFormat kFormat>() {
           if constexpr (has_integer_form(kFormat)) f.template operator()<kFormat>();
         });
}

}  // namespace sinter::kernels::cpu
