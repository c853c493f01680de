// Everything `sinter plan MODEL --gpus ...` tells about a training run: layout, memory, time, cost.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan/cost.h"
#include "plan/hardware.h"
#include "plan/memory.h"
#include "plan/search.h"
#include "plan/time.h"
#include "spec/parallel_spec.h"

namespace sinter::plan {

// What the user fixed of the layout; 0 or empty = to be chosen.
struct LayoutWish {
  int64_t tp = 0, pp = 0, cp = 0, ep = 0, micro_batch = 0, shard = 0;
  int zero = -1;
  std::optional<spec::Recompute> recompute;
};

struct TrainingRequest {
  spec::ModelSpec model;
  Cluster cluster;
  Software software;
  MatrixFormat format = MatrixFormat::bf16;
  LayoutWish wish;
  int64_t seq_len = 4096;
  int64_t global_batch = 0;  // sequences; 0 = a usual size for the model
  double tokens = 0;         // of the run; 0 = 20 per parameter
  double kg_co2_per_kwh = 0.48;
  double pue = 1.0;
};

struct TrainingPlan {
  ModelShape shape;
  spec::ParallelSpec parallel;
  MemoryEstimate memory;
  StepEstimate step;
  bool fits = false;
  double usable_bytes = 0;         // of a device's memory, by which that is decided
  std::vector<Candidate> layouts;  // the best, the chosen one first; empty where nothing fits
  // What `sinter train` runs today, where the chosen layout is not that and the software is ours.
  struct Trained {
    bool fits = false;
    Candidate layout;            // the best that fits, or the one that needs least (without a step)
    int64_t devices_needed = 0;  // where none fits: of this kind, with which one would; 0 = not found
  };
  std::optional<Trained> trained;
  int64_t devices_needed = 0;  // where nothing fits: devices of this kind with which something would; 0 = not found
  double tokens = 0, steps = 0;
  RunCost cost;
  Reliability reliability;
  double checkpoint_bytes = 0;
  double weights_load_seconds = 0;  // 16-bit weights from storage; 0 = its rate is not known
};

// Chooses the fastest layout that fits (or the one that lacks least) and works out the run. Throws UsageError when the
// wish cannot be met by this model and cluster, with the nearest that can.
TrainingPlan make_training_plan(const TrainingRequest& request);

// Sequences per step that is usual for a model of this size: 0.5M to 16M tokens, a power of two times the odd part of
// `devices` and `micro_batch` (0: chosen later).
int64_t usual_global_batch(double parameters, int64_t seq_len, int64_t devices, int64_t micro_batch = 0);

}  // namespace sinter::plan
