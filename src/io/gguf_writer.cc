#include "io/gguf_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace sinter::io {
namespace {

constexpr uint64_t kAlignment = 32;

uint64_t aligned(uint64_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

uint32_t type_number(base::WeightFormat format, base::DType dtype) {
  if (format != base::WeightFormat::plain) {
    const int number = base::info_of(format).ggml_type;
    SINTER_CHECK(number >= 0, "{} is no type of GGUF files", base::name_of(format));
    return static_cast<uint32_t>(number);
  }
  switch (dtype) {
    case base::DType::f32:
      return 0;
    case base::DType::f16:
      return 1;
    case base::DType::bf16:
      return 30;
    default:
      base::fail("{} is no type of a weight in GGUF files", base::dtype_name(dtype));
  }
}

template <class T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

GgufWriter::~GgufWriter() {
  if (fd_ >= 0) ::close(fd_);
}

template <class T>
void GgufWriter::put(T value) {
  append_raw(metadata_, value);
}

void GgufWriter::put_text(std::string_view text) {
  put(static_cast<uint64_t>(text.size()));
  metadata_ += text;
}

void GgufWriter::begin_value(const std::string& key, GgufType type) {
  put_text(key);
  put(static_cast<uint32_t>(type));
  ++num_keys_;
}

void GgufWriter::set_u32(const std::string& key, uint32_t value) { begin_value(key, GgufType::u32), put(value); }
void GgufWriter::set_f32(const std::string& key, float value) { begin_value(key, GgufType::f32), put(value); }
void GgufWriter::set_f64(const std::string& key, double value) { begin_value(key, GgufType::f64), put(value); }
void GgufWriter::set_bool(const std::string& key, bool value) {
  begin_value(key, GgufType::boolean), put(static_cast<uint8_t>(value));
}
void GgufWriter::set_text(const std::string& key, std::string_view value) {
  begin_value(key, GgufType::string), put_text(value);
}

void GgufWriter::set_texts(const std::string& key, const std::vector<std::string>& values) {
  begin_value(key, GgufType::array);
  put(static_cast<uint32_t>(GgufType::string)), put(static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) put_text(value);
}
void GgufWriter::set_f32s(const std::string& key, const std::vector<float>& values) {
  begin_value(key, GgufType::array);
  put(static_cast<uint32_t>(GgufType::f32)), put(static_cast<uint64_t>(values.size()));
  for (float value : values) put(value);
}
void GgufWriter::set_i32s(const std::string& key, const std::vector<int32_t>& values) {
  begin_value(key, GgufType::array);
  put(static_cast<uint32_t>(GgufType::i32)), put(static_cast<uint64_t>(values.size()));
  for (int32_t value : values) put(value);
}

void GgufWriter::copy(const std::string& key, const GgufValue& value) {
  begin_value(key, value.type);
  if (value.type == GgufType::array) put(static_cast<uint32_t>(value.element)), put(value.count);
  if (value.type == GgufType::string) put(static_cast<uint64_t>(value.bytes.size()));
  metadata_.append(reinterpret_cast<const char*>(value.bytes.data()), value.bytes.size());
}

void GgufWriter::declare(const std::string& name, base::WeightFormat format, base::DType dtype,
                         std::vector<int64_t> shape) {
  Tensor tensor{name, type_number(format, dtype), std::move(shape)};
  int64_t elements = 1;
  for (int64_t axis : tensor.shape) elements *= axis;
  tensor.bytes = format == base::WeightFormat::plain ? static_cast<uint64_t>(elements) * base::dtype_bytes(dtype)
                                                     : static_cast<uint64_t>(base::bytes_of(format, elements));
  if (!tensors_.empty()) tensor.offset = aligned(tensors_.back().offset + tensors_.back().bytes);
  tensors_.push_back(std::move(tensor));
}

size_t GgufWriter::open(const std::string& path) {
  path_ = path;
  std::string header = "GGUF";
  append_raw(header, uint32_t{3});
  append_raw(header, static_cast<uint64_t>(tensors_.size()));
  append_raw(header, num_keys_);
  header += metadata_;
  for (const Tensor& tensor : tensors_) {
    append_raw(header, static_cast<uint64_t>(tensor.name.size()));
    header += tensor.name;
    append_raw(header, static_cast<uint32_t>(tensor.shape.size()));
    for (auto axis = tensor.shape.rbegin(); axis != tensor.shape.rend(); ++axis)
      append_raw(header, static_cast<uint64_t>(*axis));
    append_raw(header, tensor.type);
    append_raw(header, tensor.offset);
  }
  header.resize(aligned(header.size()), '\0');
  data_offset_ = header.size();

  const std::string part = path + ".part";
  fd_ = ::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  SINTER_CHECK(fd_ >= 0, "cannot write '{}': {}", part, std::strerror(errno));
  struct stat info {};
  ::fstat(fd_, &info);
  std::string there(header.size(), '\0');
  const bool goes_on = info.st_size >= static_cast<off_t>(header.size()) &&
                       ::pread(fd_, there.data(), there.size(), 0) == static_cast<ssize_t>(there.size()) &&
                       there == header;
  next_ = 0;
  uint64_t end = data_offset_;
  if (goes_on) {  // after the last tensor that is there whole, padding included
    for (; next_ < tensors_.size(); ++next_) {
      const uint64_t past = data_offset_ + aligned(tensors_[next_].offset + tensors_[next_].bytes);
      if (past > static_cast<uint64_t>(info.st_size)) break;
      end = past;
    }
  }
  SINTER_CHECK(::ftruncate(fd_, goes_on ? static_cast<off_t>(end) : 0) == 0, "cannot write '{}': {}", part,
               std::strerror(errno));
  ::lseek(fd_, 0, SEEK_END);
  if (!goes_on) append(std::as_bytes(std::span(header)));
  return next_;
}

void GgufWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    SINTER_CHECK(written > 0, "cannot write '{}.part': {}", path_, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void GgufWriter::write(std::span<const std::byte> tensor) {
  SINTER_CHECK(next_ < tensors_.size(), "'{}': more tensors than were declared", path_);
  const Tensor& declared = tensors_[next_];
  SINTER_CHECK(tensor.size() == declared.bytes, "'{}': tensor '{}' has {} bytes; expected {}", path_, declared.name,
               tensor.size(), declared.bytes);
  append(tensor);
  const std::byte padding[kAlignment] = {};
  append(std::span(padding).first(static_cast<size_t>(aligned(declared.bytes) - declared.bytes)));
  ++next_;
}

void GgufWriter::commit() {
  SINTER_CHECK(next_ == tensors_.size(), "'{}': {} of {} tensors are written", path_, next_, tensors_.size());
  SINTER_CHECK(::fsync(fd_) == 0, "cannot write '{}': {}", path_, std::strerror(errno));
  ::close(fd_);
  fd_ = -1;
  std::error_code error;
  std::filesystem::rename(path_ + ".part", path_, error);
  SINTER_CHECK(!error, "cannot rename '{}.part': {}", path_, error.message());
}

void replace_f64(const std::string& path, const std::string& key, double value) {
  uint64_t offset = 0;
  {
    const base::MappedFile map(path);
    const GgufHeader header = parse_gguf(map.bytes(), path);
    for (const auto& [name, entry] : header.metadata) {
      if (name == key && entry.type == GgufType::f64)
        offset = static_cast<uint64_t>(entry.bytes.data() - map.bytes().data());
    }
  }
  SINTER_CHECK(offset > 0, "'{}' has no f64 key '{}'", path, key);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  SINTER_CHECK(fd >= 0, "cannot write '{}': {}", path, std::strerror(errno));
  const bool is_written = ::pwrite(fd, &value, sizeof value, static_cast<off_t>(offset)) == sizeof value;
  ::close(fd);
  SINTER_CHECK(is_written, "cannot write '{}': {}", path, std::strerror(errno));
}

}  // namespace sinter::io
