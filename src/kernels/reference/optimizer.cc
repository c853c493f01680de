#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

// Rounds to bf16 up or down, up with the probability of the part cut off: adds 16 random bits, then truncates.
double round_stochastic(float value, uint32_t random16) {
  uint32_t u = std::bit_cast<uint32_t>(value);
  if ((u & 0x7f800000u) == 0x7f800000u) return value;
  return std::bit_cast<float>((u + random16) & 0xffff0000u);
}

}  // namespace

void adamw(Stream&, const AdamwArgs& args) {
  FloatView master(args.master), grad(args.grad), m(args.m), v(args.v), copy(args.copy), control(args.control);
  if (control[1] == 0) return;
  base::CounterRng rng = rng_of(args.key);
  bool rounds_m = args.m.dtype() == base::DType::bf16, rounds_v = args.v.dtype() == base::DType::bf16;
  double factor1 = 1.0 / (1.0 - std::pow(static_cast<double>(args.beta1), args.step));
  double factor2 = 1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(args.beta2), args.step));
  if (control.size() == kControlSize) {
    factor1 = control[kControlCorrection1];
    factor2 = control[kControlCorrection2];
  }
  for (int64_t i = 0; i < master.size(); ++i) {
    double g = grad[i] * control[0];
    double new_m = args.beta1 * m[i] + (1.0 - args.beta1) * g;
    double new_v = args.beta2 * v[i] + (1.0 - args.beta2) * g * g;
    double update = new_m * factor1 / (std::sqrt(new_v) * factor2 + args.eps);
    master.set(i, master[i] - args.lr * (update + args.weight_decay * master[i]));
    uint32_t bits = rounds_m || rounds_v ? rng.bits(static_cast<uint64_t>(i)) : 0;
    m.set(i, rounds_m ? round_stochastic(static_cast<float>(new_m), bits >> 16) : new_m);
    v.set(i, rounds_v ? round_stochastic(static_cast<float>(new_v), bits & 0xffffu) : new_v);
    if (copy) copy.set(i, master[i]);
  }
}

namespace {

// The nearest of the map's rising values; halfway between two the lower.
uint8_t nearest_code(const float* map, float x) {
  int low = 0, high = 255;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (x > (map[middle] + map[middle + 1]) / 2) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return static_cast<uint8_t>(low);
}

void encode_block(const float* values, int64_t count, const float* map, uint8_t* codes, float& scale) {
  scale = 0;
  for (int64_t i = 0; i < count; ++i) scale = std::max(scale, std::abs(values[i]));
  const float inverse = 1.0f / std::max(scale, 1e-38f);
  for (int64_t i = 0; i < count; ++i) codes[i] = nearest_code(map, std::clamp(values[i] * inverse, -1.0f, 1.0f));
}

}  // namespace

void adamw_8bit(Stream&, const Adamw8bitArgs& args) {
  constexpr int64_t kBlock = Adamw8bitArgs::kBlock;
  FloatView grad(args.grad), copy(args.copy), control(args.control);
  if (control[1] == 0) return;
  double factor1 = 1.0 / (1.0 - std::pow(static_cast<double>(args.beta1), args.step));
  double factor2 = 1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(args.beta2), args.step));
  if (control.size() == kControlSize) {
    factor1 = control[kControlCorrection1];
    factor2 = control[kControlCorrection2];
  }
  const float *m_map = args.m_map.data<float>(), *v_map = args.v_map.data<float>();
  float* master = args.master.data<float>();
  const int64_t n = args.master.num_elements();
  for_each_index((n + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t begin = block * kBlock, count = std::min(kBlock, n - begin);
    float m[kBlock], v[kBlock];
    uint8_t *m_codes = args.m.data<uint8_t>() + begin, *v_codes = args.v.data<uint8_t>() + begin;
    float &m_scale = args.m_scales.data<float>()[block], &v_scale = args.v_scales.data<float>()[block];
    for (int64_t i = 0; i < count; ++i) {
      const float g = static_cast<float>(grad[begin + i] * control[0]);
      m[i] = args.beta1 * (m_map[m_codes[i]] * m_scale) + (1.0f - args.beta1) * g;
      v[i] = args.beta2 * (v_map[v_codes[i]] * v_scale) + (1.0f - args.beta2) * g * g;
      const double update = m[i] * factor1 / (std::sqrt(static_cast<double>(v[i])) * factor2 + args.eps);
      float& weight = master[begin + i];
      weight = static_cast<float>(weight - args.lr * (update + args.weight_decay * static_cast<double>(weight)));
      if (copy) copy.set(begin + i, weight);
    }
    encode_block(m, count, m_map, m_codes, m_scale);
    encode_block(v, count, v_map, v_codes, v_scale);
  });
}

void sgd(Stream&, const SgdArgs& args) {
  FloatView master(args.master), grad(args.grad), velocity(args.velocity), copy(args.copy), control(args.control);
  if (control[1] == 0) return;
  for (int64_t i = 0; i < master.size(); ++i) {
    double step = grad[i] * control[0] + args.weight_decay * master[i];
    if (velocity) {
      step += args.momentum * velocity[i];
      velocity.set(i, step);
    }
    master.set(i, master[i] - args.lr * step);
    if (copy) copy.set(i, master[i]);
  }
}

void muon_momentum(Stream&, const MuonMomentumArgs& args) {
  FloatView grad(args.grad), momentum(args.momentum), direction(args.direction), control(args.control);
  if (control[1] == 0) return;
  base::CounterRng rng = rng_of(args.key);
  const bool rounds = args.momentum.dtype() == base::DType::bf16;
  for (int64_t i = 0; i < grad.size(); ++i) {
    double g = grad[i] * control[0], b = args.mu * momentum[i] + (1.0 - args.mu) * g;
    direction.set(i, (1.0 - args.mu) * g + args.mu * b);
    momentum.set(i, rounds ? round_stochastic(static_cast<float>(b), rng.bits(static_cast<uint64_t>(i)) >> 16) : b);
  }
}

void normalize(Stream&, const NormalizeArgs& args) {
  FloatView x(args.x);
  const int64_t columns = args.x.size(-1);
  for (int64_t r = 0; r < args.x.rows(); ++r) {
    double squares = 0;
    for (int64_t c = r * columns; c < (r + 1) * columns; ++c) squares += x[c] * x[c];
    const double factor = 1.0 / (std::sqrt(squares) + static_cast<double>(args.eps));
    for (int64_t c = r * columns; c < (r + 1) * columns; ++c) x.set(c, x[c] * factor);
  }
}

void sum(Stream&, const SumArgs& args) {
  double total = 0;
  for (int64_t i = 0; i < args.x.num_elements(); ++i) total += static_cast<double>(args.x.data<float>()[i]);
  args.total.data<float>()[0] = static_cast<float>(total);
}

void step_control(Stream&, const StepControlArgs& args) {
  decide_step(args.rule, args.loss_sum.data<float>()[0] * args.loss_factor, args.norm_squared.data<float>()[0],
              args.state.data<float>(), args.control.data<float>(), args.record.data<float>());
}

void sum_squares(Stream&, const SumSquaresArgs& args) {
  FloatView x(args.x), total(args.total);
  double sum = 0;
  for (int64_t i = 0; i < x.size(); ++i) sum += x[i] * x[i];
  total.add(0, sum);
}

}  // namespace sinter::kernels::reference
