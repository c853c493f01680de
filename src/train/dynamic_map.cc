#include "train/dynamic_map.h"

#include <algorithm>
#include <cmath>

namespace sinter::train {

// Seven decades; the i-th is cut into 2^i (with a sign, each way) or 2^(i + 1) equal parts, whose middles count. Edges
// are counted from both ends and rounded once, as torch.linspace does: the same numbers to the last bit.
std::vector<float> dynamic_map(bool is_signed) {
  constexpr int kDecades = 7;
  std::vector<float> map{0.0f, 1.0f};
  for (int i = 0; i < kDecades; ++i) {
    const int parts = is_signed ? 1 << i : 1 << (i + 1);
    const auto decade = static_cast<float>(std::pow(10.0, i - kDecades + 1));
    const float first = 0.1f, last = 1.0f, step = (last - first) / static_cast<float>(parts);
    auto edge = [&](int k) {
      return k < (parts + 1) / 2 ? std::fma(step, static_cast<float>(k), first)
                                 : std::fma(-step, static_cast<float>(parts - k), last);
    };
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
