// Watches loss and gradient norm for divergence: values that are not finite, and outliers by z-score.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "spec/recipe.h"

namespace sinter::train {

enum class Verdict { ok, skip, stop };

class DivergenceGuard {
 public:
  explicit DivergenceGuard(const spec::GuardRecipe& recipe) : recipe_(recipe) {}
  // Judges a step before its update. Steps that are not skipped enter the window. `reason` says why it is not ok.
  Verdict judge(double loss, double norm, std::string* reason);
  // Everything that later verdicts depend on, for checkpoints.
  std::vector<double> state() const;
  void set_state(const std::vector<double>& state);

 private:
  Verdict take(spec::GuardAction action);
  double z_score(const std::vector<double>& window, double value) const;
  spec::GuardRecipe recipe_;
  std::vector<double> losses_, norms_;  // the last `window` good steps, oldest first
  int64_t skips_in_a_row_ = 0;
};

}  // namespace sinter::train
