#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sinter::train {

double lr_factor(const spec::ScheduleRecipe& schedule, int64_t step, int64_t steps) {
  if (step < schedule.warmup) return static_cast<double>(step + 1) / static_cast<double>(schedule.warmup + 1);
  int64_t begin = schedule.warmup;
  if (schedule.kind == spec::ScheduleKind::constant) return 1.0;
  if (schedule.kind == spec::ScheduleKind::wsd) {
    const auto decay = static_cast<int64_t>(std::llround(schedule.decay_share * static_cast<double>(steps)));
    begin = std::max(begin, steps - decay);
    if (step < begin) return 1.0;
  }
  // 0 at the first step of the decay, 1 at the last step of the run.
  const double share = std::clamp(
      static_cast<double>(step - begin) / static_cast<double>(std::max<int64_t>(steps - 1 - begin, 1)), 0.0, 1.0);
  const double shape =
      schedule.kind == spec::ScheduleKind::cosine ? 0.5 * (1 + std::cos(std::numbers::pi * share)) : 1 - share;
  return schedule.final_ratio + (1 - schedule.final_ratio) * shape;
}

}  // namespace sinter::train
