// The row kernels of integer_product.h, written once over the operations of integer_unpack-inl.h.
#pragma once
#include "kernels/cpu/quantized/integer_product.h"
#include "kernels/cpu/quantized/integer_unpack-inl.h"

namespace sinter::kernels::cpu {

template <class Isa>
struct IntegerRows {
  using Ints = typename Isa::Ints;
  using Lanes = typename Isa::Lanes;

  // Eight sums over 32 columns of whole numbers, and what the minimums are multiplied by.
  template <base::WeightFormat kFormat>
  [[gnu::always_inline]] static Ints products(const IntegerGroup<Isa>& group, const int8_t* codes, Ints first_half,
                                              Ints second_half) {
    constexpr IntegerForm kForm = integer_form(kFormat);
    Ints eight[8], low, high;
    for (int b = 0; b < 8; ++b)
      eight[b] =
          Isa::template dot<kForm.is_wide>(group.codes[b], Isa::load(reinterpret_cast<const uint8_t*>(codes + 32 * b)));
    Isa::fold(eight, low, high);
    if constexpr (kForm.has_halves) {
      if constexpr (kForm.shift >= 0) {
        low = Isa::subtract(low, Isa::template shift_left<kForm.shift>(first_half));
        high = Isa::subtract(high, Isa::template shift_left<kForm.shift>(second_half));
      }
      return Isa::add(Isa::times(low, group.halves[0]), Isa::times(high, group.halves[1]));
    } else {
      const Ints all = Isa::add(low, high);
      if constexpr (kForm.shift < 0) return all;
      return Isa::subtract(
          all, Isa::template shift_left < kForm.shift < 0 ? 0 : kForm.shift > (Isa::add(first_half, second_half)));
    }
  }

  template <base::WeightFormat kFormat, int64_t kCount>
  static void fixed(const uint8_t* weights, const RoundedRows& rows, int64_t first, float* out) {
    constexpr IntegerForm kForm = integer_form(kFormat);
    Lanes total[kCount];
    for (Lanes& t : total) t = Isa::zero();
    const int64_t groups = rows.stride / kGroupColumns;
    for (int64_t g = 0; g < groups; ++g) {
      const IntegerGroup<Isa> group = IntegerUnpack<Isa, kFormat>::read(weights, g, rows.columns / 32);
      for (int64_t i = 0; i < kCount; ++i) {
        const int64_t at = (first + i) * groups + g;
        const Ints one = Isa::load_ints(rows.halves + at * 16), two = Isa::load_ints(rows.halves + at * 16 + 8);
        const Lanes scale = Isa::load_lanes(rows.scales + at * 8);
        const Ints dot = products<kFormat>(group, rows.codes + at * kGroupColumns, one, two);
        total[i] = Isa::add_product(Isa::multiply(group.scale, scale), Isa::to_lanes(dot), total[i]);
        if constexpr (kForm.has_min)
          total[i] = Isa::subtract_product(group.min, Isa::load_lanes(rows.sums + at * 8), total[i]);
        if constexpr (kForm.has_half_min) {
          const Ints mins = Isa::add(Isa::times(one, group.half_mins[0]), Isa::times(two, group.half_mins[1]));
          total[i] = Isa::subtract_product(Isa::multiply(group.min, scale), Isa::to_lanes(mins), total[i]);
        }
      }
    }
    for (int64_t i = 0; i < kCount; ++i) out[i] = Isa::sum(total[i]);
  }

  template <base::WeightFormat kFormat>
  static void any(const uint8_t* weights, const RoundedRows& rows, int64_t first, int64_t count, float* out) {
    if (count == 4) return fixed<kFormat, 4>(weights, rows, first, out);
    for (; count >= 2; count -= 2, first += 2, out += 2) fixed<kFormat, 2>(weights, rows, first, out);
    if (count > 0) fixed<kFormat, 1>(weights, rows, first, out);
  }

  static IntegerRowKernel find(base::WeightFormat format) {
    IntegerRowKernel kernel = nullptr;
    visit_integer_format(format, [&]<base::WeightFormat kFormat>() { kernel = any<kFormat>; });
    return kernel;
  }
};

}  // namespace sinter::kernels::cpu
