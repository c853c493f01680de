#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace sinter::base {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".tmp.";

std::string folder_of(const std::string& path) {
  std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

// The name that NAME.tmp.PID or NAME.tmp.PID.N stands for; empty for every other name.
std::string_view target_of(std::string_view name) {
  const size_t at = name.rfind(kTemporary);
  if (at == std::string_view::npos) return {};
  const std::string_view number = name.substr(at + kTemporary.size());
  const bool is_number = !number.empty() && number.find_first_not_of("0123456789.") == std::string_view::npos;
  return is_number ? name.substr(0, at) : std::string_view{};
}

// Whether `path` names the open file: it may have been renamed or removed since it was opened.
bool is_still_at(int fd, const std::string& path) {
  struct stat open_file {
  }, named{};
  return ::fstat(fd, &open_file) == 0 && ::stat(path.c_str(), &named) == 0 && open_file.st_dev == named.st_dev &&
         open_file.st_ino == named.st_ino;
}

// A writer holds a lock on its file, which the system gives back when the process ends, however it ends. (The number in
// the name says less: another process may have it by now, or had it in another container or on another machine.)
void remove_unless_locked(const std::string& temporary) {
  const int fd = ::open(temporary.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  if (::flock(fd, LOCK_EX | LOCK_NB) == 0 && is_still_at(fd, temporary)) ::unlink(temporary.c_str());
  ::close(fd);
}

// What cannot be listed or removed stays: it harms nothing but the disk's space.
void remove_abandoned_if(const std::string& folder, const std::function<bool(std::string_view target)>& is_wanted) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const std::string_view target = target_of(name);
    if (!target.empty() && is_wanted(target)) remove_unless_locked(it->path().string());
  }
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  // A rename puts a file in the place of whatever is there: of what a link leads to then, and never of a device.
  std::error_code error;
  if (const fs::path leads_to = fs::canonical(path_, error); !error && fs::is_symlink(path_, error))
    path_ = leads_to.string();
  const fs::file_type type = fs::status(path_, error).type();
  SINTER_CHECK(type == fs::file_type::regular || type == fs::file_type::not_found || type == fs::file_type::none ||
                   type == fs::file_type::directory,
               "'{}' is no regular file, and would be replaced by one; expected a file or a new name", path_);
  const std::string name = fs::path(path_).filename().string();
  remove_abandoned_if(folder_of(path_), [&](std::string_view target) { return target == name; });
  constexpr int kNames = 100;
  for (int i = 0; i < kNames; ++i) {
    temporary_ = path_ + std::string(kTemporary) + std::to_string(::getpid()) + (i ? "." + std::to_string(i) : "");
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno == EEXIST) continue;  // of a living process: another thread here, or another container
    SINTER_CHECK(fd_ >= 0, "cannot create '{}': {}", temporary_, std::strerror(errno));
    // Before the lock it looked abandoned: someone may be removing it, or have removed it. A file system without locks
    // lets nobody remove it either.
    const bool is_taken = ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!is_taken && is_still_at(fd_, temporary_)) return;
    ::close(std::exchange(fd_, -1));
  }
  fail("cannot create '{}': {} files of that name are being written", path_, kNames);
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(fd_);
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_at(bytes, end_);
  end_ += bytes.size();
}

void AtomicFile::write_at(std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    // Linux writes at most 2 GiB per call; smaller pieces keep the page cache's dirty set bounded too.
    const size_t piece = std::min<size_t>(bytes.size(), size_t{1} << 28);
    const ssize_t n = ::pwrite(fd_, bytes.data(), piece, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    SINTER_CHECK(n > 0, "cannot write '{}': {}", temporary_, n < 0 ? std::strerror(errno) : "nothing was written");
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit() {
  SINTER_CHECK(fd_ >= 0, "'{}' is already committed", path_);
  SINTER_CHECK(::fsync(fd_) == 0, "cannot sync '{}': {}", temporary_, std::strerror(errno));
  SINTER_CHECK(::rename(temporary_.c_str(), path_.c_str()) == 0, "cannot rename '{}' to '{}': {}", temporary_, path_,
               std::strerror(errno));
  ::close(std::exchange(fd_, -1));
  sync_folder(folder_of(path_));
}

void remove_abandoned_files(const std::string& folder, std::string_view ending) {
  remove_abandoned_if(folder, [&](std::string_view target) { return target.ends_with(ending); });
}

}  // namespace sinter::base
