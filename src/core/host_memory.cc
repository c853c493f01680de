#include "core/host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace sinter::core {
namespace {

constexpr size_t kAlignment = 256;

class HostMemory : public Allocator {
 public:
  Device device() const override { return {}; }
  void* allocate(size_t bytes) override {
    void* data = std::aligned_alloc(kAlignment, (bytes + kAlignment) / kAlignment * kAlignment);
    SINTER_CHECK(data, "out of host memory: {} asked for, {} already held for what is offloaded",
                 base::format_bytes(double(bytes)), base::format_bytes(double(stats_.current_bytes)));
    count_allocate(bytes);
    return data;
  }
  void release(void* data, size_t bytes) override {
    std::free(data);
    count_release(bytes);
  }
};

// Locked in place and known to the GPU. Taking it is slow, so what was released is kept for the next of its size.
class PinnedMemory : public Allocator {
 public:
  explicit PinnedMemory(Device device) : device_(device) {}
  Device device() const override { return {}; }
  void* allocate(size_t bytes) override {
    auto found = free_.find(bytes);
    if (found == free_.end()) found = free_.emplace(bytes, runtime(device_).allocate_staging(bytes));
    void* data = found->second.get();
    held_.emplace(data, std::move(found->second));
    free_.erase(found);
    count_allocate(bytes);
    return data;
  }
  void release(void* data, size_t bytes) override {
    const auto found = held_.find(data);
    free_.emplace(bytes, std::move(found->second));
    held_.erase(found);
    count_release(bytes);
  }

 private:
  Device device_;
  std::map<void*, std::shared_ptr<std::byte[]>> held_;
  std::multimap<size_t, std::shared_ptr<std::byte[]>> free_;
};

class FileMemory : public Allocator {
 public:
  explicit FileMemory(std::string folder) : folder_(std::move(folder)) { base::create_folders(folder_); }
  Device device() const override { return {}; }
  void* allocate(size_t bytes) override {
    std::string path = folder_ + "/offload-XXXXXX";
    const int file = ::mkstemp(path.data());
    SINTER_CHECK(file >= 0, "parallel.offload_folder '{}': cannot make a file there: {}", folder_,
                 std::strerror(errno));
    ::unlink(path.c_str());
    // Room is taken now: a full disk is told here, not by a signal in the middle of a step.
    const int error = ::posix_fallocate(file, 0, static_cast<off_t>(std::max<size_t>(bytes, 1)));
    void* data = error == 0 ? ::mmap(nullptr, std::max<size_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                            : MAP_FAILED;
    const int reason = error != 0 ? error : errno;
    ::close(file);
    SINTER_CHECK(data != MAP_FAILED, "parallel.offload_folder '{}': no room for {}: {}", folder_,
                 base::format_bytes(double(bytes)), std::strerror(reason));
    count_allocate(bytes);
    return data;
  }
  void release(void* data, size_t bytes) override {
    ::munmap(data, std::max<size_t>(bytes, 1));
    count_release(bytes);
  }

 private:
  std::string folder_;
};

}  // namespace

std::unique_ptr<Allocator> make_host_memory(const std::string& folder, Device device) {
  const bool is_gpu = device.kind == DeviceKind::cuda;
  SINTER_CHECK(!is_gpu || folder.empty(),
               "parallel.offload_folder '{}': a GPU reaches no files; leave it out to use the host's memory, or train "
               "on the CPU",
               folder);
  if (is_gpu) return std::make_unique<PinnedMemory>(device);
  if (folder.empty()) return std::make_unique<HostMemory>();
  return std::make_unique<FileMemory>(folder);
}

}  // namespace sinter::core
