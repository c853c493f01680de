// Scaling laws: what loss a model of N parameters reaches on D tokens, and the best N and D for a budget C = 6 N D.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinter::plan {

struct ScalingLaw {
  enum class Kind { parametric, kaplan, ratio };
  std::string name, source;
  Kind kind = Kind::parametric;
  // parametric: L(N, D) = E + A / N^alpha + B / D^beta
  double E = 0, A = 0, B = 0, alpha = 0, beta = 0;
  double tokens_per_parameter = 0;  // ratio: D = ratio * N; its loss is that of the constants above

  double loss(double parameters, double tokens) const;
};
// epoch (default), hoffmann, hoffmann-unrounded, kaplan, chinchilla-20
const std::vector<ScalingLaw>& scaling_laws();
// Throws UsageError naming the nearest.
const ScalingLaw& scaling_law(std::string_view name);
inline constexpr std::string_view kDefaultLaw = "epoch";

struct Optimum {
  double parameters = 0, tokens = 0, flops = 0, loss = 0;
};
// The least loss for a training budget. Throws UsageError when the budget is not positive.
Optimum compute_optimal(const ScalingLaw& law, double flops);
// The cheapest training that reaches `loss`. Throws UsageError when the law never reaches it.
Optimum cheapest_for_loss(const ScalingLaw& law, double loss);
// Tokens a model of this size needs for `loss`; infinity when it never gets there.
double tokens_for_loss(const ScalingLaw& law, double parameters, double loss);

// Least training plus inference compute at a fixed loss: 6 N D + 2 N D_inference * `inference_cost`, where
// inference_cost is the price of an inference FLOP in training FLOPs (they run at a lower utilisation).
struct LifetimeOptimum {
  Optimum model;
  double inference_flops = 0, total_flops = 0;
  Optimum train_only;           // the cheapest training for the same loss
  double train_only_total = 0;  // its training plus inference
};
LifetimeOptimum optimal_with_inference(const ScalingLaw& law, double loss, double inference_tokens,
                                       double inference_cost = 1);

// How far a model trained on D tokens is past the cheapest way to its loss.
struct OverTraining {
  double loss = 0, tokens_per_parameter = 0;
  Optimum cheapest;
  double extra_compute = 0;  // flops / cheapest.flops - 1
  double smaller = 0;        // 1 - parameters / cheapest.parameters: saved at every inference
};
OverTraining over_training(const ScalingLaw& law, double parameters, double tokens);

}  // namespace sinter::plan
