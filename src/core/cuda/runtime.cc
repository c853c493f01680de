// The CUDA runtime: memory, copies and the main stream of one GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/mapped_pages.h"
#include "base/text.h"
#include "core/cuda/check.h"
#include "core/cuda/probe.h"
#include "core/device.h"

namespace sinter::core {

void fail_cuda(const char* call, const char* file, int line, int status) {
  cudaGetLastError();  // whoever goes on after this must not find it again at their next launch
  auto error = static_cast<cudaError_t>(status);
  std::string_view path = file;  // the path from src/ on is enough to find the place
  if (size_t at = path.rfind("src/"); at != std::string_view::npos) path.remove_prefix(at);
  base::fail("CUDA error {} ({}) at {}:{} in {}", cudaGetErrorName(error), cudaGetErrorString(error), path, line, call);
}

namespace {

// Blocks come straight from cudaMalloc: training asks for a few large planned blocks, so a cache would only hide what
// is held. cudaMalloc aligns to 256 bytes and more.
class CudaAllocator : public Allocator {
 public:
  explicit CudaAllocator(int index) : index_(index) {}
  Device device() const override { return {DeviceKind::cuda, index_}; }

  void* allocate(size_t bytes) override {
    std::lock_guard lock(mutex_);
    SINTER_CUDA_CHECK(cudaSetDevice(index_));
    void* data = nullptr;
    cudaError_t status = cudaMalloc(&data, std::max<size_t>(bytes, 1));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // out of memory is not sticky: clear it so that the caller can go on with less
      size_t free_bytes = 0, total_bytes = 0;
      cudaMemGetInfo(&free_bytes, &total_bytes);
      base::fail(
          "out of memory on cuda:{}: {} asked for, {} held, {} of {} free; use a smaller batch, or recompute more",
          index_, base::format_bytes(double(bytes)), base::format_bytes(double(stats_.current_bytes)),
          base::format_bytes(double(free_bytes)), base::format_bytes(double(total_bytes)));
    }
    SINTER_CUDA_CHECK(status);
    count_allocate(bytes);
    return data;
  }

  void release(void* data, size_t bytes) override {
    std::lock_guard lock(mutex_);
    // Tensors in static objects may outlive the driver at exit; there is nothing left to free then.
    cudaError_t status = cudaFree(data);
    if (status != cudaSuccess && status != cudaErrorCudartUnloading) cudaGetLastError();
    count_release(bytes);
  }

 private:
  int index_;
  std::mutex mutex_;
};

// The device's side of a copy may be host memory that the GPU reaches (core/host_memory.h), so the driver finds the
// direction (cudaMemcpyDefault). Host buffers pass through pinned memory: cudaMemcpyAsync from pageable memory would
// make the host wait for everything enqueued before. A ring of slots, each free again once its event has passed.
// Several threads fill slots side by side: one alone reads memory at a fraction of the rate at which the device takes
// it.
class PinnedRing {
 public:
  static constexpr size_t kSlotBytes = size_t{1} << 20;
  static constexpr int kSlots = 64;

  // Copies to the device in stream order; `host` may be reused on return.
  void send(void* destination, const void* host, size_t bytes, cudaStream_t stream) {
    for (size_t at = 0; at < bytes; at += kSlotBytes) {
      send_slot(static_cast<std::byte*>(destination) + at, static_cast<const std::byte*>(host) + at,
                std::min(kSlotBytes, bytes - at), stream);
    }
  }

