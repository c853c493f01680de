// How kPackedRows rows of a weight lie in a strip: codes in about as many bits as the format gives them, interleaved so
// that a vector of 64 bytes has four columns of 16 rows.
//
// A strip begins with what a format has once for 256 columns (scale and minimum, f16 for each row); then comes a record
// for each block of 32 columns. Blocks are in the order of their lanes (integer_product.h): 0, 8, 16, ..., then 1, 9,
// ... A record is
//
//   codes     step j of eight (columns 4 j to 4 j + 3) of rows 0 to 15, then of 16 to 31. In 8 bits a vector each; else
//             the low four bits of steps 2 i and 2 i + 1 share the vector i (low half first), and behind them those
//             above share vectors of eight steps (1 bit) or four (2 bits), the first step lowest
//   scale     f16, f32, or a whole number that multiplies the one of 256 columns; of each row
//   minimum   in the same form, where there is one
//   halves    two whole factors in 8 bits, and two of the minimum, where the format has them
#pragma once
#include "kernels/cpu/quantized/integer_form.h"
#include "kernels/cpu/quantized/integer_product.h"

namespace sinter::kernels::cpu {

enum class StripScale : uint8_t { of_group, step, half, single };

struct StripForm {
  int code_bits = 8;
  StripScale scale = StripScale::half;
  int group_halves = 0;  // f16 numbers of a row for 256 columns
  int64_t min_offset = 0, halves_offset = 0, half_mins_offset = 0, scale_offset = 0, record_bytes = 0;  // in a record
};

constexpr StripForm strip_form(base::WeightFormat format) {
  using enum base::WeightFormat;
  const IntegerForm form = integer_form(format);
  StripForm strip;
  switch (format) {
    case q4_0:
    case q4_1:
      strip.code_bits = 4;
      break;
    case q5_0:
    case q5_1:
      strip.code_bits = 5;
      break;
    case q4_k:
    case q5_k:
      strip = {.code_bits = format == q4_k ? 4 : 5, .scale = StripScale::step, .group_halves = 2};
      break;
    case q2_k:
    case q3_k:
    case q6_k:
      strip = {.code_bits = format == q6_k ? 6 : 4,
               .scale = StripScale::of_group,
               .group_halves = form.has_half_min ? 2 : 1};
      break;
    case mxfp4:
    case iq4_xs:
      strip.scale = StripScale::single;
      break;
    default:  // q8_0, iq4_nl
      break;
  }
  const int64_t each = strip.scale == StripScale::step     ? 1
                       : strip.scale == StripScale::half   ? 2
                       : strip.scale == StripScale::single ? 4
                                                           : 0;
  strip.scale_offset = strip.code_bits * 4 * kPackedRows;
  strip.min_offset = strip.scale_offset + each * kPackedRows;
  strip.halves_offset = strip.min_offset + (form.has_min ? each * kPackedRows : 0);
  strip.half_mins_offset = strip.halves_offset + (form.has_halves ? 2 * kPackedRows : 0);
  strip.record_bytes = strip.half_mins_offset + (form.has_half_min ? 2 * kPackedRows : 0);
  return strip;
}

// Where the halves of 256 columns stand in the format's own block: the scale, and the minimum behind it.
constexpr int64_t group_scale_at(base::WeightFormat format) {
  using enum base::WeightFormat;
  return format == q2_k ? 80 : format == q3_k ? 108 : format == q6_k ? 208 : 0;
}

// The places of a strip of so many columns.
struct StripPlaces {
  int64_t blocks, groups;
  explicit StripPlaces(int64_t columns) : blocks(columns / 32), groups((blocks + 7) / 8) {}
  int64_t in_lane(int64_t lane) const { return (blocks - lane + 7) / 8; }
  int64_t record(int64_t g, int64_t lane) const {
    const int64_t whole = blocks / 8;
    return lane * whole + (lane < blocks % 8 ? lane : blocks % 8) + g;
  }
};

// A multiple of 64.
constexpr int64_t strip_bytes(base::WeightFormat format, int64_t columns) {
  const StripForm strip = strip_form(format);
  const int64_t blocks = columns / 32, groups = (blocks + 7) / 8;
  return groups * strip.group_halves * kPackedRows * 2 + blocks * strip.record_bytes;
}

// Whether strips take hardly more memory than the format's own blocks, so that a model can be kept in them.
constexpr bool is_strip_small(base::WeightFormat format) {
  const int64_t own = kPackedRows * group_bytes(format);
  return strip_bytes(format, kGroupColumns) <= own + own / 32;
}

}  // namespace sinter::kernels::cpu
