// Pages of any bytes: charset, HTML5 tree, main text.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/extract/extract.h"
#include "data/formats/charset.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter::data;
  extract_page(decode_page(std::string_view(reinterpret_cast<const char*>(data), size), "").text);
  return 0;
}
