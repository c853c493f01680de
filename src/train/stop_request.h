// Why a run should stop before its last step: a signal, or the end of the job's time.
#pragma once
#include <cstdint>
#include <string>

#include "spec/recipe.h"

namespace sinter::train {

// While alive, SIGTERM, SIGINT, SIGHUP (unless it was ignored: nohup) and SIGUSR1 ask for a stop instead of ending the
// process; a second SIGINT ends it at once. With `speaks` the first signal is answered on standard error within the
// handler. The handlers that were there come back with the destructor. One at a time.
class StopRequest {
 public:
  // Seconds since the epoch.
  static double clock_seconds();
  // Time limits: the recipe's, counted from `began`, or the end of the Slurm job (SLURM_JOB_END_TIME); each less the
  // margin.
  explicit StopRequest(const spec::CheckpointRecipe& recipe, double began = clock_seconds(), bool speaks = false);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  // What a second SIGINT would lose: steps since the last checkpoint.
  static void set_unsaved(int64_t steps);
  // "" or why to stop: "SIGTERM", "time limit".
  std::string reason() const;

 private:
  double deadline_ = 0;  // seconds since the epoch; 0 = none
};

}  // namespace sinter::train
