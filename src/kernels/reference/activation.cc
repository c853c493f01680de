#include <cmath>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

struct ValueAndSlope {
  double value, slope;
};

ValueAndSlope activate(spec::Activation kind, double x) {
  switch (kind) {
    case spec::Activation::silu: {
      double s = 1.0 / (1.0 + std::exp(-x));
      return {x * s, s * (1.0 + x * (1.0 - s))};
    }
    case spec::Activation::gelu: {
      double cdf = 0.5 * std::erfc(-x * 0.70710678118654752440);
      return {x * cdf, cdf + x * 0.39894228040143267794 * std::exp(-0.5 * x * x)};
    }
    case spec::Activation::gelu_tanh: {
      constexpr double kRoot = 0.79788456080286535588, kCubic = 0.044715;  // sqrt(2 / pi)
      double t = std::tanh(kRoot * (x + kCubic * x * x * x));
      double slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * kRoot * (1.0 + 3.0 * kCubic * x * x);
      return {0.5 * x * (1.0 + t), slope};
    }
    case spec::Activation::relu:
      break;
  }
  return {x > 0 ? x : 0.0, x > 0 ? 1.0 : 0.0};
}

}  // namespace

void activation_forward(Stream&, const ActivationForwardArgs& args) {
  FloatView x(args.x), y(args.y), slopes(args.slope);
  int64_t width = args.y.size(-1), stride = args.gated ? 2 * width : width;
  for_each_index(args.y.rows(), [&](int64_t r) {
    for (int64_t f = 0; f < width; ++f) {
      auto [value, slope] = activate(args.kind, x[r * stride + f]);
      if (slopes) slopes.set(r * width + f, slope);
      y.set(r * width + f, args.gated ? value * x[r * stride + width + f] : value);
    }
  });
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  FloatView dy(args.dy), x(args.x), slopes(args.slope), dx(args.dx);
  int64_t width = args.dy.size(-1), stride = args.gated ? 2 * width : width;
  for_each_index(args.dy.rows(), [&](int64_t r) {
    for (int64_t f = 0; f < width; ++f) {
      int64_t gate = r * stride + f, up = gate + width;
      double d = dy[r * width + f];
      if (slopes) {
        dx.set(gate, d * slopes[gate]);
        continue;
      }
      auto [value, slope] = activate(args.kind, x[gate]);
      if (args.gated) {
        double up_value = x[up];
        dx.set(up, d * value);
        dx.set(gate, d * up_value * slope);
      } else {
        dx.set(gate, d * slope);
      }
    }
  });
  if (args.dx_sums) column_sum(stream, {.x = args.dx, .y = args.dx_sums, .accumulate = true});
}

}  // namespace sinter::kernels::reference
