// The kernels of integer_product.h, written once over the few operations that an instruction set (Isa) gives:
//
//   Bytes                       32 bytes; load(p), load_nibbles(p): 16 bytes to 32 codes, low halves first
//   shift_and<n, mask>(x)       every byte >> n & mask       raise4(x)  every byte << 4 (of at most 4 bits)
//   join(a, b)                  a | b                        less(x, n) every byte - n
//   Lanes                       8 f32; zero(), set(x), load_lanes(p)
//   dot(weights, codes)         Lanes: the sum of four products of signed bytes each
//   dot_unsigned(weights, codes)  the same of weights from 0 to 127
//   add_product(a, b, c)        a * b + c, fused             sum(x)     the lanes added as a tree
#pragma once
#include "base/block_decode.h"
#include "kernels/cpu/quantized/integer_product.h"

namespace sinter::kernels::cpu {

template <class Isa>
struct IntegerRows {
  using Bytes = typename Isa::Bytes;
  using Lanes = typename Isa::Lanes;

  // The activations of one block of 32 columns.
  struct Place {
    const RoundedRows& rows;
    int64_t first, block;
    const int8_t* codes(int64_t i) const { return rows.codes + (first + i) * rows.columns + block * 32; }
    float scale(int64_t i) const { return rows.scales[(first + i) * (rows.columns / 32) + block]; }
    const float* sums(int64_t i) const { return rows.sums + (first + i) * (rows.columns / 32) + block; }
  };

  // Blocks of 32 with one scale.
  template <int64_t kCount, class Unpack>
  static void simple(const uint8_t* weights, int64_t block_bytes, const RoundedRows& rows, int64_t first, float* out,
                     Unpack unpack) {
    Lanes total[kCount];
    for (int64_t i = 0; i < kCount; ++i) total[i] = Isa::zero();
    const int64_t blocks = rows.columns / 32;
    for (int64_t b = 0; b < blocks; ++b, weights += block_bytes) {
      const float d = base::block::load_half(weights);
      const Bytes codes = unpack(weights);
      const Place place{rows, first, b};
      for (int64_t i = 0; i < kCount; ++i) {
        const Lanes dot = Isa::dot(codes, Isa::load(reinterpret_cast<const uint8_t*>(place.codes(i))));
        total[i] = Isa::add_product(Isa::set(d * place.scale(i)), dot, total[i]);
      }
    }
    for (int64_t i = 0; i < kCount; ++i) out[i] = Isa::sum(total[i]);
  }

  template <int64_t kCount>
  static void q8_0(const uint8_t* weights, const RoundedRows& rows, int64_t first, float* out) {
    simple<kCount>(weights, 34, rows, first, out, [](const uint8_t* block) { return Isa::load(block + 2); });
  }
  template <int64_t kCount>
  static void q4_0(const uint8_t* weights, const RoundedRows& rows, int64_t first, float* out) {
    simple<kCount>(weights, 18, rows, first, out,
                   [](const uint8_t* block) { return Isa::less(Isa::load_nibbles(block + 2), 8); });
  }

  // q4_k and q5_k: eight sub-blocks of 32 with a scale and a minimum each.
  template <int64_t kCount, bool kFive>
  static void k4(const uint8_t* weights, const RoundedRows& rows, int64_t first, float* out) {
    Lanes total[kCount], mins[kCount];
    for (int64_t i = 0; i < kCount; ++i) total[i] = mins[i] = Isa::zero();
    for (int64_t b = 0; b < rows.columns / 32; b += 8, weights += kFive ? 176 : 144) {
      const float d = base::block::load_half(weights), dmin = base::block::load_half(weights + 2);
      float scale[8], min[8];
      for (int s = 0; s < 8; ++s) {
        const base::block::ScaleMin sm = base::block::scale_min_k4(weights + 4, s);
        scale[s] = d * static_cast<float>(sm.scale);
        min[s] = dmin * static_cast<float>(sm.min);
      }
      const uint8_t* low = weights + (kFive ? 48 : 16);
      const Bytes high = kFive ? Isa::load(weights + 16) : Bytes{};
      auto pair = [&]<int kPair>() {
        const Bytes both = Isa::load(low + kPair * 32);
        Bytes first_codes = Isa::template shift_and<0, 15>(both), second_codes = Isa::template shift_and<4, 15>(both);
        if constexpr (kFive) {
          first_codes = Isa::join(first_codes, Isa::raise4(Isa::template shift_and<2 * kPair, 1>(high)));
          second_codes = Isa::join(second_codes, Isa::raise4(Isa::template shift_and<2 * kPair + 1, 1>(high)));
        }
        add_block<kCount>(first_codes, scale[2 * kPair], {rows, first, b + 2 * kPair}, total);
        add_block<kCount>(second_codes, scale[2 * kPair + 1], {rows, first, b + 2 * kPair + 1}, total);
      };
      pair.template operator()<0>(), pair.template operator()<1>(), pair.template operator()<2>(),
          pair.template operator()<3>();
      const Place place{rows, first, b};
      for (int64_t i = 0; i < kCount; ++i)
        mins[i] = Isa::add_product(Isa::load_lanes(min), Isa::load_lanes(place.sums(i)), mins[i]);
    }
    for (int64_t i = 0; i < kCount; ++i) out[i] = Isa::sum(total[i]) - Isa::sum(mins[i]);
  }

