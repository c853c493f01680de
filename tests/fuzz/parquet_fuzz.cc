// Parquet: rows of damaged files are rows or an error, never more.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/formats/document.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  sinter::data::read_parquet_bytes(bytes, {[](std::string&&) {}, [](const std::string&) {}});
  return 0;
}
