// Writing GGUF files: first the whole header, then tensor after tensor. What was begun can be gone on with.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"

namespace sinter::io {

class GgufWriter {
 public:
  GgufWriter() = default;
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;
  ~GgufWriter();

  // Metadata in the order of the calls; a key is set once.
  void set_u32(const std::string& key, uint32_t value);
  void set_f32(const std::string& key, float value);
  void set_f64(const std::string& key, double value);
  void set_bool(const std::string& key, bool value);
  void set_text(const std::string& key, std::string_view value);
  void set_texts(const std::string& key, const std::vector<std::string>& values);
  void set_f32s(const std::string& key, const std::vector<float>& values);
  void set_i32s(const std::string& key, const std::vector<int32_t>& values);
  // Another file's value as it is.
  void copy(const std::string& key, const GgufValue& value);

  // Tensors in the order of their bytes; shapes are row-major.
  void declare(const std::string& name, base::WeightFormat format, base::DType dtype, std::vector<int64_t> shape);

  // Begins PATH.part, or goes on with one that a killed run of the same call left: the result says how many of the
  // tensors are in it already. Tensors are then written in order, each whole, from that one on.
  size_t open(const std::string& path);
  void write(std::span<const std::byte> tensor);
  // Syncs the file and renames it into place. Throws Error when tensors are missing.
  void commit();

 private:
  struct Tensor {
    std::string name;
    uint32_t type = 0;
    std::vector<int64_t> shape;
    uint64_t bytes = 0, offset = 0;
  };
  template <class T>
  void put(T value);
  void put_text(std::string_view text);
  void begin_value(const std::string& key, GgufType type);
  void append(std::span<const std::byte> bytes);

  std::string metadata_, path_;
  uint64_t num_keys_ = 0, data_offset_ = 0;
  std::vector<Tensor> tensors_;
  size_t next_ = 0;
  int fd_ = -1;
};

// Replaces the number that a f64 key has in a file, in place.
void replace_f64(const std::string& path, const std::string& key, double value);

}  // namespace sinter::io
