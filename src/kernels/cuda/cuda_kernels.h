// The CUDA backend's kernels, one function per entry of the kernel table (its comments are the contract), and the
// switches of the backend. Plain C++: no CUDA header is needed to include this.
#pragma once
#include "kernels/backend.h"
#include "kernels/table.h"

namespace sinter::kernels::cuda {

#define SINTER_ENTRY(name, Args, cpu, cuda) void name(Stream&, const Args&);
SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
#define SINTER_ENTRY(name, Args, cpu, cuda) bool name(Stream&, const Args&);
SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY

// A product per expert (MatmulArgs::group_offsets given): grouped_matmul.cu, called by matmul.
void grouped_matmul(Stream&, const MatmulArgs&);

// Our own attention for all cases, and cuDNN's for those it takes (false: not taken, nothing was enqueued). Those for
// Hopper: sm90.h.
void flash_forward(Stream&, const AttentionForwardArgs&);
void flash_backward(Stream&, const AttentionBackwardArgs&);
bool cudnn_attention_forward(Stream&, const AttentionForwardArgs&);
bool cudnn_attention_backward(Stream&, const AttentionBackwardArgs&);
int64_t num_sm90_attention_calls();  // how many those for Hopper have taken: tests see which way was gone

// (A, B, count) becomes (B, A, count).
void permute_rows(Stream&, const float* from, float* to, int64_t a, int64_t b, int64_t count);

// What of kernels/fused.h runs as one kernel, where that measures faster than the parts (SINTER_CUDA_FUSE).
enum class Fuse {
  none,  // 0
  own,   // by default: our kernels for Hopper
  // 1: cuBLASLt's epilogues too. Not by default: on an H200 they are slower than their parts, and whole steps of GPT-2
  // 124M no faster (567k tokens/s beside a peer at 520k; 588k beside 528k without, other changes between).
  all,
};

// Switches, read from the environment once.
struct CudaOptions {
  bool tf32 = false;    // SINTER_TF32=1: f32 matrix products round their factors to TF32
  bool tune = true;     // SINTER_CUDA_TUNE=0: take the library's first choice of algorithm, measure nothing
  bool cudnn = true;    // SINTER_CUDNN=0: our own attention kernel everywhere
  bool overlap = true;  // SINTER_CUDA_OVERLAP=0: no kernel of a decoding step begins before the one before it ends
  bool small_products = true;    // SINTER_CUDA_SMALL=0: products of few rows by cuBLASLt too
  bool decode_attention = true;  // SINTER_CUDA_DECODE=0: no kernel of its own for few queries over pages
  bool sm90_attention = true;    // our attention for Hopper; SINTER_SM90_ATTENTION=0: cuDNN's or our other kernels
  Fuse fuse = Fuse::own;
  bool grouped = true;         // CUTLASS's products over groups on Hopper; SINTER_CUDA_GROUPED=0: our own
  bool deterministic = false;  // SINTER_DETERMINISTIC=1: no algorithm whose result may differ from run to run
  size_t shared_bytes = 0;  // SINTER_CUDA_SHARED=bytes: as if blocks had no more shared memory; a test of other cards
};
const CudaOptions& options();
bool is_measuring_off();    // within a WithoutMeasuring (kernels/choices.h)
bool is_measuring_brief();  // within a BriefMeasuring

// The members of the backend (kernels/backend.h).
const KernelTable* make_table();  // traced when SINTER_TRACE asks for it
void set_deterministic();
void limit_measuring(MeasuringLimit limit, int change);
std::vector<std::string> measured_choices(core::Device device);
void restore_choices(core::Device device, const std::vector<std::string>& lines);
bool is_tracing();

// Device memory a backend keeps between calls: at least `bytes`, aligned to 256, valid for work enqueued on `stream`
// until the same slot is asked for again with the same stream. Grows by a fresh block; must not grow inside a capture.
enum class Scratch { partials, sort, workspace, attention, tokens, weight, zeros };
void* scratch(Stream& stream, Scratch slot, size_t bytes);
// Memory of zeros, shared by all that ask: whoever changes it leaves zeros behind. As scratch() otherwise.
void* zeroed_scratch(Stream& stream, size_t bytes);
int num_multiprocessors(const Stream& stream);
int compute_capability(core::Device device);    // 90 for sm_90
size_t most_shared_bytes(core::Device device);  // that a block can have

}  // namespace sinter::kernels::cuda