  template <int64_t kCount>
  static void add_block(const Bytes& codes, float scale, const Place& place, Lanes* total) {
    for (int64_t i = 0; i < kCount; ++i) {
      const Lanes dot = Isa::dot_unsigned(codes, Isa::load(reinterpret_cast<const uint8_t*>(place.codes(i))));
      total[i] = Isa::add_product(Isa::set(scale * place.scale(i)), dot, total[i]);
    }
  }

  // q6_k: sixteen sub-blocks of 16 with a scale each, two of them in every 32 columns.
  template <int64_t kCount>
  static void q6_k(const uint8_t* weights, const RoundedRows& rows, int64_t first, float* out) {
    Lanes total[kCount];
    for (int64_t i = 0; i < kCount; ++i) total[i] = Isa::zero();
    for (int64_t b = 0; b < rows.columns / 32; b += 8, weights += 210) {
      const float d = base::block::load_half(weights + 208);
      auto run = [&]<int kRun>() {  // 32 columns
        constexpr int kHalf = kRun / 4, kGroup = kRun % 4;
        const Bytes low =
            Isa::template shift_and<4 * (kGroup / 2), 15>(Isa::load(weights + kHalf * 64 + kGroup % 2 * 32));
        const Bytes high = Isa::template shift_and<2 * kGroup, 3>(Isa::load(weights + 128 + kHalf * 32));
        const Bytes codes = Isa::less(Isa::join(low, Isa::raise4(high)), 32);
        const float one = d * static_cast<float>(static_cast<int8_t>(weights[192 + 2 * kRun])),
                    two = d * static_cast<float>(static_cast<int8_t>(weights[192 + 2 * kRun + 1]));
        const Place place{rows, first, b + kRun};
        for (int64_t i = 0; i < kCount; ++i) {
          const Lanes dot = Isa::dot(codes, Isa::load(reinterpret_cast<const uint8_t*>(place.codes(i))));
          total[i] = Isa::add_product(Isa::halves(one * place.scale(i), two * place.scale(i)), dot, total[i]);
        }
      };
      run.template operator()<0>(), run.template operator()<1>(), run.template operator()<2>(),
          run.template operator()<3>(), run.template operator()<4>(), run.template operator()<5>(),
          run.template operator()<6>(), run.template operator()<7>();
    }
    for (int64_t i = 0; i < kCount; ++i) out[i] = Isa::sum(total[i]);
  }

  using Fixed = void (*)(const uint8_t* weights, const RoundedRows& rows, int64_t first, float* out);
  // A kernel for any count, from those of one row and of four.
  template <Fixed kOne, Fixed kFour>
  static void any(const uint8_t* weights, const RoundedRows& rows, int64_t first, int64_t count, float* out) {
    if (count == 4) return kFour(weights, rows, first, out);
    for (int64_t i = 0; i < count; ++i) kOne(weights, rows, first + i, out + i);
  }

  static IntegerRowKernel find(base::WeightFormat format) {
    switch (format) {
      case base::WeightFormat::q8_0:
        return any<q8_0<1>, q8_0<4>>;
      case base::WeightFormat::q4_0:
        return any<q4_0<1>, q4_0<4>>;
      case base::WeightFormat::q4_k:
        return any<k4<1, false>, k4<4, false>>;
      case base::WeightFormat::q5_k:
        return any<k4<1, true>, k4<4, true>>;
      case base::WeightFormat::q6_k:
        return any<q6_k<1>, q6_k<4>>;
      default:
        return nullptr;
    }
  }
};

}  // namespace sinter::kernels::cpu
