// How much memory this process may use: the machine's, or less where a container or a job's control group says so.
#pragma once
#include <cstddef>
#include <string>

namespace sinter::base {

size_t machine_memory_bytes();
// The smallest of the machine's memory and the limits of the control groups that this process is in (versions 1 and 2).
size_t usable_memory_bytes();

// For tests: the smallest limit that `cgroup` (text of /proc/self/cgroup) leads to under `root` (/sys/fs/cgroup), or
// SIZE_MAX.
size_t cgroup_limit_bytes(const std::string& cgroup, const std::string& root);

}  // namespace sinter::base
