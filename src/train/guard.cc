#include "train/guard.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace sinter::train {

Verdict DivergenceGuard::take(spec::GuardAction action) {
  if (action == spec::GuardAction::stop) return Verdict::stop;
  return ++skips_in_a_row_ > recipe_.max_skips ? Verdict::stop : Verdict::skip;
}

double DivergenceGuard::z_score(const std::vector<double>& window, double value) const {
  if (static_cast<int64_t>(window.size()) < recipe_.window) return 0;  // too early to know what is usual
  double mean = 0, squares = 0;
  for (double v : window) mean += v;
  mean /= static_cast<double>(window.size());
  for (double v : window) squares += (v - mean) * (v - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(window.size()));
  return deviation > 0 ? (value - mean) / deviation : 0;
}

Verdict DivergenceGuard::judge(double loss, double norm, std::string* reason) {
  if (!std::isfinite(loss) || !std::isfinite(norm)) {
    *reason = fmt::format("loss {}, gradient norm {}", loss, norm);
    // An update with such gradients would destroy the weights whatever the recipe says.
    return take(recipe_.on_nan == spec::GuardAction::stop ? spec::GuardAction::stop : spec::GuardAction::skip);
  }
  if (recipe_.on_outlier != spec::GuardAction::off) {
    const double z_loss = z_score(losses_, loss), z_norm = z_score(norms_, norm);
    if (z_loss > recipe_.max_z || z_norm > recipe_.max_z) {
      *reason = fmt::format("loss {:.4f} (z {:.1f}), gradient norm {:.3g} (z {:.1f}), limit z {}", loss, z_loss, norm,
                            z_norm, recipe_.max_z);
      return take(recipe_.on_outlier);
    }
  }
  skips_in_a_row_ = 0;
  for (auto [window, value] : {std::pair{&losses_, loss}, std::pair{&norms_, norm}}) {
    window->push_back(value);
    if (static_cast<int64_t>(window->size()) > recipe_.window) window->erase(window->begin());
  }
  return Verdict::ok;
}

std::vector<double> DivergenceGuard::state() const {
  std::vector<double> out{static_cast<double>(skips_in_a_row_)};
  out.insert(out.end(), losses_.begin(), losses_.end());
  out.insert(out.end(), norms_.begin(), norms_.end());
  return out;
}

void DivergenceGuard::set_state(const std::vector<double>& state) {
  SINTER_CHECK(state.size() % 2 == 1, "the checkpoint's guard state has {} numbers; expected an odd count",
               state.size());
  skips_in_a_row_ = static_cast<int64_t>(state[0]);
  const auto middle = state.begin() + 1 + static_cast<std::ptrdiff_t>(state.size() / 2);
  losses_.assign(state.begin() + 1, middle);
  norms_.assign(middle, state.end());
}

}  // namespace sinter::train
