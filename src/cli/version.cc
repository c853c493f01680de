#include "cli/version.h"

#include <fmt/format.h>

#include "base/cpu.h"

namespace sinter::cli {

// The definitions come from module.cmake, for this file alone.
std::string version_text() {
  return fmt::format("sinter {} ({})\ncpu   {}\ncuda  {}\nmpi   {}\nbuilt with {}, fmt {}.{}", SINTER_VERSION,
                     SINTER_COMMIT, base::cpu_description(), SINTER_CUDA_TEXT, SINTER_MPI_TEXT, SINTER_COMPILER_TEXT,
                     FMT_VERSION / 10000, FMT_VERSION / 100 % 100);
}

}  // namespace sinter::cli
