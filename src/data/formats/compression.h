// gzip, zlib, raw deflate, zstd and brotli: whole buffers with a bound, and member by member.
//
// A bound on the unpacked size keeps a small hostile file from filling the memory.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sinter::data {

inline constexpr size_t kUnpackLimit = size_t{1} << 30;

enum class CompressionKind : uint8_t { none, gzip, zstd };  // by the first bytes, whatever the name says
CompressionKind detect_packing(std::string_view bytes);

// One gzip member at the beginning of `bytes`.
struct Unpacked {
  std::string bytes;         // what came out, also before an error
  size_t consumed = 0;       // bytes of the input that were used
  bool is_complete = false;  // the end of the member or frame was reached
  bool is_damaged = false;   // a checksum or the data is wrong
  bool is_too_large = false;
};
Unpacked unpack_gzip_member(std::string_view bytes, size_t limit = kUnpackLimit);
// One zstd frame; `dictionary` may be empty. A skippable frame gives no bytes and is complete.
Unpacked unpack_zstd_frame(std::string_view bytes, std::string_view dictionary, size_t limit = kUnpackLimit);
Unpacked unpack_deflate(std::string_view bytes, bool is_raw, size_t limit = kUnpackLimit);
Unpacked unpack_brotli(std::string_view bytes, size_t limit = kUnpackLimit);

// The whole of a file: all gzip members or zstd frames of it, or its bytes as they are. Throws base::Error naming the
// file when it is damaged or cut off, or more than `limit` bytes would come out.
std::string read_unpacked(const std::string& path, size_t limit = size_t{16} << 30);
std::string unpack_all(std::string_view bytes, const std::string& origin, size_t limit = size_t{16} << 30);

std::string pack_gzip(std::string_view bytes, int level = 6);
std::string pack_zstd(std::string_view bytes, int level = 3);

}  // namespace sinter::data
