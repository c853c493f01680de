// Files that appear whole or not at all, and what killed processes leave of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sinter::base {

// A file written under a temporary name beside `path`: commit() syncs it, renames it over `path` and syncs the folder,
// so that after a crash at any moment the old or the new content is there whole. Destroyed without commit() it leaves
// nothing behind. A process that is killed leaves PATH.tmp.PID; the next AtomicFile for the same path removes it.
// Every error names the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();
  void append(std::span<const std::byte> bytes);
  // Leaves the place where append() goes on as it is.
  void write_at(std::span<const std::byte> bytes, uint64_t offset);
  void commit();
  bool is_committed() const { return fd_ < 0; }
  const std::string& path() const { return path_; }

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  uint64_t end_ = 0;  // where append() goes on
};

// Removes what killed processes left of AtomicFiles in `folder` whose names end in `ending`. The files of living
// processes, on other machines that share the folder too, are locked and stay. A folder that is not there is empty.
void remove_abandoned_files(const std::string& folder, std::string_view ending);

}  // namespace sinter::base
