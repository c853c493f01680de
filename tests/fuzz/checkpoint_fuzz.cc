// Any bytes taken for a checkpoint's index.json either parse or throw base::Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "train/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    sinter::train::parse_state_index({reinterpret_cast<const char*>(data), size}, "fuzz");
  } catch (const sinter::base::Error&) {
  }
  return 0;
}
