// Published measurements read from files: points in JSON (a list, or an object with "points") and the two sweeps in
// CSV. Every row becomes the layout, machine and software the planner needs to predict it, or says why that is not
// possible.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/hardware.h"
#include "plan/model_shape.h"
#include "spec/parallel_spec.h"

namespace sinter::plan {

struct CheckRow {
  std::string id;      // the point's id, or file:line of a sweep
  std::string source;  // short name: "mosaicml", "vTrain", "nanotron sweep"
  std::string kind;    // train, memory, gemm, collective, ...
  std::string model_name;
  std::optional<ModelShape> model;
  std::optional<spec::ModelSpec> spec;  // where the model is of a family of ours
  spec::ParallelSpec parallel;
  std::string software;
  std::string timed_software;   // where the row's own memory tells that its time is another program's; else empty
  std::string format = "bf16";  // of the products
  std::string convention;       // of the published FLOPs
  std::optional<Cluster> cluster;
  double peak_flops = 0;                   // the peak the source divides by; 0 = not said
  std::map<std::string, double> layout;    // numbers of the row's layout as they stand
  std::map<std::string, double> measured;  // numbers of the row's measurements as they stand
  std::string operation;                   // of a collective
  std::string weight_format, kv_format;    // of inference
  std::string words;                       // what the layout says in words about offload
  std::string group;                       // rows that are alternatives for the same model, machine and batch
  // The program whose time is predicted.
  const std::string& timed() const { return timed_software.empty() ? software : timed_software; }
  bool micro_batch_given = true;
  bool interleave_given = true;
  bool layout_given = true;  // false: the planner's own choice is compared
  bool failed = false;       // a sweep's run that did not finish
  double flops_scale = 1;    // of the convention's FLOPs: 2/3 where weights are frozen
  std::string time_problem;  // why its time cannot be predicted although the rest can
  std::string problem;       // why the row cannot be predicted; empty = it can
};

// Throws base::Error when the file is of none of the known forms, naming what was found.
std::vector<CheckRow> load_check_rows(const std::string& path, const HardwareTable& hardware);

}  // namespace sinter::plan
