// `sinter plan --measure`: this machine as a device of the planner's hardware table, by short benchmarks.
#pragma once
#include <string>

#include "bench/report.h"
#include "plan/hardware.h"

namespace sinter::bench {

struct MeasuredDevice {
  plan::Device device;
  Report report;  // a training step that was not fitted to: measured beside predicted
};
// Ceilings, then training steps of two small models in fp32 and bf16. Takes 20 to 60 seconds.
MeasuredDevice measure_device(const std::string& name, const Options& options);

}  // namespace sinter::bench
