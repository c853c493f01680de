// Any bytes taken as a GGUF file either give tensors and values that lie inside them or throw base::Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "base/error.h"
#include "io/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  auto check_inside = [&](std::span<const std::byte> bytes) {
    if (!bytes.empty() && (bytes.data() < file.data() || bytes.data() + bytes.size() > file.data() + size))
      std::abort();
  };
  try {
    const sinter::io::GgufHeader header = sinter::io::parse_gguf(file, "fuzz");
    for (const auto& tensor : header.tensors) check_inside(tensor.bytes);
    for (const auto& [key, value] : header.metadata) {
      check_inside(value.bytes);
      if (!value.is_array()) continue;
      if (value.element == sinter::io::GgufType::string) {
        for (std::string_view text : value.strings()) check_inside(std::as_bytes(std::span(text)));
      } else {
        value.numbers();
      }
    }
  } catch (const sinter::base::Error&) {
  }
  return 0;
}
