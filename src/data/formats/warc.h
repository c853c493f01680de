// Web archives (WARC 0.18 to 1.1; plain, gzip per record or whole, zstd with or without a dictionary), read record by
// record. Damage is named and passed over: the records behind it are still read.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

// Names without regard to case; continuation lines joined; the first of equal names.
struct Header {
  std::vector<std::pair<std::string, std::string>> fields;
  std::string_view get(std::string_view name) const;  // "" when it is not there
};

struct WarcRecord {
  uint64_t offset = 0;  // of the record in the file as it lies on the disk
  std::string version;
  Header header;
  std::string block;
  std::string_view type() const { return header.get("WARC-Type"); }
  std::string_view id() const { return header.get("WARC-Record-ID"); }
  std::string_view date() const { return header.get("WARC-Date"); }
  std::string url() const;  // without angle brackets
  bool is_damaged = false;  // cut off, or its length is wrong
};

struct WarcDamage {
  uint64_t offset = 0;
  std::string what;
};

struct WarcVisitor {
  std::function<bool(WarcRecord&)> record;  // false ends the reading
  std::function<void(const WarcDamage&)> damage;
};
// Records of `file` (its bytes, mapped) whose first byte lies in [begin, end): ranges that cover a file give every
// record once. Members of a compressed file are found by their magic numbers. A range of a file that is one single
// member, or plain text, works alike.
void read_warc(std::string_view file, uint64_t begin, uint64_t end, const WarcVisitor& visitor);

// The HTTP message in a response record.
struct HttpMessage {
  int status = 0;
  Header header;
  std::string payload;   // transfer and content encodings undone, where they are as declared
  bool is_http = false;  // false: the block has no HTTP header and is the payload itself
};
HttpMessage parse_http(std::string_view block);
// The charset of a Content-Type header; "" when it has none.
std::string content_type_charset(std::string_view content_type);
// By WARC-Identified-Payload-Type or Content-Type, else by the first bytes.
bool is_html(const WarcRecord& record, const HttpMessage& message);

}  // namespace sinter::data
