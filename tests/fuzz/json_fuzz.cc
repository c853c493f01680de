// Any bytes given to base::parse_json either parse or throw base::Error.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    sinter::base::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const sinter::base::Error&) {
  }
  return 0;
}
