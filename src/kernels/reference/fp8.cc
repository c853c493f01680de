// fp8 by plain loops: scale, round, transpose.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

// NaN above infinity above all numbers: the order of the bits of magnitudes.
float larger_magnitude(float a, float b) {
  auto bits = [](float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; };
  return std::bit_cast<float>(std::max(bits(a), bits(b)));
}

void write_fp8(const std::vector<float>& x, int64_t rows, int64_t columns, const Fp8Output& y) {
  FloatView values(y.values), transposed(y.transposed);
  float* scaling = y.scaling.data<float>();
  const float scale = scaling[Fp8Scaling::kScale];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float value = x[static_cast<size_t>(r * columns + c)];
      scaling[Fp8Scaling::kLargest] = larger_magnitude(scaling[Fp8Scaling::kLargest], value);
      if (values) values.set(r * columns + c, value * scale);
      if (transposed) transposed.set(c * rows + r, value * scale);
    }
  }
}

// A scratch tensor of plain numbers.
Tensor floats_like(const Tensor& x, int64_t columns) {
  return Tensor(core::runtime({}).allocator(), {x.rows(), columns}, base::DType::f32);
}

}  // namespace

void fp8_quantize(Stream&, const Fp8QuantizeArgs& args) {
  write_fp8(core::to_host_floats(args.x), args.x.rows(), args.x.size(-1), args.y);
}

void fp8_swiglu_forward(Stream& stream, const Fp8SwigluForwardArgs& args) {
  Tensor y = floats_like(args.x, args.x.size(-1) / 2);
  activation_forward(stream, {.kind = spec::Activation::silu, .gated = true, .x = args.x, .y = y});
  write_fp8(core::to_host_floats(y), y.rows(), y.size(-1), args.y);
}

void fp8_swiglu_backward(Stream& stream, const Fp8SwigluBackwardArgs& args) {
  Tensor dx = floats_like(args.x, args.x.size(-1));
  activation_backward(stream, {.kind = spec::Activation::silu, .gated = true, .dy = args.dy, .x = args.x, .dx = dx});
  write_fp8(core::to_host_floats(dx), dx.rows(), dx.size(-1), args.dx);
}

void fp8_rescale(Stream&, const Fp8RescaleArgs& args) {
  for (int64_t s = 0; s < args.scalings.rows(); ++s) {
    float* row = args.scalings.data<float>() + s * Fp8Scaling::kSize;
    float* history = row + Fp8Scaling::kHistory;
    const float seen = row[Fp8Scaling::kLargest];
    if (seen > 0 && std::isfinite(seen)) {
      std::copy_backward(history, history + Fp8Scaling::kHistorySteps - 1, history + Fp8Scaling::kHistorySteps);
      history[0] = seen;
    }
    const float largest = *std::max_element(history, history + Fp8Scaling::kHistorySteps);
    float scale = 1.0f;
    if (largest > 0) {
      const float most = std::clamp(row[Fp8Scaling::kLimit] / largest, 0x1p-100f, 0x1p100f);
      scale = std::bit_cast<float>(std::bit_cast<uint32_t>(most) & 0x7f800000u);  // the power of two at or below it
    }
    row[Fp8Scaling::kScale] = scale;
    row[Fp8Scaling::kInverse] = 1.0f / scale;
    row[Fp8Scaling::kLargest] = 0.0f;
  }
}

}  // namespace sinter::kernels::reference
