// The safetensors file format: memory-mapped reading with full validation, and streaming, atomic writing.
//
// A file is an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}} and the tensors'
// bytes without holes. Everything the header claims is checked before a reader hands out a byte.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace sinter::io {

struct TensorEntry {
  std::string name;
  base::DType dtype = base::DType::f32;
  std::vector<int64_t> shape;        // row-major; empty for a scalar
  std::span<const std::byte> bytes;  // points into the map of the file it came from
  int64_t num_elements() const;
};

// "(2, 48, 64)"
std::string shape_to_string(std::span<const int64_t> shape);

// What a safetensors file says of itself.
struct SafetensorsHeader {
  std::vector<TensorEntry> entries;             // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__", may be empty
};

// Parses and validates the bytes of a whole file; `origin` (its path) stands in every error. Throws Error on a header
// that is too long or not JSON, unknown keys or dtypes, duplicate names, sizes that do not fit shape and dtype, and
// offsets that overlap, leave holes or reach outside the file.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view origin);

// A file mapped for reading. Entries point into the map and live as long as this object (moving it keeps them valid).
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const std::vector<TensorEntry>& entries() const { return header_.entries; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Null when the file has no tensor of that name.
  const TensorEntry* find(std::string_view name) const;
  const std::string& path() const { return map_.path(); }

 private:
  base::MappedFile map_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> index_;  // keys view header_.entries
};

// Writes one file under a temporary name; commit() syncs it and renames it into place. Declare every tensor first, then
// write their bytes in any order, each in one or several pieces. Bytes lie in the file by element size (largest first,
// so that everything is aligned), then by name: the same tensors give the same file whatever the order of the calls.
// Not thread-safe. Destroyed without commit() it leaves nothing behind.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(const std::string& path, std::map<std::string, std::string> metadata = {{"format", "pt"}});
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  ~SafetensorsWriter();
  // Throws Error on a repeated name, a negative axis, or after the first write.
  void declare(std::string name, base::DType dtype, std::vector<int64_t> shape);
  // The next bytes of the tensor `name`. Throws Error on an undeclared name, on more bytes than declared, on a full
  // disk.
  void write(std::string_view name, std::span<const std::byte> bytes);
  // Throws Error naming a tensor whose bytes are not all written.
  void commit();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sinter::io
