// The fast kernels behind cpu_table(): contracts in kernels/table.h. Each picks its instruction set at run time.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cpu {

#define SINTER_ENTRY(name, Args, cpu, cuda) void name(Stream&, const Args&);
SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
#define SINTER_ENTRY(name, Args, cpu, cuda) bool name(Stream&, const Args&);
SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY

// y (width) += the parts (count, width), in order.
void add_parts(const float* parts, int64_t count, int64_t width, float* y);

}  // namespace sinter::kernels::cpu
