// How formats look to the integer kernels: a number is scale * (code - 2^shift) - minimum, with codes from 0 to 255.
#pragma once
#include <cstdint>

#include "base/weight_format.h"

namespace sinter::kernels::cpu {

struct IntegerForm {
  int shift = -1;             // -1: nothing is subtracted from the code
  bool is_wide = false;       // codes above 127
  bool has_min = false;       // a minimum for each 32 columns
  bool has_halves = false;    // whole factors of the scale for each 16 columns
  bool has_half_min = false;  // whole factors of the minimum for each 16 columns
};

constexpr bool has_integer_form(base::WeightFormat format) {
  using enum base::WeightFormat;
  switch (format) {
    case q4_0:
    case q4_1:
    case q5_0:
    case q5_1:
    case q8_0:
    case q2_k:
    case q3_k:
    case q4_k:
    case q5_k:
    case q6_k:
    case iq4_nl:
    case iq4_xs:
    case mxfp4:
      return true;
    default:
      return false;
  }
}

// Bytes of 256 columns.
constexpr int64_t group_bytes(base::WeightFormat format) {
  using enum base::WeightFormat;
  switch (format) {
    case q8_0:
      return 272;
    case q4_0:
    case iq4_nl:
    case q4_k:
      return 144;
    case q4_1:
      return 160;
    case q5_0:
    case q5_k:
      return 176;
    case q5_1:
      return 192;
    case mxfp4:
    case iq4_xs:
      return 136;
    case q2_k:
      return 84;
    case q3_k:
      return 110;
    case q6_k:
      return 210;
    default:
      return 0;
  }
}

constexpr IntegerForm integer_form(base::WeightFormat format) {
  using enum base::WeightFormat;
  switch (format) {
    case q4_0:
      return {.shift = 3};
    case q5_0:
    case mxfp4:
      return {.shift = 4};
    case q8_0:
    case iq4_nl:
    case iq4_xs:
      return {.shift = 7, .is_wide = true};
    case q3_k:
      return {.shift = 2, .has_halves = true};
    case q6_k:
      return {.shift = 5, .has_halves = true};
    case q2_k:
      return {.has_halves = true, .has_half_min = true};
    default:  // q4_1, q5_1, q4_k, q5_k
      return {.has_min = true};
  }
}

}  // namespace sinter::kernels::cpu
