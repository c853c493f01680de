// Bytes to UTF-8: the charset that a page declares, or the one its bytes look like.
#pragma once
#include <string>
#include <string_view>

namespace sinter::data {

struct Decoded {
  std::string text;     // valid UTF-8; what cannot be decoded is U+FFFD
  std::string charset;  // in lower case, as iconv names it
  bool has_bad_bytes = false;
};

// In this order: a byte order mark, valid UTF-8, `declared` (a header's charset; may be empty), the page's own <meta>,
// detection by bytes. A declared charset under which the bytes make no sense is passed over.
Decoded decode_page(std::string_view bytes, std::string_view declared);
// The charset of a <meta charset> or <meta http-equiv> in the first 4,096 bytes; "" when there is none.
std::string meta_charset(std::string_view bytes);
// The charset that bytes which are not UTF-8 look like.
std::string detect_charset(std::string_view bytes);
// False when the charset is not known.
bool decode_as(std::string_view bytes, std::string_view charset, Decoded& out);

}  // namespace sinter::data
