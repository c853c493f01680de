// The memory of a run: its rows before the first step, and whether it fits. Parts of make_run_plan().
#pragma once
#include "train/run_plan.h"

namespace sinter::train {

// Sets memory, memory_rows, host_state_bytes, checkpoint_copy_bytes and disk, from the model, the shape and the layout.
void plan_memory_rows(RunPlan& plan, const parallel::Mesh& mesh);
// Throws base::Error with the rows, and what one change would make of them, where a rank does not fit.
void check_memory(const RunPlan& plan, const parallel::Mesh& mesh);

}  // namespace sinter::train
