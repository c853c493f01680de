#include "core/side_stream.h"

#include <cuda_runtime_api.h>

#include "core/cuda/check.h"

namespace sinter::core {
namespace {

class CudaMark : public Mark {
 public:
  explicit CudaMark(cudaStream_t stream) {
    SINTER_CUDA_CHECK(cudaEventCreate(&event_));
    SINTER_CUDA_CHECK(cudaEventRecord(event_, stream));
  }
  ~CudaMark() override { cudaEventDestroy(event_); }
  CudaMark(const CudaMark&) = delete;
  CudaMark& operator=(const CudaMark&) = delete;

  void hold(Stream& later) override {
    SINTER_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(later.native), event_, 0));
  }
  bool has_passed() override {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    SINTER_CUDA_CHECK(state);
    return true;
  }
  double seconds_since(Mark& earlier) override {
    SINTER_CUDA_CHECK(cudaEventSynchronize(event_));
    float ms = 0;
    SINTER_CUDA_CHECK(cudaEventElapsedTime(&ms, static_cast<CudaMark&>(earlier).event_, event_));
    return double(ms) / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaSideStream : public SideStream {
 public:
  explicit CudaSideStream(int index) {
    SINTER_CUDA_CHECK(cudaSetDevice(index));
    int least = 0, greatest = 0;
    SINTER_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    SINTER_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, least));
    stream_ = {{DeviceKind::cuda, index}, stream};
  }
  ~CudaSideStream() override {
    auto* stream = static_cast<cudaStream_t>(stream_.native);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    cudaGetLastError();
  }
  CudaSideStream(const CudaSideStream&) = delete;
  CudaSideStream& operator=(const CudaSideStream&) = delete;

  Stream& stream() override { return stream_; }
  std::unique_ptr<Mark> mark(Stream& stream) override {
    return std::make_unique<CudaMark>(static_cast<cudaStream_t>(stream.native));
  }

 private:
  Stream stream_;
};

}  // namespace

std::unique_ptr<SideStream> make_cuda_side_stream(int index) { return std::make_unique<CudaSideStream>(index); }

}  // namespace sinter::core
