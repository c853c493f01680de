// Subcommands of `sinter plan` about layouts and published measurements, one file each; plan.cc adds them.
#pragma once
#include <string>

#include "plan/hardware.h"

namespace sinter::cli {

class Command;

// `sinter plan --measure`: benchmarks this machine and saves it in the hardware file `hardware` ("": the user's own).
struct MeasureOptions {
  std::string name{plan::kMeasuredName}, device = "cpu";
  double seconds = 2;
  bool check_only = false, force = false;
};
void add_measure_options(Command plan, MeasureOptions& options);
void run_measure(const MeasureOptions& options, const std::string& hardware, bool as_json);

// Writes a device into the hardware file `path`, in place of an entry of the same name.
void save_device(const plan::DeviceSpec& device, const std::string& path);

void add_plan_check(Command plan);
void add_plan_search(Command plan);
void add_plan_simulate(Command plan);

}  // namespace sinter::cli
