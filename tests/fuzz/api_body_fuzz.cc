// Any body of an API call is read or refused with an ApiError.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "server/calls.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter::server;  // NOLINT
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (bool is_chat : {false, true}) {
    try {
      const Json body = parse_body(text);
      if (is_chat) {
        read_chat_call(body, {});
      } else {
        read_completion_call(body, {});
      }
    } catch (const ApiError&) {
    }
  }
  return 0;
}