 private:
  struct Slot {
    std::mutex mutex;
    std::byte* data = nullptr;
    cudaEvent_t passed = nullptr;
  };
  void send_slot(void* destination, const void* host, size_t bytes, cudaStream_t stream) {
    Slot& slot = next_slot();
    const std::lock_guard lock(slot.mutex);
    SINTER_CUDA_CHECK(cudaEventSynchronize(slot.passed));
    base::copy_mapped(slot.data, {static_cast<const std::byte*>(host), bytes});
    SINTER_CUDA_CHECK(cudaMemcpyAsync(destination, slot.data, bytes, cudaMemcpyDefault, stream));
    SINTER_CUDA_CHECK(cudaEventRecord(slot.passed, stream));
  }
  Slot& next_slot() {
    const std::lock_guard lock(mutex_);
    if (!memory_) create();
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % kSlots;
    return slot;
  }
  void create() {
    SINTER_CUDA_CHECK(cudaHostAlloc(&memory_, kSlotBytes * kSlots, cudaHostAllocDefault));
    for (int i = 0; i < kSlots; ++i) {
      slots_[i].data = static_cast<std::byte*>(memory_) + kSlotBytes * static_cast<size_t>(i);
      SINTER_CUDA_CHECK(cudaEventCreateWithFlags(&slots_[i].passed, cudaEventDisableTiming));
    }
  }
  std::mutex mutex_;
  void* memory_ = nullptr;
  Slot slots_[kSlots];
  int next_ = 0;
};

class CudaEvent : public Event {
 public:
  CudaEvent() { SINTER_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void record(Stream& stream) override {
    SINTER_CUDA_CHECK(cudaEventRecord(event_, static_cast<cudaStream_t>(stream.native)));
  }
  void wait() override { SINTER_CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaRuntime : public DeviceRuntime {
 public:
  explicit CudaRuntime(int index) : index_(index), allocator_(index) {
    SINTER_CUDA_CHECK(cudaSetDevice(index));
    SINTER_CHECK(has_kernels_for_current_gpu(),
                 "cuda:{} is {}, but this sinter was built for {}; build it again with `make cuda "
                 "CUDA_ARCHITECTURES={}` (sm_80 and newer are supported)",
                 index, description(), SINTER_CUDA_ARCHITECTURES, capability());
    cudaStream_t stream = nullptr;
    SINTER_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_ = {{DeviceKind::cuda, index}, stream};
  }

  Allocator& allocator() override { return allocator_; }
  Stream& stream() override { return stream_; }

  void copy_to_device(void* destination, const void* host, size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    select();
    refuse_capture(stream);
    ring_.send(destination, host, bytes, native(stream));
  }
  void copy_to_host(void* host, const void* source, size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    select();
    refuse_capture(stream);
    SINTER_CUDA_CHECK(cudaMemcpyAsync(host, source, bytes, cudaMemcpyDefault, native(stream)));
  }
  void copy_within(void* destination, const void* source, size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    select();
    SINTER_CUDA_CHECK(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice, native(stream)));
  }
  void set_zero(void* destination, size_t bytes, Stream& stream) override {
    if (bytes == 0) return;
    select();
    SINTER_CUDA_CHECK(cudaMemsetAsync(destination, 0, bytes, native(stream)));
  }
  void synchronize(Stream& stream) override {
    select();
    SINTER_CUDA_CHECK(cudaStreamSynchronize(native(stream)));
  }
  std::unique_ptr<Event> make_event() override {
    select();
    return std::make_unique<CudaEvent>();
  }
  std::shared_ptr<std::byte[]> allocate_staging(size_t bytes) override {
    select();
    void* data = nullptr;
    const cudaError_t status = cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocDefault);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      base::fail(
          "the host has no {} of memory that the GPU can copy to; a checkpoint's copy needs none with "
          "checkpoint.background = false; offload less (parallel.offload_...)",
          base::format_bytes(double(bytes)));
    }
    SINTER_CUDA_CHECK(status);
    return {static_cast<std::byte*>(data), [](std::byte* p) { cudaFreeHost(p); }};
  }
  bool supports(base::DType dtype) override {
    return base::is_fp8(dtype) ? has_fp8_products() : dtype != base::DType::bf16 || capability() >= 80;
  }
  size_t total_memory_bytes() override { return memory().second; }
  size_t free_memory_bytes() override { return memory().first; }
  std::string description() override {
    cudaDeviceProp properties{};
    SINTER_CUDA_CHECK(cudaGetDeviceProperties(&properties, index_));
    return fmt::format("{}, {}, sm_{}{}, {} multiprocessors", properties.name,
                       base::format_bytes(double(properties.totalGlobalMem)), properties.major, properties.minor,
                       properties.multiProcessorCount);
  }
  bool has_fp8_products() override { return capability() >= 89; }  // Ada, Hopper and newer

 private:
  int capability() const {
    int major = 0, minor = 0;
    SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index_));
    SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index_));
    return 10 * major + minor;
  }
  static cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native); }
  void select() { SINTER_CUDA_CHECK(cudaSetDevice(index_)); }  // the current device is per thread
  // A graph would copy from or to the same host memory at every replay, whatever has become of it.
  static void refuse_capture(const Stream& stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    SINTER_CUDA_CHECK(cudaStreamIsCapturing(native(stream), &status));
    SINTER_CHECK(status == cudaStreamCaptureStatusNone,
                 "[cuda] a copy between host and device inside a graph capture; copy before it or after");
  }
  std::pair<size_t, size_t> memory() {
    select();
    size_t free_bytes = 0, total_bytes = 0;
    SINTER_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return {free_bytes, total_bytes};
  }
  int index_;
  CudaAllocator allocator_;
  Stream stream_;
  PinnedRing ring_;
};

struct Gpus {
  int count = 0;
  std::string why_none;
};

const Gpus& gpus() {
  static const Gpus found = [] {
    Gpus g;
    const cudaError_t status = cudaGetDeviceCount(&g.count);
    if (status == cudaSuccess) return g;
    cudaGetLastError();  // no driver or no GPU: whoever needs one says so
    return Gpus{0, fmt::format(" ({})", cudaGetErrorString(status))};
  }();
  return found;
}

}  // namespace

std::string why_no_cuda(int index) {
  if (gpus().count == 0) return "the driver shows no GPU" + gpus().why_none;
  return fmt::format("there is no cuda:{}, only cuda:0{}", index,
                     gpus().count > 1 ? fmt::format(" to cuda:{}", gpus().count - 1) : "");
}

DeviceRuntime* cuda_runtime(int index) {
  static std::mutex mutex;
  static std::vector<CudaRuntime*> runtimes;  // never destroyed: tensors in static objects may outlive main
  std::lock_guard lock(mutex);
  const int count = gpus().count;
  if (index < 0 || index >= count) return nullptr;
  runtimes.resize(static_cast<size_t>(count), nullptr);
  CudaRuntime*& runtime = runtimes[static_cast<size_t>(index)];
  if (!runtime) runtime = new CudaRuntime(index);
  return runtime;
}

}  // namespace sinter::core
