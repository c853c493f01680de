// Searches for the scales with which a few numbers are rounded to codes with the least weighted squared error.
#pragma once
#include <cstdint>
#include <utility>

namespace sinter::quant {

// How much an error of each number matters: its importance (null: alike) times its size beside that of its block.
void weigh(const float* x, const float* importance, int count, float* weights);

// x = scale * code, code from -middle to middle - 1. The scale may be negative.
float fit_symmetric(const float* x, const float* weights, int count, int middle, int8_t* codes);

// x = scale * code - min, code from 0 to largest; both 0 or more, unless `any_min`.
struct AffineFit {
  float scale = 0, min = 0;
};
AffineFit fit_affine(const float* x, const float* weights, int count, int largest, uint8_t* codes,
                     bool min_is_positive = true);

// x = scale * table[code] with the table of iq4_nl.
float fit_table(const float* x, const float* weights, int count, uint8_t* codes);
void nearest_of_table(const float* x, int count, float scale, uint8_t* codes);

// Numbers of which scale and minimum are to be whole multiples of given units.
struct SubBlock {
  const float *x, *weights;
  int count, largest;  // of the codes; or their middle
};
// The whole numbers (scale, min) in 0..most near those given with the least error, and the codes for them.
std::pair<int, int> best_steps(const SubBlock& block, float d, float dmin, int scale, int min, int most,
                               uint8_t* codes);
// The same of codes around a middle and a scale in -middle..middle - 1.
int best_signed_steps(const SubBlock& block, float d, int scale, int scale_middle, int8_t* codes);

}  // namespace sinter::quant
