// The timeline of one step of a run (SINTER_TRACE), drawn by the code that draws the planner's simulated one
// (plan/simulate.h), so that the two pictures can be laid side by side.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "plan/simulate.h"

namespace sinter::train {

class StepTrace {
 public:
  // Collective over the mesh: the first rank's environment counts. SINTER_TRACE names the file, beside which FILE.svg
  // is the picture; SINTER_TRACE_STEP the step, counted from 1 (default 3). Off on devices whose kernels trace
  // themselves.
  StepTrace(const parallel::Mesh& mesh, core::Device device);

  // Collective, before the passes of a step (from 0): ranks of other machines have other clocks, so all begin together.
  void begin(int64_t step);
  // Where the actions of the step under way go; null: it is not drawn.
  std::vector<plan::TimedAction>* actions() { return is_recording_ ? &actions_ : nullptr; }
  // A computation of a rank without a pipeline.
  void add(spec::ActionKind kind, size_t micro_batch, double begin, double end);
  // Collective, after the last gradient is summed. Draws the pipeline that the first rank is in.
  void end(const spec::PipelineShape& shape);

 private:
  const parallel::Mesh& mesh_;
  std::string path_;
  int64_t step_ = 0;
  bool is_recording_ = false;
  double began_ = 0;
  std::vector<plan::TimedAction> actions_;
};

}  // namespace sinter::train
