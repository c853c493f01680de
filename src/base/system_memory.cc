#include "base/system_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

namespace sinter::base {
namespace {

// The number in a file; SIZE_MAX for "max", for no file and for what is no number.
size_t read_limit(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return file >> value && value > 0 ? static_cast<size_t>(value) : SIZE_MAX;
}

// The smallest limit in `file` of a group's folder and the folders above it.
size_t limit_upwards(const std::string& root, std::string group, const char* file) {
  size_t limit = SIZE_MAX;
  while (true) {
    limit = std::min(limit, read_limit(root + group + "/" + file));
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return limit;
    group.resize(slash);
  }
}

}  // namespace

size_t machine_memory_bytes() {
  struct sysinfo info {};
  ::sysinfo(&info);
  return info.totalram * info.mem_unit;
}

// Lines are "0::/path" (version 2) and "4:memory:/path" (version 1).
size_t cgroup_limit_bytes(const std::string& cgroup, const std::string& root) {
  std::istringstream lines(cgroup);
  std::string line;
  size_t limit = SIZE_MAX;
  while (std::getline(lines, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,") limit = std::min(limit, limit_upwards(root, group, "memory.max"));
    if (controllers.find(",memory,") != std::string::npos)
      limit = std::min(limit, limit_upwards(root + "/memory", group, "memory.limit_in_bytes"));
  }
  return limit;
}

size_t usable_memory_bytes() {
  std::ifstream file("/proc/self/cgroup");
  std::stringstream text;
  text << file.rdbuf();
  return std::min(machine_memory_bytes(), cgroup_limit_bytes(text.str(), "/sys/fs/cgroup"));
}

}  // namespace sinter::base
