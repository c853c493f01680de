// Learning-rate schedules: a factor of the largest rate for every step.
#pragma once
#include <cstdint>

#include "spec/recipe.h"

namespace sinter::train {

// Factor for `step` (from 0) of `steps`. Warm-up grows linearly and reaches 1 at step `warmup`; then
//   constant  1
//   cosine    half a cosine from 1 to final_ratio at the last step
//   linear    a straight line from 1 to final_ratio
//   wsd       1 until the last decay_share of the steps, then a straight line to final_ratio
double lr_factor(const spec::ScheduleRecipe& schedule, int64_t step, int64_t steps);

}  // namespace sinter::train
