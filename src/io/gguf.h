// The GGUF file format: memory-mapped reading with full validation.
//
// A file is a header (magic, version, counts), key-value pairs, a table of tensors and their bytes, each at a multiple
// of the alignment. Everything the header claims is checked before a reader hands out a byte; nothing is allocated that
// the file's own size does not bound. A large model may be split into files name-00001-of-00003.gguf: the first has the
// metadata, every one its own table.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"
#include "base/weight_format.h"

namespace sinter::io {

// As the file numbers them.
enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
std::string_view gguf_type_name(GgufType type);

// One value of the metadata: a view into the file. Strings are valid UTF-8.
class GgufValue {
 public:
  GgufType type = GgufType::u8;     // `array` for arrays
  GgufType element = GgufType::u8;  // of an array; else as `type`
  uint64_t count = 1;               // of an array's elements
  std::span<const std::byte> bytes;

  bool is_array() const { return type == GgufType::array; }
  bool is_integer() const;  // not an array; booleans are none
  bool is_number() const;   // integers and floats
  int64_t integer() const;  // of is_integer(); what 63 bits do not hold is the largest
  double number() const;    // of is_number()
  bool boolean() const { return bytes[0] != std::byte{0}; }
  std::string_view string() const;
  // All elements of an array of strings, or of numbers.
  std::vector<std::string_view> strings() const;
  std::vector<double> numbers() const;
};

struct GgufTensor {
  std::string name;
  base::WeightFormat format = base::WeightFormat::plain;
  base::DType dtype = base::DType::f32;  // of a plain one
  std::vector<int64_t> shape;            // row-major: the last axis is a row (the file lists it first)
  std::span<const std::byte> bytes;      // in the map of its file
  uint64_t offset = 0;                   // of the bytes, from where the data of its file begins
  size_t file = 0;                       // of a split model

  int64_t num_elements() const;
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const { return columns() == 0 ? 0 : num_elements() / columns(); }
  std::string_view type_name() const;  // "q4_k", "bf16"
};

// What one file says of itself. Views point into `file`.
struct GgufHeader {
  uint32_t version = 3;
  uint64_t alignment = 32, data_offset = 0;
  std::vector<std::pair<std::string, GgufValue>> metadata;  // in the file's order
  std::vector<GgufTensor> tensors;                          // in the file's order
};
// Parses and validates the bytes of a whole file; `origin` (its path) stands in every error. Throws Error.
GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view origin);

// Whether the path names a GGUF file (by its ending or its first bytes).
bool is_gguf(const std::string& path);

// A model in one file, or in all files of a split one when any of them is named. Everything lives as long as this
// object.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);
  const std::string& path() const { return path_; }
  const GgufHeader& header() const { return header_; }  // of the first file
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find_tensor(std::string_view name) const;  // null when there is none
  const GgufTensor& tensor(std::string_view name) const;       // throws Error with the nearest name
  size_t num_files() const { return maps_.size(); }
  uint64_t size_bytes() const;
  uint64_t tensor_bytes() const;

  // Metadata by key. Each throws Error naming file and key: where there is none, or it has another type.
  const GgufValue* find(std::string_view key) const;
  const GgufValue& get(std::string_view key) const;
  int64_t integer(std::string_view key) const;
  int64_t integer(std::string_view key, int64_t otherwise) const;
  double number(std::string_view key) const;
  double number(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, const std::string& otherwise) const;
  std::vector<std::string_view> strings(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;

  // The kernel may drop the pages of these bytes: they have been copied.
  void drop_pages(std::span<const std::byte> bytes) const;

 private:
  void open_splits(const std::string& path);
  std::string path_;
  std::vector<std::unique_ptr<base::MappedFile>> maps_;
  GgufHeader header_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_key_, by_name_;  // keys view header_ and tensors_
};

}  // namespace sinter::io
