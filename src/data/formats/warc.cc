#include "data/formats/warc.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "data/formats/compression.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

constexpr size_t kRecordLimit = size_t{256} << 20;  // a record that says it is larger is damage
constexpr size_t kHeaderLimit = size_t{1} << 20;

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// The line at `pos` without its break; moves pos behind the break. A line that does not end is nothing.
std::optional<std::string_view> take_line(std::string_view text, size_t& pos) {
  const size_t end = text.find('\n', pos);
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view line = text.substr(pos, end - pos);
  if (line.ends_with('\r')) line.remove_suffix(1);
  pos = end + 1;
  return line;
}

// Fields up to the empty line; false when the text ends before it.
bool parse_fields(std::string_view text, size_t& pos, Header& header) {
  for (const size_t begin = pos; pos - begin < kHeaderLimit;) {
    const auto line = take_line(text, pos);
    if (!line) return false;
    if (line->empty()) return true;
    if ((line->front() == ' ' || line->front() == '\t') && !header.fields.empty()) {
      header.fields.back().second += " " + std::string(trim(*line));
      continue;
    }
    const size_t colon = line->find(':');
    if (colon == std::string_view::npos) continue;
    header.fields.emplace_back(trim(line->substr(0, colon)), to_valid_utf8(trim(line->substr(colon + 1))));
  }
  return false;
}

// The next "WARC/" at the beginning of a line, from `pos` on.
size_t find_record(std::string_view text, size_t pos) {
  for (size_t at = text.find("WARC/", pos); at != std::string_view::npos; at = text.find("WARC/", at + 5)) {
    if ((at == 0 || text[at - 1] == '\n') && at + 5 < text.size() && text[at + 5] >= '0' && text[at + 5] <= '9')
      return at;
  }
  return std::string_view::npos;
}

// After a block: two line breaks; or fewer, and then a record or the end.
bool is_followed_by_record(std::string_view text, size_t pos) {
  const std::string_view rest = text.substr(pos);
  if (rest.starts_with("\r\n\r\n") || rest.starts_with("\n\n")) return true;
  pos = text.find_first_not_of("\r\n", pos);
  return pos == std::string_view::npos || text.substr(pos).starts_with("WARC/");
}

class RecordParser {
 public:
  RecordParser(const WarcVisitor& visitor) : visitor_(visitor) {}
  // All records of a text; `offset_of` gives a record's place on the disk. False when the visitor ended it.
  bool parse(std::string_view text, const std::function<uint64_t(size_t)>& offset_of, bool is_cut) {
    size_t pos = 0;
    while (pos < text.size()) {
      const size_t start = text.find_first_not_of("\r\n", pos);
      if (start == std::string_view::npos) return true;
      const size_t at = text.substr(start).starts_with("WARC/") ? start : find_record(text, start);
      if (at != start) report(offset_of(start), "bytes that are no record");
      if (at == std::string_view::npos) return true;
      WarcRecord record;
      record.offset = offset_of(at);
      pos = at;
      const auto version = take_line(text, pos);
      if (!version || !parse_fields(text, pos, record.header)) {
        report(record.offset, "a header that does not end");
        const size_t next = find_record(text, at + 5);
        if (next == std::string_view::npos) return true;
        pos = next;
        continue;
      }
      record.version = std::string(*version);
      if (!take_block(text, pos, record, is_cut)) continue;
      if (!visitor_.record(record)) return false;
    }
    return true;
  }

 private:
  void report(uint64_t offset, std::string what) const {
    if (visitor_.damage) visitor_.damage({offset, std::move(what)});
  }

  bool take_block(std::string_view text, size_t& pos, WarcRecord& record, bool is_cut) const {
    const std::string_view field = trim(record.header.get("Content-Length"));
    uint64_t length = 0;
    const auto parsed = std::from_chars(field.data(), field.data() + field.size(), length);
    const size_t next = find_record(text, pos);
    const size_t rest = (next == std::string_view::npos ? text.size() : next);
    if (field.empty() || parsed.ec != std::errc() || parsed.ptr != field.data() + field.size()) {
      report(record.offset, field.empty() ? "a record without Content-Length" : "a Content-Length that is no number");
      pos = rest;
      return false;
    }
    if (length > kRecordLimit || length > text.size() - pos) {
      report(record.offset, is_cut || next == std::string_view::npos ? "a record that is cut off"
                                                                     : "a Content-Length that is too large");
      pos = rest;
      return false;
    }
    if (!is_followed_by_record(text, pos + length)) {
      report(record.offset, "a Content-Length that does not reach the next record");
      pos = rest;
      return false;
    }
    record.block = std::string(text.substr(pos, length));
    pos += length;
    return true;
  }

