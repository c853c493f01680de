// Built instead of cudnn_attention.cc when cuDNN or its frontend headers are not found: our own kernel takes every
// case.
#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/attention/page_attention.h"
#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {

bool cudnn_attention_forward(Stream&, const AttentionForwardArgs&) { return false; }
bool cudnn_attention_backward(Stream&, const AttentionBackwardArgs&) { return false; }
int64_t num_ragged_cudnn_calls() { return -1; }

bool find_piece_kernel(Stream&, const PieceShape&, size_t&) { return false; }
void piece_attention(Stream&, const PieceCall&) {}
int64_t num_piece_calls() { return -1; }

}  // namespace sinter::kernels::cuda
