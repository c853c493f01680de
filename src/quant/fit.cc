#include "quant/fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/block_decode.h"

namespace sinter::quant {
namespace {

constexpr int kMostNumbers = 32;

int nearest(float x) { return static_cast<int>(std::lrint(x)); }

struct Best {
  float scale = 0;
  double error = 0;
};

}  // namespace

void weigh(const float* x, const float* importance, int count, float* weights) {
  double squares = 0;
  for (int i = 0; i < count; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double mean = squares / count;
  for (int i = 0; i < count; ++i) {
    const double size = importance ? std::sqrt(mean + static_cast<double>(x[i]) * x[i])
                                   : std::sqrt(mean) + std::fabs(static_cast<double>(x[i]));
    weights[i] = static_cast<float>(size * (importance ? static_cast<double>(importance[i]) : 1.0));
  }
}

float fit_symmetric(const float* x, const float* weights, int count, int middle, int8_t* codes) {
  float extreme = 0;
  for (int i = 0; i < count; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  std::fill_n(codes, count, int8_t{0});
  if (std::fabs(extreme) < 1e-30f) return 0;
  // With codes given, the best scale is a least-squares fit, which lowers the error by gain = (w x c)^2 / (w c^2).
  std::array<int8_t, kMostNumbers> trial;
  double best_gain = -1;
  float best_scale = 0;
  auto try_inverse = [&](float inverse) {
    double xc = 0, cc = 0;
    for (int i = 0; i < count; ++i) {
      const int code = std::clamp(nearest(x[i] * inverse), -middle, middle - 1);
      trial[static_cast<size_t>(i)] = static_cast<int8_t>(code);
      xc += static_cast<double>(weights[i]) * x[i] * code;
      cc += static_cast<double>(weights[i]) * code * code;
    }
    if (cc <= 0 || xc * xc <= best_gain * cc) return;
    best_gain = xc * xc / cc;
    best_scale = static_cast<float>(xc / cc);
    std::copy_n(trial.begin(), count, codes);
  };
  for (int step = -12; step <= 12; ++step)
    try_inverse(-(static_cast<float>(middle) + 0.1f * static_cast<float>(step)) / extreme);
  for (int step = -4; step <= 4; ++step)  // the extreme at the other end
    try_inverse((static_cast<float>(middle) - 0.5f + 0.15f * static_cast<float>(step)) / extreme);
  for (int round = 0; round < 3 && best_scale != 0; ++round) {  // codes of the fitted scale, fitted again
    const float before = best_scale;
    try_inverse(1.0f / best_scale);
    if (best_scale == before) break;
  }
  return best_scale;
}

AffineFit fit_affine(const float* x, const float* weights, int count, int largest, uint8_t* codes,
                     bool min_is_positive) {
  float low = *std::min_element(x, x + count), high = *std::max_element(x, x + count);
  if (min_is_positive) low = std::min(low, 0.0f);
  std::fill_n(codes, count, uint8_t{0});
  if (!(high > low)) return {0, -low};
  double sum_w = 0, sum_x = 0, sum_xx = 0;
  for (int i = 0; i < count; ++i) {
    sum_w += static_cast<double>(weights[i]);
    sum_x += static_cast<double>(weights[i]) * x[i];
    sum_xx += static_cast<double>(weights[i]) * x[i] * x[i];
  }
  std::array<uint8_t, kMostNumbers> trial;
  AffineFit best{(high - low) / static_cast<float>(largest), -low};
  double least = -1;
  auto try_codes = [&](float inverse, float bottom) {
    double c1 = 0, c2 = 0, cx = 0;
    for (int i = 0; i < count; ++i) {
      const int code = std::clamp(nearest((x[i] - bottom) * inverse), 0, largest);
      trial[static_cast<size_t>(i)] = static_cast<uint8_t>(code);
      const double w = weights[i];
      c1 += w * code, c2 += w * code * code, cx += w * code * x[i];
    }
    const double determinant = sum_w * c2 - c1 * c1;
    if (determinant <= 0) return;
    double scale = (sum_w * cx - sum_x * c1) / determinant, offset = (c2 * sum_x - c1 * cx) / determinant;
    if (min_is_positive && offset > 0) offset = 0, scale = c2 > 0 ? cx / c2 : 0;
    const double error = sum_xx + scale * scale * c2 + offset * offset * sum_w - 2 * scale * cx - 2 * offset * sum_x +
                         2 * scale * offset * c1;
    if (scale <= 0 || (least >= 0 && error >= least)) return;
    least = error;
    best = {static_cast<float>(scale), static_cast<float>(-offset)};
    std::copy_n(trial.begin(), count, codes);
  };
  for (int step = -10; step <= 10; ++step)
    try_codes((static_cast<float>(largest) + 0.1f * static_cast<float>(step)) / (high - low), low);
  for (int round = 0; round < 4; ++round) {
    const AffineFit before = best;
    try_codes(1.0f / best.scale, -best.min);
    if (best.scale == before.scale && best.min == before.min) break;
  }
  return best;
}

void nearest_of_table(const float* x, int count, float scale, uint8_t* codes) {
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < count; ++i) {
    const float value = x[i] * inverse;
    int best = 0;
    for (int code = 1; code < 16; ++code) {
      if (std::fabs(value - static_cast<float>(base::block::kIq4Values[code])) <
          std::fabs(value - static_cast<float>(base::block::kIq4Values[best])))
        best = code;
    }
    codes[i] = static_cast<uint8_t>(best);
  }
}

float fit_table(const float* x, const float* weights, int count, uint8_t* codes) {
  float extreme = 0;
  for (int i = 0; i < count; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  std::fill_n(codes, count, uint8_t{0});
  if (std::fabs(extreme) < 1e-30f) return 0;
  std::array<uint8_t, kMostNumbers> trial;
  double best_gain = -1;
  float best_scale = 0;
  auto try_scale = [&](float scale) {
    nearest_of_table(x, count, scale, trial.data());
    double xc = 0, cc = 0;
    for (int i = 0; i < count; ++i) {
      const double code = base::block::kIq4Values[trial[static_cast<size_t>(i)]], w = weights[i];
      xc += w * x[i] * code, cc += w * code * code;
    }
    if (cc <= 0 || xc * xc <= best_gain * cc) return;
    best_gain = xc * xc / cc;
    best_scale = static_cast<float>(xc / cc);
    std::copy_n(trial.begin(), count, codes);
  };
  const float first = base::block::kIq4Values[0], last = base::block::kIq4Values[15];
  for (int step = -7; step <= 7; ++step) {
    try_scale(extreme / (first + 1.5f * static_cast<float>(step)));
    try_scale(extreme / (last + 1.5f * static_cast<float>(step)));
  }
  for (int round = 0; round < 3; ++round) {
    const float before = best_scale;
    try_scale(best_scale);
    if (before == best_scale) break;
  }
  return best_scale;
}

namespace {

// Rounds a sub-block with scale and minimum given; the weighted squared error.
double round_affine(const SubBlock& block, float scale, float min, uint8_t* codes) {
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  double error = 0;
  for (int i = 0; i < block.count; ++i) {
    const int code = std::clamp(nearest((block.x[i] + min) * inverse), 0, block.largest);
    codes[i] = static_cast<uint8_t>(code);
    const double e = static_cast<double>(scale * static_cast<float>(code) - min) - static_cast<double>(block.x[i]);
    error += static_cast<double>(block.weights[i]) * e * e;
  }
  return error;
}

double round_symmetric(const SubBlock& block, float scale, int8_t* codes) {
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  double error = 0;
  for (int i = 0; i < block.count; ++i) {
    const int code = std::clamp(nearest(block.x[i] * inverse), -block.largest, block.largest - 1);
    codes[i] = static_cast<int8_t>(code);
    const double e = static_cast<double>(scale * static_cast<float>(code)) - static_cast<double>(block.x[i]);
    error += static_cast<double>(block.weights[i]) * e * e;
  }
  return error;
}

}  // namespace

std::pair<int, int> best_steps(const SubBlock& block, float d, float dmin, int scale, int min, int most,
                               uint8_t* codes) {
  std::array<uint8_t, kMostNumbers> trial;
  std::pair<int, int> best{scale, min};
  double least = -1;
  for (int s = std::max(0, scale - 1); s <= std::min(most, scale + 1); ++s) {
    for (int m = std::max(0, min - 1); m <= std::min(most, min + 1); ++m) {
      const double error = round_affine(block, d * static_cast<float>(s), dmin * static_cast<float>(m), trial.data());
      if (least >= 0 && error >= least) continue;
      least = error;
      best = {s, m};
      std::copy_n(trial.begin(), block.count, codes);
    }
  }
  return best;
}

int best_signed_steps(const SubBlock& block, float d, int scale, int scale_middle, int8_t* codes) {
  std::array<int8_t, kMostNumbers> trial;
  int best = scale;
  double least = -1;
  for (int s = std::max(-scale_middle, scale - 1); s <= std::min(scale_middle - 1, scale + 1); ++s) {
    const double error = round_symmetric(block, d * static_cast<float>(s), trial.data());
    if (least >= 0 && error >= least) continue;
    least = error;
    best = s;
    std::copy_n(trial.begin(), block.count, codes);
  }
  return best;
}

}  // namespace sinter::quant
