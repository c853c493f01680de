// Web archives: records, HTTP messages and the text of their pages.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "data/formats/charset.h"
#include "data/formats/warc.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter::data;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  read_warc(bytes, 0, UINT64_MAX,
            {[](WarcRecord& record) {
               const HttpMessage message = parse_http(record.block);
               decode_page(message.payload, content_type_charset(message.header.get("Content-Type")));
               return true;
             },
             [](const WarcDamage&) {}});
  return 0;
}
