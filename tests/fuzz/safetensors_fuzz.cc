// Any bytes taken as a safetensors file either give tensors that lie inside them or throw base::Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "io/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto file = std::as_bytes(std::span(data, size));
  try {
    for (const auto& entry : sinter::io::parse_safetensors(file, "fuzz").entries) {
      if (entry.bytes.data() < file.data() || entry.bytes.data() + entry.bytes.size() > file.data() + size)
        std::abort();
    }
  } catch (const sinter::base::Error&) {
  }
  return 0;
}
