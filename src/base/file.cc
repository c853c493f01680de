#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/mapped_pages.h"

namespace sinter::base {
namespace {

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Descriptor open_for_reading(const std::string& path, struct stat& info) {
  // Without waiting: a named pipe that nobody writes to would hold the program for ever.
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  SINTER_CHECK(file.fd >= 0, "cannot open '{}': {}", path, std::strerror(errno));
  SINTER_CHECK(::fstat(file.fd, &info) == 0, "cannot stat '{}': {}", path, std::strerror(errno));
  SINTER_CHECK(!S_ISDIR(info.st_mode), "'{}' is a folder; expected a file", path);
  // Pipes are meant where the shell names them: <(command), /dev/stdin.
  const bool is_stream =
      path.starts_with("/dev/fd/") || path.starts_with("/proc/") || path == "/dev/stdin" || path == "/dev/null";
  SINTER_CHECK(S_ISREG(info.st_mode) || is_stream, "'{}' is {}; expected a plain file", path,
               S_ISFIFO(info.st_mode) ? "a pipe" : "a device or a socket");
  const int flags = ::fcntl(file.fd, F_GETFL);
  SINTER_CHECK(flags >= 0 && ::fcntl(file.fd, F_SETFL, flags & ~O_NONBLOCK) == 0, "cannot read '{}': {}", path,
               std::strerror(errno));
  return file;
}

}  // namespace

std::string read_file(const std::string& path) {
  struct stat info {};
  Descriptor file = open_for_reading(path, info);
  std::string content;
  content.reserve(static_cast<size_t>(info.st_size));
  char buffer[1 << 16];
  for (;;) {  // until end of file, so that pipes and /proc work too
    ssize_t n = ::read(file.fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    SINTER_CHECK(n >= 0, "cannot read '{}': {}", path, std::strerror(errno));
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
  }
}

void create_folders(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  SINTER_CHECK(!error, "cannot create the folder '{}': {}", folder, error.message());
}

void sync_folder(const std::string& folder) {
  Descriptor dir{::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  SINTER_CHECK(dir.fd >= 0, "cannot open folder '{}': {}", folder, std::strerror(errno));
  ::fsync(dir.fd);  // some file systems refuse to sync folders; the rename itself is still atomic there
}

void write_file_atomic(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.append(std::as_bytes(std::span(content)));
  file.commit();
}

void write_new_file(const std::string& path, std::string_view content, bool force) {
  const bool is_there = !force && std::filesystem::is_regular_file(path);
  SINTER_CHECK(!is_there || read_file(path) == content,
               "'{}' is there already and holds something else; name another file, or say --force to replace it", path);
  const std::string folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) create_folders(folder);
  write_file_atomic(path, content);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  struct stat info {};
  Descriptor file = open_for_reading(path, info);
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* map = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  SINTER_CHECK(map != MAP_FAILED, "cannot map '{}' ({} bytes): {}", path, size_, std::strerror(errno));
  data_ = static_cast<const std::byte*>(map);
  note_mapped(bytes(), path, info);
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!data_) return;
  note_unmapped(bytes());
  ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace sinter::base
