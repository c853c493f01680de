#include "data/formats/compression.h"

#include <brotli/decode.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/file.h"

namespace sinter::data {
namespace {

constexpr size_t kStep = size_t{256} << 10;

Unpacked inflate_bytes(std::string_view bytes, int window_bits, size_t limit) {
  Unpacked result;
  z_stream stream{};
  if (::inflateInit2(&stream, window_bits) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, ::inflateEnd);
  std::string buffer(kStep, '\0');
  size_t fed = 0;
  int status = Z_OK;
  while (status == Z_OK) {
    if (stream.avail_in == 0 && fed < bytes.size()) {
      const size_t piece = std::min(bytes.size() - fed, size_t{1} << 30);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + fed));
      stream.avail_in = static_cast<uInt>(piece);
      fed += piece;
    }
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = static_cast<uInt>(buffer.size());
    status = ::inflate(&stream, Z_NO_FLUSH);
    result.bytes.append(buffer.data(), buffer.size() - stream.avail_out);
    if (result.bytes.size() > limit) {
      result.is_too_large = true;
      break;
    }
    if (status == Z_BUF_ERROR && stream.avail_out == 0) status = Z_OK;
  }
  result.consumed = fed - stream.avail_in;
  result.is_complete = status == Z_STREAM_END;
  result.is_damaged = status == Z_DATA_ERROR || status == Z_NEED_DICT;
  return result;
}

}  // namespace

CompressionKind detect_packing(std::string_view bytes) {
  if (bytes.starts_with("\x1f\x8b")) return CompressionKind::gzip;
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return CompressionKind::zstd;
  // A skippable frame 0x184D2A5? comes before a frame of zstd.
  if (bytes.size() >= 4 && bytes.substr(1, 3) == "\x2a\x4d\x18" &&
      (static_cast<unsigned char>(bytes[0]) & 0xf0) == 0x50)
    return CompressionKind::zstd;
  return CompressionKind::none;
}

Unpacked unpack_gzip_member(std::string_view bytes, size_t limit) { return inflate_bytes(bytes, 31, limit); }
Unpacked unpack_deflate(std::string_view bytes, bool is_raw, size_t limit) {
  return inflate_bytes(bytes, is_raw ? -15 : 15, limit);
}

Unpacked unpack_zstd_frame(std::string_view bytes, std::string_view dictionary, size_t limit) {
  Unpacked result;
  if (bytes.size() >= 8 && bytes.substr(1, 3) == "\x2a\x4d\x18" &&
      (static_cast<unsigned char>(bytes[0]) & 0xf0) == 0x50) {
    size_t size = 8;
    for (size_t i = 0; i < 4; ++i) size += static_cast<size_t>(static_cast<unsigned char>(bytes[4 + i])) << (8 * i);
    result.is_complete = size <= bytes.size();
    result.consumed = std::min(size, bytes.size());
    return result;
  }
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(::ZSTD_createDCtx(), ::ZSTD_freeDCtx);
  if (!context) throw std::bad_alloc();
  if (!dictionary.empty()) ::ZSTD_DCtx_loadDictionary(context.get(), dictionary.data(), dictionary.size());
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  std::string buffer(kStep, '\0');
  for (;;) {
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    const size_t status = ::ZSTD_decompressStream(context.get(), &out, &in);
    result.bytes.append(buffer.data(), out.pos);
    if (::ZSTD_isError(status)) {
      result.is_damaged = true;
      break;
    }
    if (status == 0) {
      result.is_complete = true;
      break;
    }
    if (result.bytes.size() > limit) {
      result.is_too_large = true;
      break;
    }
    if (in.pos == in.size && out.pos < out.size) break;  // cut off
  }
  result.consumed = in.pos;
  return result;
}

Unpacked unpack_brotli(std::string_view bytes, size_t limit) {
  Unpacked result;
  const std::unique_ptr<BrotliDecoderState, void (*)(BrotliDecoderState*)> state(
      ::BrotliDecoderCreateInstance(nullptr, nullptr, nullptr), ::BrotliDecoderDestroyInstance);
  if (!state) throw std::bad_alloc();
  const auto* next_in = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t left = bytes.size();
  std::string buffer(kStep, '\0');
  for (;;) {
    auto* next_out = reinterpret_cast<uint8_t*>(buffer.data());
    size_t room = buffer.size();
    const BrotliDecoderResult status =
        ::BrotliDecoderDecompressStream(state.get(), &left, &next_in, &room, &next_out, nullptr);
    result.bytes.append(buffer.data(), buffer.size() - room);
    if (result.bytes.size() > limit) {
      result.is_too_large = true;
      break;
    }
    if (status == BROTLI_DECODER_RESULT_NEEDS_MORE_OUTPUT) continue;
    result.is_complete = status == BROTLI_DECODER_RESULT_SUCCESS;
    result.is_damaged = status == BROTLI_DECODER_RESULT_ERROR;
    break;
  }
  result.consumed = bytes.size() - left;
  return result;
}

std::string unpack_all(std::string_view bytes, const std::string& origin, size_t limit) {
  const CompressionKind packing = detect_packing(bytes);
  if (packing == CompressionKind::none) return std::string(bytes);
  std::string out;
  while (!bytes.empty()) {
    Unpacked piece = packing == CompressionKind::gzip ? unpack_gzip_member(bytes, limit - out.size())
                                                      : unpack_zstd_frame(bytes, "", limit - out.size());
    SINTER_CHECK(!piece.is_too_large, "'{}' unpacks to more than {} bytes; that is more than is read at once", origin,
                 limit);
    SINTER_CHECK(piece.is_complete && piece.consumed > 0, "'{}' is {}: its compressed data {}", origin,
                 piece.is_damaged ? "damaged" : "cut off", piece.is_damaged ? "is wrong" : "does not end");
    out += piece.bytes;
    bytes.remove_prefix(piece.consumed);
    if (packing == CompressionKind::gzip && bytes.find_first_not_of('\0') == std::string_view::npos) break;
  }
  return out;
}

std::string read_unpacked(const std::string& path, size_t limit) {
  const base::MappedFile file(path);
  return unpack_all(file.text(), path, limit);
}

std::string pack_gzip(std::string_view bytes, int level) {
  z_stream stream{};
  if (::deflateInit2(&stream, level, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, ::deflateEnd);
  std::string out(::deflateBound(&stream, bytes.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  SINTER_CHECK(::deflate(&stream, Z_FINISH) == Z_STREAM_END, "gzip cannot pack {} bytes at once", bytes.size());
  out.resize(out.size() - stream.avail_out);
  return out;
}

std::string pack_zstd(std::string_view bytes, int level) {
  std::string out(::ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ::ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level);
  SINTER_CHECK(!::ZSTD_isError(size), "zstd: {}", ::ZSTD_getErrorName(size));
  out.resize(size);
  return out;
}

}  // namespace sinter::data
