#include "kernels/cuda/attention/cudnn_graph.h"

#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"

namespace sinter::kernels::cuda {

namespace fe = cudnn_frontend;

cudnnHandle_t cudnn_handle(Stream& stream) {
  static std::map<void*, cudnnHandle_t> handles;
  cudnnHandle_t& h = handles[stream.native];
  if (!h) {
    SINTER_CHECK(cudnnCreate(&h) == CUDNN_STATUS_SUCCESS, "[attention] cuDNN could not be started on {}",
                 stream.device.to_string());
    SINTER_CHECK(cudnnSetStream(h, static_cast<cudaStream_t>(stream.native)) == CUDNN_STATUS_SUCCESS,
                 "[attention] cuDNN refused the stream");
  }
  return h;
}

std::mutex& cudnn_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::shared_ptr<fe::graph::Graph> new_cudnn_graph(base::DType dtype) {
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(dtype == base::DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  return graph;
}

CudnnGraph build_cudnn_graph(std::shared_ptr<fe::graph::Graph> graph, cudnnHandle_t handle, const std::string& what) {
  auto status = graph->build(handle, {fe::HeurMode_t::A});
  int64_t workspace = 0;
  if (status.is_good()) status = graph->get_workspace_size(workspace);
  if (!status.is_good()) {
    base::log_warning("cuDNN has no attention for {} ({}); our own kernel takes it", what, status.get_message());
    return {};
  }
  return {std::move(graph), static_cast<size_t>(workspace)};
}

void run_cudnn_graph(Stream& stream, const CudnnGraph& graph, std::unordered_map<int64_t, void*>& pointers,
                     void* workspace) {
  auto status = graph.graph->execute(cudnn_handle(stream), pointers, workspace);
  SINTER_CHECK(status.is_good(), "[attention] cuDNN failed: {}", status.get_message());
}

std::shared_ptr<fe::graph::Tensor_attributes> cudnn_integers(fe::graph::Graph& graph, const char* name, int64_t uid,
                                                             int64_t count, fe::DataType_t type) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(uid)
                          .set_dim({count, 1, 1, 1})
                          .set_stride({1, 1, 1, 1})
                          .set_data_type(type));
}

}  // namespace sinter::kernels::cuda