  const WarcVisitor& visitor_;
};

// Where the next member or frame begins, from `pos` on.
size_t find_member(std::string_view file, size_t pos, CompressionKind kind) {
  const std::string_view magic = kind == CompressionKind::gzip ? "\x1f\x8b\x08" : "\x28\xb5\x2f\xfd";
  return std::min(file.find(magic, pos), file.size());
}

bool read_packed(std::string_view file, uint64_t begin, uint64_t end, CompressionKind kind,
                 const WarcVisitor& visitor) {
  std::string dictionary;
  if (kind == CompressionKind::zstd && file.size() >= 8 && static_cast<unsigned char>(file[0]) == 0x5d &&
      file.substr(1, 3) == "\x2a\x4d\x18") {
    uint32_t size = 0;
    std::memcpy(&size, file.data() + 4, 4);
    const std::string_view body = file.substr(8, size);
    dictionary = detect_packing(body) == CompressionKind::zstd ? unpack_zstd_frame(body, "").bytes : std::string(body);
    begin = std::max<uint64_t>(begin, std::min<uint64_t>(8 + uint64_t{size}, file.size()));
  }
  RecordParser parser(visitor);
  for (size_t pos = find_member(file, begin, kind); pos < file.size() && pos < end;) {
    Unpacked member = kind == CompressionKind::gzip ? unpack_gzip_member(file.substr(pos), kRecordLimit)
                                                    : unpack_zstd_frame(file.substr(pos), dictionary, kRecordLimit);
    const bool is_whole = member.is_complete && !member.is_damaged;
    // Three bytes that look like the magic number inside other data are no member.
    const bool is_false_start = !is_whole && member.bytes.find("WARC/") == std::string::npos;
    if (!is_whole && visitor.damage) {
      const char* what = member.is_too_large ? "a member that unpacks to more than 256 MiB"
                         : member.is_damaged ? "a damaged member"
                                             : "a member that is cut off";
      if (!is_false_start || pos == begin || member.is_damaged) visitor.damage({pos, what});
    }
    if (!is_false_start && !member.is_too_large) {
      // A damaged member's checksum fails for all of it, but a cut one's records are whole until the cut.
      const bool is_trailer_only = !member.is_damaged;
      if (is_whole || is_trailer_only) {
        if (!parser.parse(
                member.bytes, [&](size_t) { return pos; }, !is_whole))
          return false;
      }
    }
    const size_t next = is_whole ? pos + std::max<size_t>(member.consumed, 1) : pos + 3;
    pos = find_member(file, next, kind);
  }
  return true;
}

bool is_token_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) {
           return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
         });
}
bool has_token(std::string_view value, std::string_view token) {
  for (size_t pos = 0; pos <= value.size();) {
    const size_t end = std::min(value.find(',', pos), value.size());
    if (is_token_equal(trim(value.substr(pos, end - pos)), token)) return true;
    pos = end + 1;
  }
  return false;
}

// The bytes of a chunked body; nothing where it is not one.
std::optional<std::string> unchunk(std::string_view body) {
  std::string out;
  size_t pos = 0;
  bool is_first = true;
  while (pos < body.size()) {
    const auto line = take_line(body, pos);
    if (!line) break;
    const std::string_view size_text = trim(line->substr(0, line->find(';')));
    uint64_t size = 0;
    const auto parsed = std::from_chars(size_text.data(), size_text.data() + size_text.size(), size, 16);
    if (size_text.empty() || parsed.ec != std::errc() || parsed.ptr != size_text.data() + size_text.size()) {
      if (is_first) return std::nullopt;
      break;
    }
    is_first = false;
    if (size == 0) return out;
    const size_t take = std::min<uint64_t>(size, body.size() - pos);
    out.append(body.substr(pos, take));
    pos += take;
    if (body.substr(pos).starts_with("\r\n")) {
      pos += 2;
    } else if (body.substr(pos).starts_with('\n')) {
      pos += 1;
    }
  }
  if (is_first) return std::nullopt;
  return out;  // the last chunk is missing
}

