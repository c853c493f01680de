// A timeline of one training step by kernel call: SINTER_TRACE=FILE writes a chrome trace (chrome://tracing, Perfetto)
// of the step SINTER_TRACE_STEP (default 3), and every call gets an NVTX range for Nsight. Steps end at step_control.
#pragma once
#include <functional>

#include "kernels/table.h"

namespace sinter::kernels::cuda {

// The table whose kernels are timed and then passed on to `table`, or `table` itself when no trace is asked for.
const KernelTable* traced_table(const KernelTable* table);
// The same for a call that is not in the table.
void trace_call(const char* name, Stream& stream, const std::function<void()>& call);

}  // namespace sinter::kernels::cuda
