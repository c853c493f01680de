// Subcommands of `sinter plan` about layouts and published measurements, one file each; plan.cc adds them.
#pragma once
#include <string>

#include "plan/hardware.h"

namespace CLI {
class App;
}

namespace sinter::cli {

// `sinter plan --measure`: benchmarks this machine and saves it in the hardware file `hardware` ("": the user's own).
struct MeasureOptions {
  std::string name{plan::kMeasuredName}, device = "cpu";
  double seconds = 2;
  bool check_only = false;
};
void add_measure_options(CLI::App& plan, MeasureOptions& options);
void run_measure(const MeasureOptions& options, const std::string& hardware, bool as_json);

void add_plan_check(CLI::App& plan);
void add_plan_search(CLI::App& plan);
void add_plan_simulate(CLI::App& plan);

}  // namespace sinter::cli
