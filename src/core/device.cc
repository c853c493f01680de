#include "core/device.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/cpu.h"
#include "base/error.h"
#include "base/system_memory.h"
#include "base/text.h"
#include "base/threads.h"

namespace sinter::core {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kLargeBytes = 4 * kHugePage;
// Large blocks begin at different places of their first page: AdamW's four streams, all at the same one, get in each
// other's way in caches and memory banks (6 % slower on two cores of a Xeon).
constexpr size_t kStagger = 69 * 1024 + 256, kPlaces = 8;
static_assert(kPlaces * kStagger < kHugePage && kStagger % kAlignment == 0);

class CpuAllocator : public Allocator {
 public:
  Device device() const override { return {}; }
  void* allocate(size_t bytes) override {
    void* data = bytes >= kLargeBytes
                     ? allocate_large(bytes)
                     : std::aligned_alloc(kAlignment, round_up(std::max<size_t>(bytes, 1), kAlignment));
    SINTER_CHECK(data, "out of memory on the CPU: {} asked for, {} already held", base::format_bytes(double(bytes)),
                 base::format_bytes(double(stats_.current_bytes)));
    std::lock_guard lock(mutex_);
    count_allocate(bytes);
    return data;
  }
  void release(void* data, size_t bytes) override {
    if (bytes >= kLargeBytes) data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(data) / kHugePage * kHugePage);
    std::free(data);
    std::lock_guard lock(mutex_);
    count_release(bytes);
  }

 private:
  static size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

  // On huge pages: fewer TLB misses in weights and activations.
  void* allocate_large(size_t bytes) {
    const size_t offset = next_place_++ % kPlaces * kStagger, rounded = round_up(bytes + offset, kHugePage);
    if (rounded < bytes) return nullptr;  // more than there are addresses
    char* page = static_cast<char*>(std::aligned_alloc(kHugePage, rounded));
    if (!page) return nullptr;
    ::madvise(page, rounded, MADV_HUGEPAGE);
    return page + offset;
  }

  std::atomic<size_t> next_place_{0};
  std::mutex mutex_;
};

// Where calls return when done there is nothing to wait for.
class PassedEvent : public Event {
 public:
  void record(Stream&) override {}
  void wait() override {}
};

class CpuRuntime : public DeviceRuntime {
 public:
  Allocator& allocator() override { return allocator_; }
  Stream& stream() override { return stream_; }
  void copy_to_device(void* destination, const void* host, size_t bytes, Stream& stream) override {
    copy_within(destination, host, bytes, stream);
  }
  void copy_to_host(void* host, const void* source, size_t bytes, Stream& stream) override {
    copy_within(host, source, bytes, stream);
  }
  void copy_within(void* destination, const void* source, size_t bytes, Stream&) override {
    split(bytes, [&](size_t begin, size_t size) {
      std::memcpy(static_cast<char*>(destination) + begin, static_cast<const char*>(source) + begin, size);
    });
  }
  void set_zero(void* destination, size_t bytes, Stream&) override {
    split(bytes, [&](size_t begin, size_t size) { std::memset(static_cast<char*>(destination) + begin, 0, size); });
  }
  void synchronize(Stream&) override {}
  std::unique_ptr<Event> make_event() override { return std::make_unique<PassedEvent>(); }
  std::shared_ptr<std::byte[]> allocate_staging(size_t bytes) override { return std::make_shared<std::byte[]>(bytes); }
  bool supports(base::DType) override { return true; }
  size_t total_memory_bytes() override { return base::usable_memory_bytes(); }
  size_t free_memory_bytes() override {
    struct sysinfo info {};
    ::sysinfo(&info);
    return (info.freeram + info.bufferram) * info.mem_unit;
  }
  std::string description() override {
    return fmt::format("CPU, {} thread{}, {}, {}", base::num_threads(), base::num_threads() == 1 ? "" : "s",
                       base::cpu_description(), base::format_bytes(double(total_memory_bytes())));
  }

 private:
  template <class Body>
  static void split(size_t bytes, Body body) {
    constexpr int64_t kPiece = 1 << 20;
    base::parallel_for(static_cast<int64_t>(bytes), kPiece, [&](int64_t begin, int64_t end) {
      body(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    });
  }
  CpuAllocator allocator_;
  Stream stream_{};
};

class ShapesAllocator : public Allocator {
 public:
  Device device() const override { return {DeviceKind::shapes, 0}; }
  void* allocate(size_t bytes) override {
    count_allocate(bytes);
    return nullptr;
  }
  void release(void*, size_t bytes) override { count_release(bytes); }
};

class ShapesRuntime : public DeviceRuntime {
 public:
  Allocator& allocator() override { return allocator_; }
  Stream& stream() override { return stream_; }
  void copy_to_device(void*, const void*, size_t, Stream&) override {}
  void copy_to_host(void*, const void*, size_t, Stream&) override {}
  void copy_within(void*, const void*, size_t, Stream&) override {}
  void set_zero(void*, size_t, Stream&) override {}
  void synchronize(Stream&) override {}
  std::unique_ptr<Event> make_event() override { return std::make_unique<PassedEvent>(); }
  std::shared_ptr<std::byte[]> allocate_staging(size_t bytes) override { return std::make_shared<std::byte[]>(bytes); }
  bool supports(base::DType) override { return true; }
  size_t total_memory_bytes() override { return SIZE_MAX; }
  size_t free_memory_bytes() override { return SIZE_MAX; }
  std::string description() override { return "shapes only"; }

 private:
  ShapesAllocator allocator_;
  Stream stream_{{DeviceKind::shapes, 0}, nullptr};
};

}  // namespace

void Allocator::count_allocate(size_t bytes) {
  stats_.current_bytes += bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.current_bytes);
}

std::string Device::to_string() const {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda:" + std::to_string(index);
    case DeviceKind::shapes:
      return "shapes";
  }
  return "?";
}

Device parse_device(const std::string& text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceKind::cuda, 0};
  if (text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() < 9 &&
      std::all_of(text.begin() + 5, text.end(), [](unsigned char c) { return std::isdigit(c); })) {
    return {DeviceKind::cuda, std::stoi(text.substr(5))};
  }
  base::fail_usage("device '{}' is not known; expected cpu, cuda or cuda:N", text);
}

DeviceRuntime& runtime(Device device) {
  static CpuRuntime* cpu = new CpuRuntime;  // never destroyed: tensors in static objects may outlive main
  static ShapesRuntime* shapes = new ShapesRuntime;
  if (device.kind == DeviceKind::cpu) return *cpu;
  if (device.kind == DeviceKind::shapes) return *shapes;
  DeviceRuntime* cuda = cuda_runtime(device.index);
  SINTER_CHECK(cuda, "device {} is not available: {}", device.to_string(), why_no_cuda(device.index));
  return *cuda;
}

}  // namespace sinter::core
