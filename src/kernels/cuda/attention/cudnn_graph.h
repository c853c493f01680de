// What the files over cuDNN's graphs share. They alone include this.
#pragma once
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {

struct CudnnGraph {
  std::shared_ptr<cudnn_frontend::graph::Graph> graph;  // null: cuDNN has no engine for it
  size_t workspace_bytes = 0;
};

// One for each stream. Graphs are made and run by one thread at a time: cudnn_mutex().
cudnnHandle_t cudnn_handle(Stream& stream);
std::mutex& cudnn_mutex();

// An empty graph over 16-bit numbers with f32 in between.
std::shared_ptr<cudnn_frontend::graph::Graph> new_cudnn_graph(base::DType dtype);
// Makes what was described ready to run. Where cuDNN has no engine a warning names `what`, and our own kernel takes it.
CudnnGraph build_cudnn_graph(std::shared_ptr<cudnn_frontend::graph::Graph> graph, cudnnHandle_t handle,
                             const std::string& what);
void run_cudnn_graph(Stream& stream, const CudnnGraph& graph, std::unordered_map<int64_t, void*>& pointers,
                     void* workspace);

// A tensor of `count` whole numbers for each sequence, or places of them.
std::shared_ptr<cudnn_frontend::graph::Tensor_attributes> cudnn_integers(cudnn_frontend::graph::Graph& graph,
                                                                         const char* name, int64_t uid, int64_t count,
                                                                         cudnn_frontend::DataType_t type);

}  // namespace sinter::kernels::cuda
