#include "train/dynamic_map.h"

#include <algorithm>
#include <cmath>

namespace sinter::train {

// Seven decades; the i-th is cut into 2^i (with a sign, each way) or 2^(i + 1) equal parts, whose middles count.
std::vector<float> dynamic_map(bool is_signed) {
  constexpr int kDecades = 7;
  std::vector<float> map{0.0f, 1.0f};
  for (int i = 0; i < kDecades; ++i) {
    const int parts = is_signed ? 1 << i : 1 << (i + 1);
    const auto decade = static_cast<float>(std::pow(10.0, i - kDecades + 1));
    auto edge = [&](int k) { return static_cast<float>(0.1 + 0.9 * k / parts); };
    for (int k = 0; k < parts; ++k) {
      const float value = decade * ((edge(k) + edge(k + 1)) / 2.0f);
      map.push_back(value);
      if (is_signed) map.push_back(-value);
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

}  // namespace sinter::train
