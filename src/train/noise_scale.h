// The gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"): the batch, in
// tokens, at which noise and signal of the gradient are equal. Larger batches than that bring little.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace sinter::train {

class NoiseScale {
 public:
  // Steps that measure: the small norm takes a pass over all gradients, and the mean over time needs few of them.
  static bool is_measured(int64_t step) { return step % 8 == 0; }
  // Squared norms of the mean gradient over few tokens (one micro-batch) and over many (the whole step).
  void add(double small_norm_squared, double small_tokens, double large_norm_squared, double large_tokens);
  // In tokens; nothing until there are a few measurements, or while noise drowns the signal.
  std::optional<double> tokens() const;
  std::vector<double> state() const { return {signal_, noise_, count_}; }
  void set_state(const std::vector<double>& state);

 private:
  double signal_ = 0, noise_ = 0;  // moving sums of |G|^2 and trace of the covariance
  double count_ = 0;
};

}  // namespace sinter::train
