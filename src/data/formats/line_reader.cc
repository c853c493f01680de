#include "data/formats/line_reader.h"

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/formats/compression.h"

namespace sinter::data {
namespace {
constexpr size_t kShownBytes = 256;  // of a line that is too long
}

bool can_be_cut(std::string_view ending) {
  for (size_t n = 1; n < ending.size(); ++n) {
    if (ending.substr(0, n) == ending.substr(ending.size() - n)) return false;
  }
  return !ending.empty();
}

struct LineReader::State {
  base::MappedFile file;
  CompressionKind kind = CompressionKind::none;
  uint64_t max_line = 0, offset = 0, next_offset = 0;
  std::string problem, damage;  // of the last bad line; of the compressed data
  std::string ending;
  // Plain files.
  size_t pos = 0, end = 0;
  // Compressed files: unpacked bytes that were not handed out yet.
  std::string buffer;
  size_t taken = 0, consumed = 0;
  bool has_ended = false;
  z_stream gzip{};
  bool is_gzip_open = false;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> zstd{nullptr, ::ZSTD_freeDCtx};

  explicit State(const std::string& path) : file(path) {}
  ~State() {
    if (is_gzip_open) ::inflateEnd(&gzip);
  }

  // More unpacked bytes behind `buffer`; false with a problem set when the data is damaged.
  bool unpack_more() {
    constexpr size_t kRoom = size_t{1} << 20;
    const std::string_view in = file.text().substr(consumed);
    const size_t old = buffer.size();
    if (in.empty()) {
      has_ended = true;
      return true;
    }
    buffer.resize(old + kRoom);
    size_t made = 0;
    bool is_sound = true;
    if (kind == CompressionKind::gzip) {
      if (!is_gzip_open) {
        if (::inflateInit2(&gzip, 31) != Z_OK) throw std::bad_alloc();
        is_gzip_open = true;
      }
      const size_t piece = std::min<size_t>(in.size(), size_t{1} << 28);
      gzip.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
      gzip.avail_in = static_cast<uInt>(piece);
      gzip.next_out = reinterpret_cast<Bytef*>(buffer.data() + old);
      gzip.avail_out = static_cast<uInt>(kRoom);
      const int status = ::inflate(&gzip, Z_NO_FLUSH);
      consumed += piece - gzip.avail_in;
      made = kRoom - gzip.avail_out;
      if (status == Z_STREAM_END) {
        ::inflateReset(&gzip);
        if (file.text().substr(consumed).find_first_not_of('\0') == std::string_view::npos) has_ended = true;
      } else if (status == Z_BUF_ERROR || (status == Z_OK && made == 0 && gzip.avail_in == 0)) {
        is_sound = false;
      } else if (status != Z_OK) {
        is_sound = false;
      }
    } else {
      if (!zstd) zstd.reset(::ZSTD_createDCtx());
      ZSTD_inBuffer from{in.data(), in.size(), 0};
      ZSTD_outBuffer to{buffer.data() + old, kRoom, 0};
      const size_t status = ::ZSTD_decompressStream(zstd.get(), &to, &from);
      consumed += from.pos;
      made = to.pos;
      if (::ZSTD_isError(status) || (made == 0 && from.pos == 0)) is_sound = false;
    }
    buffer.resize(old + made);
    if (!is_sound || (consumed >= file.text().size() && made == 0)) {
      if (!is_sound) damage = "compressed data that is damaged or cut off";
      has_ended = true;
    }
    return is_sound;
  }

  std::string too_long() const {
    return fmt::format("a {} longer than {} bytes", ending == "\n" ? "line" : "document", max_line);
  }
};

LineReader::LineReader(const std::string& path, uint64_t begin, uint64_t end, uint64_t max_line_bytes,
                       std::string ending)
    : state_(std::make_unique<State>(path)) {
  State& s = *state_;
  s.max_line = max_line_bytes;
  s.ending = std::move(ending);
  const std::string_view text = s.file.text();
  s.kind = detect_packing(text);
  if (s.kind != CompressionKind::none) return;
  s.end = std::min<uint64_t>(end, text.size());
  s.pos = std::min<uint64_t>(begin, text.size());
  if (s.pos > 0) {
    const size_t next = text.find(s.ending, s.pos - std::min(s.pos, s.ending.size()));
    s.pos = next == std::string_view::npos ? text.size() : next + s.ending.size();
  }
}

LineReader::~LineReader() = default;
uint64_t LineReader::offset() const { return state_->offset; }
const std::string& LineReader::problem() const { return state_->problem; }

LineReader::Status LineReader::next(std::string_view& line) {
  State& s = *state_;
  if (s.kind == CompressionKind::none) {
    if (s.pos >= s.end) return Status::end;
    const std::string_view text = s.file.text();
    const size_t end = std::min(text.find(s.ending, s.pos), text.size());
    s.offset = s.pos;
    line = text.substr(s.pos, end - s.pos);
    s.pos = end + s.ending.size();
    if (line.size() <= s.max_line) return Status::line;
    s.problem = s.too_long();
    return Status::bad;
  }
  s.buffer.erase(0, s.taken);
  s.taken = 0;
  size_t looked = 0;
  bool is_giant = false;
  for (;;) {
    const size_t at = s.buffer.find(s.ending, looked);
    const bool is_last = at == std::string::npos && s.has_ended;
    if (at != std::string::npos || is_last) {
      const size_t end = is_last ? s.buffer.size() : at;
      if (is_last && end == 0 && !is_giant) {
        line = "";
        if (s.damage.empty()) return Status::end;
        s.problem = std::exchange(s.damage, "");
        s.offset = s.next_offset;
        return Status::bad;
      }
      s.offset = s.next_offset;
      s.next_offset += end + s.ending.size();
      line = std::string_view(s.buffer).substr(0, end);
      s.taken = std::min(end + s.ending.size(), s.buffer.size());
      if (!is_giant && line.size() <= s.max_line && (!is_last || s.damage.empty())) return Status::line;
      s.problem = is_last && !s.damage.empty() ? std::exchange(s.damage, "") : s.too_long();
      return Status::bad;
    }
    const size_t half = s.ending.size() - 1;  // of an ending that may be cut by the buffer's end
    looked = s.buffer.size() - std::min(s.buffer.size(), half);
    if (looked > kShownBytes && looked - kShownBytes > s.max_line) {  // keep its beginning, let go of the rest
      is_giant = true;
      s.next_offset += looked - kShownBytes;
      s.buffer.erase(kShownBytes, looked - kShownBytes);
      looked = kShownBytes;
    }
    s.unpack_more();
  }
}

}  // namespace sinter::data
