#include "plan/scaling/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text.h"

namespace sinter::plan {
namespace {

// Kaplan et al. 2020: N counts no embeddings.
constexpr double kKaplanNc = 8.8e13, kKaplanDc = 5.4e13, kKaplanAlphaN = 0.076, kKaplanAlphaD = 0.095;
constexpr double kPetaflopDay = 8.64e19, kKaplanBestN = 1.3e9, kKaplanExponent = 0.73;

// The argument in [low, high] where a falling-then-rising function is least (golden section).
template <class F>
double least_of(double low, double high, F f) {
  constexpr double kGolden = 0.6180339887498949;
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
  double fa = f(a), fb = f(b);
  for (int i = 0; i < 200 && high - low > 1e-12 * (std::abs(low) + 1); ++i) {
    if (fa <= fb) {
      high = b;
      b = a;
      fb = fa;
      fa = f(a = high - kGolden * (high - low));
    } else {
      low = a;
      a = b;
      fa = fb;
      fb = f(b = low + kGolden * (high - low));
    }
  }
  return 0.5 * (low + high);
}

}  // namespace

double ScalingLaw::loss(double parameters, double tokens) const {
  if (kind == Kind::kaplan) {
    return std::pow(std::pow(kKaplanNc / parameters, kKaplanAlphaN / kKaplanAlphaD) + kKaplanDc / tokens,
                    kKaplanAlphaD);
  }
  return E + A / std::pow(parameters, alpha) + B / std::pow(tokens, beta);
}

const std::vector<ScalingLaw>& scaling_laws() {
  using Kind = ScalingLaw::Kind;
  static const std::vector<ScalingLaw> laws{
      {"epoch", "Besiroglu et al. 2024, refit of Chinchilla's runs", Kind::parametric, 1.8172, 482.01, 2085.43, 0.3478,
       0.3658},
      {"hoffmann", "Hoffmann et al. 2022 as printed (rounded exponents)", Kind::parametric, 1.69, 406.4, 410.7, 0.34,
       0.28},
      {"hoffmann-unrounded", "Hoffmann et al. 2022, exponents unrounded", Kind::parametric, 1.69, 406.4, 410.7, 0.3392,
       0.2849},
      {"kaplan", "Kaplan et al. 2020 (N without embeddings)", Kind::kaplan},
      {"chinchilla-20", "20 tokens per parameter; losses of the Epoch refit", Kind::ratio, 1.8172, 482.01, 2085.43,
       0.3478, 0.3658, 20},
  };
  return laws;
}

const ScalingLaw& scaling_law(std::string_view name) {
  std::vector<std::string> names;
  for (const ScalingLaw& law : scaling_laws()) {
    if (law.name == name) return law;
    names.push_back(law.name);
  }
  base::fail_usage("unknown scaling law '{}'; known: {}{}", name, fmt::join(names, ", "),
                   base::did_you_mean(name, names));
}

Optimum compute_optimal(const ScalingLaw& law, double flops) {
  if (!(flops > 0) || !std::isfinite(flops))
    base::fail_usage("a budget of {} FLOPs; expected more than 0, such as 1e21", flops);
  Optimum best;
  best.flops = flops;
  switch (law.kind) {
    case ScalingLaw::Kind::parametric: {
      const double sum = law.alpha + law.beta;
      const double G = std::pow(law.alpha * law.A / (law.beta * law.B), 1 / sum);
      best.parameters = G * std::pow(flops / 6, law.beta / sum);
      break;
    }
    case ScalingLaw::Kind::kaplan:
      best.parameters = kKaplanBestN * std::pow(flops / kPetaflopDay, kKaplanExponent);
      break;
    case ScalingLaw::Kind::ratio:
      best.parameters = std::sqrt(flops / (6 * law.tokens_per_parameter));
      break;
  }
  best.tokens = flops / (6 * best.parameters);
  best.loss = law.loss(best.parameters, best.tokens);
  return best;
}

// Kaplan's own rule for the best N does not minimise his L(N, D), with which losses are told here.
static Optimum cheapest_by_kaplan(const ScalingLaw& law, double loss) {
  if (!(loss > 0)) base::fail_usage("the law '{}' never reaches a loss of {}", law.name, loss);
  // A model of at most this size never reaches the loss.
  const double fails = std::log(kKaplanNc) - std::log(loss) / kKaplanAlphaN;
  auto flops = [&](double log_n) { return log_n + std::log(tokens_for_loss(law, std::exp(log_n), loss)); };
  const double n = std::exp(least_of(fails + 1e-6, fails + std::log(1e6), flops));
  const double d = tokens_for_loss(law, n, loss);
  return {n, d, 6 * n * d, loss};
}

Optimum cheapest_for_loss(const ScalingLaw& law, double loss) {
  if (law.kind == ScalingLaw::Kind::kaplan) return cheapest_by_kaplan(law, loss);
  double low = std::log(1e6), high = std::log(1e45);
  if (!(compute_optimal(law, std::exp(high)).loss < loss)) {
    base::fail_usage("the law '{}' never reaches a loss of {}; its floor is {}", law.name, loss, law.E);
  }
  for (int i = 0; i < 200; ++i) {
    double middle = 0.5 * (low + high);
    (compute_optimal(law, std::exp(middle)).loss > loss ? low : high) = middle;
  }
  return compute_optimal(law, std::exp(high));
}

double tokens_for_loss(const ScalingLaw& law, double parameters, double loss) {
  if (law.kind == ScalingLaw::Kind::kaplan) {
    double rest = std::pow(loss, 1 / kKaplanAlphaD) - std::pow(kKaplanNc / parameters, kKaplanAlphaN / kKaplanAlphaD);
    return rest > 0 ? kKaplanDc / rest : std::numeric_limits<double>::infinity();
  }
  double rest = loss - law.E - law.A / std::pow(parameters, law.alpha);
  return rest > 0 ? std::pow(law.B / rest, 1 / law.beta) : std::numeric_limits<double>::infinity();
}

LifetimeOptimum optimal_with_inference(const ScalingLaw& law, double loss, double inference_tokens,
                                       double inference_cost) {
  if (!(inference_tokens >= 0) || !(inference_cost > 0)) {
    base::fail_usage("inference of {} tokens at {} of a training FLOP; expected at least 0 tokens and a positive cost",
                     inference_tokens, inference_cost);
  }
  LifetimeOptimum out;
  out.train_only = cheapest_for_loss(law, loss);
  auto inference = [&](double n) { return 2 * n * inference_tokens * inference_cost; };
  auto total = [&](double log_n) {
    double n = std::exp(log_n);
    return std::log(6 * n * tokens_for_loss(law, n, loss) + inference(n));
  };
  // A model too small never reaches the loss; one larger than the cheapest to train only costs more.
  const double largest = std::log(out.train_only.parameters);
  double reaches = largest, fails = largest - 40;
  while (reaches - fails > 1e-9) {
    double middle = 0.5 * (reaches + fails);
    (std::isfinite(tokens_for_loss(law, std::exp(middle), loss)) ? reaches : fails) = middle;
  }
  double n = std::exp(least_of(reaches, largest, total));
  double d = tokens_for_loss(law, n, loss);
  out.model = {n, d, 6 * n * d, loss};
  out.inference_flops = inference(n);
  out.total_flops = out.model.flops + out.inference_flops;
  out.train_only_total = out.train_only.flops + inference(out.train_only.parameters);
  return out;
}

OverTraining over_training(const ScalingLaw& law, double parameters, double tokens) {
  OverTraining out;
  out.loss = law.loss(parameters, tokens);
  out.tokens_per_parameter = tokens / parameters;
  out.cheapest = cheapest_for_loss(law, out.loss);
  out.extra_compute = 6 * parameters * tokens / out.cheapest.flops - 1;
  out.smaller = 1 - parameters / out.cheapest.parameters;
  return out;
}

}  // namespace sinter::plan
