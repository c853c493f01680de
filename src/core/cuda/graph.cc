// Graphs of CUDA: what a stream captures, instantiated once and launched again and again.
#include "core/graph.h"

#include <cuda_runtime_api.h>

#include <atomic>

#include "base/log.h"
#include "core/cuda/check.h"

namespace sinter::core {
namespace {

std::atomic<bool> captured_anything = false;

class CudaGraph : public Graph {
 public:
  CudaGraph(cudaGraph_t graph, const Stream& stream)
      : device_(stream.device.index), stream_(static_cast<cudaStream_t>(stream.native)) {
    SINTER_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph, 0));
  }
  // It may still run. At the end of the program the driver may be gone, and the graph with it: nothing to report then.
  ~CudaGraph() override {
    cudaSetDevice(device_);
    cudaStreamSynchronize(stream_);
    cudaGraphExecDestroy(executable_);
    cudaGetLastError();
  }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void replay() override {
    SINTER_CUDA_CHECK(cudaSetDevice(device_));
    SINTER_CUDA_CHECK(cudaGraphLaunch(executable_, stream_));
  }

 private:
  int device_;
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

// Ends a capture in any case: of one that failed nothing stays.
class Capture {
 public:
  // Calls of this thread that cannot be captured fail; other threads may do as they like.
  explicit Capture(cudaStream_t stream) : stream_(stream) {
    SINTER_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  }
  ~Capture() {
    if (is_open_) cudaStreamEndCapture(stream_, &graph_);
    if (graph_) cudaGraphDestroy(graph_);
    if (is_open_) cudaGetLastError();  // a capture that was broken off says so once more
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  cudaGraph_t end() {
    is_open_ = false;
    SINTER_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph_));
    return graph_;
  }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  bool is_open_ = true;
};

}  // namespace

bool has_captured() { return captured_anything; }

std::unique_ptr<Graph> cuda_capture(Stream& stream, const std::function<void()>& work) try {
  SINTER_CUDA_CHECK(cudaSetDevice(stream.device.index));
  captured_anything = true;
  Capture capture(static_cast<cudaStream_t>(stream.native));
  work();
  cudaGraph_t graph = capture.end();
  size_t num_nodes = 0;
  SINTER_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &num_nodes));
  auto made = std::make_unique<CudaGraph>(graph, stream);
  base::log_debug("captured a CUDA graph of {} nodes", num_nodes);
  return made;
} catch (const base::Error& error) {
  throw CaptureError(fmt::format("no CUDA graph could be captured: {}", error.what()));
}

}  // namespace sinter::core