std::optional<std::string> undo_encoding(std::string_view body, std::string_view encoding) {
  auto usable = [](Unpacked&& u) -> std::optional<std::string> {
    if (u.bytes.empty() || u.is_damaged || u.is_too_large) return std::nullopt;
    return std::move(u.bytes);
  };
  constexpr size_t kLimit = kRecordLimit;
  if (is_token_equal(encoding, "gzip") || is_token_equal(encoding, "x-gzip"))
    return usable(unpack_gzip_member(body, kLimit));
  if (is_token_equal(encoding, "deflate")) {
    auto out = usable(unpack_deflate(body, false, kLimit));
    return out ? out : usable(unpack_deflate(body, true, kLimit));
  }
  if (is_token_equal(encoding, "br")) return usable(unpack_brotli(body, kLimit));
  if (is_token_equal(encoding, "zstd")) return usable(unpack_zstd_frame(body, "", kLimit));
  return std::nullopt;
}

}  // namespace

std::string_view Header::get(std::string_view name) const {
  for (const auto& [field, value] : fields) {
    if (is_token_equal(field, name)) return value;
  }
  return "";
}

std::string WarcRecord::url() const {
  std::string_view url = header.get("WARC-Target-URI");
  if (url.starts_with('<') && url.ends_with('>')) url = url.substr(1, url.size() - 2);
  return std::string(url);
}

void read_warc(std::string_view file, uint64_t begin, uint64_t end, const WarcVisitor& visitor) {
  end = std::min<uint64_t>(end, file.size());
  if (begin >= end) return;
  const CompressionKind kind = detect_packing(file);
  if (kind != CompressionKind::none) {
    read_packed(file, begin, end, kind, visitor);
    return;
  }
  // A plain file: the records that begin in the range. A false beginning inside a block of another range would be found
  // by a reader that starts there, so a range's first record must look like one: its header has a WARC-Type.
  const size_t first = begin == 0 ? 0 : find_record(file, begin);
  if (first >= end) return;
  const WarcVisitor bounded{[&](WarcRecord& record) { return record.offset < end && visitor.record(record); },
                            visitor.damage};
  RecordParser(bounded).parse(
      file.substr(first), [&](size_t pos) { return first + pos; }, false);
}

HttpMessage parse_http(std::string_view block) {
  HttpMessage message;
  if (!block.starts_with("HTTP/")) {
    message.payload = std::string(block);
    return message;
  }
  message.is_http = true;
  size_t pos = 0;
  const auto status = take_line(block, pos);
  if (!status) return message;
  const size_t space = status->find(' ');
  if (space != std::string_view::npos)
    std::from_chars(status->data() + space + 1, status->data() + status->size(), message.status);
  if (!parse_fields(block, pos, message.header)) return message;
  message.payload = std::string(block.substr(pos));
  if (has_token(message.header.get("Transfer-Encoding"), "chunked")) {
    if (auto body = unchunk(message.payload)) message.payload = std::move(*body);
  }
  // Encodings are undone in the opposite order; one that the bytes do not have is passed over.
  std::vector<std::string> encodings;
  const std::string_view value = message.header.get("Content-Encoding");
  for (size_t at = 0; at <= value.size();) {
    const size_t end = std::min(value.find(',', at), value.size());
    encodings.insert(encodings.begin(), std::string(trim(value.substr(at, end - at))));
    at = end + 1;
  }
  for (const std::string& encoding : encodings) {
    if (auto body = undo_encoding(message.payload, encoding)) message.payload = std::move(*body);
  }
  return message;
}

std::string content_type_charset(std::string_view content_type) {
  std::string low(content_type);
  for (char& c : low) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const size_t at = low.find("charset=");
  if (at == std::string::npos) return "";
  const size_t begin = low.find_first_not_of("\"' ", at + 8);
  if (begin == std::string::npos) return "";
  return low.substr(begin, low.find_first_of("\"'; ,", begin) - begin);
}

bool is_html(const WarcRecord& record, const HttpMessage& message) {
  for (const std::string_view type :
       {record.header.get("WARC-Identified-Payload-Type"), message.header.get("Content-Type")}) {
    if (type.empty()) continue;
    const std::string_view name = trim(type.substr(0, type.find(';')));
    if (is_token_equal(name, "text/html") || is_token_equal(name, "application/xhtml+xml")) return true;
    if (!is_token_equal(name, "application/octet-stream") && !is_token_equal(name, "text/plain")) return false;
  }
  std::string head(message.payload.substr(0, 1024));
  for (char& c : head) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return head.find("<html") != std::string::npos || head.find("<!doctype html") != std::string::npos ||
         head.find("<head") != std::string::npos || head.find("<body") != std::string::npos;
}

}  // namespace sinter::data
