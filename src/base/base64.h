// Base64 with '+', '/' and padding (RFC 4648, section 4).
#pragma once
#include <string>
#include <string_view>

namespace sinter::base {

std::string encode_base64(std::string_view bytes);

}  // namespace sinter::base
