// Fits a device's efficiency constants to measured steps: few physical constants, many rows, mean absolute log error.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "plan/time.h"

namespace sinter::plan {

// Minimises f from `start` by Nelder and Mead's simplex, restarted around the best point.
std::vector<double> minimize(const std::function<double(const std::vector<double>&)>& f, std::vector<double> start,
                             double spread, int max_evaluations);

// The named constants of Efficiency, for fits and for printing.
std::vector<std::string> efficiency_names();
double& efficiency_constant(Efficiency& efficiency, const std::string& name);

// Varies the constants called `names` (in log space, from their values in `start`) so that predict(efficiency, i) is
// near measured[i]; the loss is the mean of |log(predicted / measured)|.
Efficiency fit_efficiency(const Efficiency& start, const std::vector<std::string>& names,
                          const std::vector<double>& measured,
                          const std::function<double(const Efficiency&, size_t)>& predict, int max_evaluations = 3000);

}  // namespace sinter::plan
