// Files: whole reads, memory maps and atomic writes. Every error names the path and the system's reason.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace sinter::base {

// The whole file as bytes. Throws Error when it cannot be read.
std::string read_file(const std::string& path);

// After a crash at any moment the old or the new content is there whole (base/atomic_file.h).
void write_file_atomic(const std::string& path, std::string_view content);

// Writes unless a file of another content is there: then throws Error, unless `force`. For files that people edit.
void write_new_file(const std::string& path, std::string_view content, bool force);

// The folder and those above it, where they are not there yet.
void create_folders(const std::string& folder);

// Makes the rename or creation of entries in `folder` durable.
void sync_folder(const std::string& folder);

// A read-only memory map of a whole file; movable, unmapped by the destructor.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const std::string& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace sinter::base
