#include <algorithm>
#include <cmath>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void rope_table(Stream&, const RopeTableArgs& args) {
  int64_t half = args.inv_freq.size(-1);
  bool is_shared = args.inv_freq.rows() == 1;
  for_each_index(args.positions.num_elements(), [&](int64_t t) {
    int64_t row = is_shared ? 0 : std::max(0, args.sequence_of.data<int32_t>()[t]);  // padding holds -1
    const float* inv_freq = args.inv_freq.data<float>() + row * half;
    float* out = args.cos_sin.data<float>() + t * 2 * half;
    for (int64_t i = 0; i < half; ++i) {
      float angle = static_cast<float>(args.positions.data<int32_t>()[t]) * inv_freq[i];
      out[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * args.scale);
      out[half + i] = static_cast<float>(std::sin(static_cast<double>(angle)) * args.scale);
    }
  });
}

void rope(Stream&, const RopeArgs& args) {
  FloatView x(args.x), cos_sin(args.cos_sin);
  int64_t width = args.x.size(-1), dim = args.head_dim, half = dim / 2;
  for_each_index(args.x.rows(), [&](int64_t t) {
    for (int64_t h = 0; h < args.num_rotated; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        int64_t first = t * width + h * dim + i, second = first + half;
        double c = cos_sin[t * dim + i], s = cos_sin[t * dim + half + i];
        if (args.inverse) s = -s;
        double a = x[first], b = x[second];
        x.set(first, a * c - b * s);
        x.set(second, b * c + a * s);
      }
    }
  });
}

}  // namespace sinter::kernels::reference
