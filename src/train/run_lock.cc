#include "train/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace sinter::train {

RunLock::RunLock(const std::string& folder) {
  const std::string path = folder + "/.lock";
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) return;  // whoever cannot write here is told by the first checkpoint, or writes none
  const bool is_taken = ::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!is_taken) return;
  ::close(file_);
  base::fail("checkpoint.dir '{}' is in use by another run ('{}' is locked); wait for it, or give this one its own",
             folder, path);
}

RunLock::~RunLock() {
  if (file_ >= 0) ::close(file_);
}

}  // namespace sinter::train
