#include "plan/time.h"

namespace sinter::plan {

const Efficiency& find_efficiency(const std::string& device, const std::string& software) {
  static const Efficiency common;
  return common;
}

}  // namespace sinter::plan
