// Keeps two runs from writing to one checkpoint folder.
#pragma once
#include <string>

namespace sinter::train {

// Held as long as it lives, and given back by the system when the process dies. Throws base::Error when another process
// has it. File systems without locks grant it to everyone.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int file_ = -1;
};

}  // namespace sinter::train
