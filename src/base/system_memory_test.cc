#include "base/system_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>

namespace sinter::base {
namespace {

namespace fs = std::filesystem;

TEST(SystemMemory, TheSmallestLimitOfTheControlGroupsCounts) {
  const std::string root = (fs::temp_directory_path() / ("sinter_cgroup_" + std::to_string(::getpid()))).string();
  auto write = [&](const std::string& path, const char* text) {
    fs::create_directories(fs::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  write("/memory.max", "max\n");
  write("/slurm/job_7/memory.max", "8589934592\n");
  write("/slurm/job_7/step_0/memory.max", "max\n");
  EXPECT_EQ(cgroup_limit_bytes("0::/slurm/job_7/step_0\n", root), size_t{8} << 30);
  EXPECT_EQ(cgroup_limit_bytes("0::/\n", root), SIZE_MAX);
  write("/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(cgroup_limit_bytes("5:cpu:/x\n4:memory:/docker/abc\n", root), size_t{1} << 30);
  EXPECT_EQ(cgroup_limit_bytes("nonsense", root), SIZE_MAX);
  fs::remove_all(root);
  EXPECT_LE(usable_memory_bytes(), machine_memory_bytes());
  EXPECT_GT(usable_memory_bytes(), size_t{1} << 20);
}

}  // namespace
}  // namespace sinter::base
