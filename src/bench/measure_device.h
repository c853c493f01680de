// `sinter plan --measure`: this machine as a device of the planner's hardware table, by short benchmarks.
#pragma once
#include <string>
#include <vector>

#include "bench/report.h"
#include "core/device.h"
#include "plan/calibrate.h"
#include "plan/hardware.h"

namespace sinter::bench {

// A training step to run: `micro_batches` of `sequences` x `length` tokens.
struct StepCase {
  std::string name;
  spec::ModelSpec model;
  int64_t sequences = 1, length = 128, micro_batches = 1;
};
// What the constants are fitted to, and larger steps of other models that they are then held against.
std::vector<StepCase> fitted_cases(core::Device device);
std::vector<StepCase> checked_cases(core::Device device);

// A table of steps: time measured beside predicted, and on a GPU memory by the formulas beside the trainer's own plan
// and the allocator's high-water mark.
Report make_step_report(core::Device device);

// Ceilings, then the fitted steps in fp32 and bf16 (a GPU: bf16), which are added to `report`. The best run of every
// kernel counts; 20 to 60 seconds.
plan::DeviceSpec measure_device(const std::string& name, core::Device device, const Options& options, Report& report);

// How much slower (above 0) or faster the third fitted step runs now than when it was measured: what the machine's own
// speed changed by in between.
double measure_drift(core::Device device, const Options& options, const Report& report);

// Adds the checked steps in the formats `measured` has constants for.
void check_measured_device(const plan::DeviceSpec& measured, core::Device device, const Options& options,
                           Report& report);

}  // namespace sinter::bench
