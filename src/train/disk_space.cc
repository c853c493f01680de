#include "train/disk_space.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "train/checkpoint.h"

namespace sinter::train {

namespace fs = std::filesystem;
using base::format_bytes;

size_t free_disk_bytes(const std::string& path) {
  std::error_code error;
  fs::path folder = fs::absolute(path, error);
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return SIZE_MAX;
  return static_cast<size_t>(disk.f_bavail) * disk.f_frsize;
}

size_t folder_bytes(const std::string& folder) {
  std::error_code error;
  size_t bytes = 0;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->is_regular_file(ignored)) bytes += at->file_size(ignored);
  }
  return bytes;
}

std::string describe_disk(const DiskNeed& need, size_t free_bytes) {
  return fmt::format("checkpoint {} (model {}), {} kept and 1 under way; disk free {}",
                     format_bytes(double(need.checkpoint_bytes())), format_bytes(double(need.model_bytes)), need.kept,
                     free_bytes == SIZE_MAX ? "not known" : format_bytes(double(free_bytes)));
}

void check_disk(const DiskNeed& need, const std::string& dir, size_t free_bytes, size_t there) {
  if (free_bytes == SIZE_MAX) return;
  SINTER_CHECK(
      need.checkpoint_bytes() <= free_bytes,
      "checkpoint.dir '{}' has {} free, but one checkpoint takes {} (model {}): the run could not be saved; free "
      "some, or name another folder",
      dir, format_bytes(double(free_bytes)), format_bytes(double(need.checkpoint_bytes())),
      format_bytes(double(need.model_bytes)));
  if (need.most_bytes() > free_bytes + there)
    base::log_warning(
        "checkpoint.dir '{}' has {} free, but {} checkpoints take {}: later ones may fail; lower checkpoint.keep", dir,
        format_bytes(double(free_bytes)), need.kept + 1, format_bytes(double(need.most_bytes())));
}

void check_disk_of(const DiskNeed& need, const std::string& dir) {
  const size_t free_bytes = free_disk_bytes(dir);
  size_t old_bytes = 0;  // of what gives way before the first checkpoint is written (RunCheckpoints::load)
  for (const std::string& old : old_checkpoints(dir, need.kept)) old_bytes += folder_bytes(old);
  check_disk(need, dir, free_bytes == SIZE_MAX ? free_bytes : free_bytes + old_bytes, folder_bytes(dir) - old_bytes);
}

}  // namespace sinter::train
