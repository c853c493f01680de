#include "kernels/reference/reference.h"

namespace sinter::kernels {

const KernelTable* reference_table() {
  static constexpr KernelTable kTable{.name = "reference",
#define SINTER_ENTRY(name, Args, cpu, cuda) .name = reference::name,
                                      SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
  };
  return &kTable;
}

}  // namespace sinter::kernels
