#include <nlohmann/json.hpp>

#include "data/verify/checks.h"

namespace sinter::data {
Checks verify_parquet(const std::string&) { return {}; }
}  // namespace sinter::data
