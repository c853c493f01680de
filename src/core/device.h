// Devices and their runtimes: memory, copies, streams. A backend that is not built is an absent runtime.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"

namespace sinter::core {

enum class DeviceKind : uint8_t {
  cpu,
  cuda,
  shapes  // no data at all: allocations are counted, kernels do nothing; gives the memory plan
};

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
  std::string to_string() const;  // "cpu", "cuda:0", "shapes"
};

// "cpu", "cuda" or "cuda:1". Throws base::UsageError otherwise.
Device parse_device(const std::string& text);

// An order of work on a device. On the CPU calls return when done; on CUDA they are enqueued.
struct Stream {
  Device device;
  void* native = nullptr;  // cudaStream_t on CUDA
};

// Bytes held from an allocator, now and at most.
struct MemoryStats {
  size_t current_bytes = 0;
  size_t peak_bytes = 0;
};

// Gives out device memory. Blocks are aligned to 256 bytes. Not thread-safe unless said.
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual Device device() const = 0;
  // Throws base::Error with the size and what is free when memory runs out. Content is undefined.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* data, size_t bytes) = 0;
  const MemoryStats& stats() const { return stats_; }
  void reset_peak() { stats_.peak_bytes = stats_.current_bytes; }

 protected:
  void count_allocate(size_t bytes);
  void count_release(size_t bytes) { stats_.current_bytes -= bytes; }
  MemoryStats stats_;
};

// A mark in a stream's order of work.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual void wait() = 0;  // until everything before the last mark is done; at once when there is no mark
};

// What a device offers. One object per device, alive to the end of the program.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual Allocator& allocator() = 0;  // thread-safe
  virtual Stream& stream() = 0;        // the main stream
  // Copies between host and this device, or within it, ordered on the stream. What copy_to_device reads may be reused
  // on return; what copy_to_host writes is there once synchronize() returned, or an event recorded after it has passed.
  virtual void copy_to_device(void* destination, const void* host, size_t bytes, Stream& stream) = 0;
  virtual void copy_to_host(void* host, const void* source, size_t bytes, Stream& stream) = 0;
  virtual void copy_within(void* destination, const void* source, size_t bytes, Stream& stream) = 0;
  virtual void set_zero(void* destination, size_t bytes, Stream& stream) = 0;
  virtual void synchronize(Stream& stream) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  // Host memory that copies reach without making the host wait.
  virtual std::shared_ptr<std::byte[]> allocate_staging(size_t bytes) = 0;
  // Whether its matrix units take this format.
  virtual bool supports(base::DType dtype) = 0;
  virtual size_t total_memory_bytes() = 0;
  virtual size_t free_memory_bytes() = 0;
  virtual std::string description() = 0;             // "NVIDIA H200, 139.8 GiB, sm_90"
  virtual bool has_fp8_products() { return false; }  // matrix products of fp8 factors, in hardware
};

// Throws base::Error when the backend is not built in or the device does not exist, saying which are there.
DeviceRuntime& runtime(Device device);

// Implemented in core/cuda/runtime.cc, or as absent in core/cuda_absent.cc (chosen by CMake).
DeviceRuntime* cuda_runtime(int index);  // null: there is none
std::string why_no_cuda(int index);      // where it is null

}  // namespace sinter::core
