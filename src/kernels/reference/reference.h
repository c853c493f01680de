// The plain loops behind reference_table(): one function per kernel of kernels/table.h, any floating format, sums in
// double. Slow and obvious on purpose; the fast kernels are tested against them.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::reference {

#define SINTER_ENTRY(name, Args, cpu, cuda) void name(Stream&, const Args&);
SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY

}  // namespace sinter::kernels::reference
