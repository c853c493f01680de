// test_cuda_emulated: CUDA's own kernels on the CPU, as the target of the cases. Products of many rows, attention of
// cuDNN and what is written for Hopper alone are not among them: the plain loops stand in.
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "base/error.h"
#include "kernels/cases/case.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/emulator/emulator.h"
#include "kernels/cuda/matmul/small_product.h"
#include "kernels/cuda/sm90/sm90.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels {
namespace cuda {

// ---- what the backend keeps and asks of the device ----

const CudaOptions& options() {
  static const CudaOptions options;
  return options;
}
int num_multiprocessors(const Stream&) { return 4; }
int compute_capability(core::Device) { return 90; }
bool is_batch_invariant() { return false; }
size_t most_shared_bytes(core::Device) { return emulator::kSharedBytes; }

static void* room(std::vector<std::byte>& block, size_t bytes, std::byte filling) {
  constexpr size_t kAlignment = 256;
  if (block.size() < bytes + kAlignment) block.assign(bytes + kAlignment, filling);
  const auto begin = reinterpret_cast<uintptr_t>(block.data());
  return reinterpret_cast<void*>((begin + kAlignment - 1) / kAlignment * kAlignment);
}
void* scratch(Stream&, Scratch slot, size_t bytes) {
  static std::map<Scratch, std::vector<std::byte>> blocks;
  return room(blocks[slot], bytes, std::byte{0x7f});
}
void* zeroed_scratch(Stream&, size_t bytes) {
  static std::vector<std::byte> block;
  return room(block, std::max(bytes, size_t{1} << 20), std::byte{0});
}

SortedKeys sort_keys(Stream&, const int32_t* keys, int64_t count, int64_t key_count, int64_t first) {
  static std::vector<int32_t> sorted, positions;
  std::vector<uint32_t> own(static_cast<size_t>(count));
  positions.resize(own.size());
  sorted.resize(own.size());
  for (size_t i = 0; i < own.size(); ++i) {
    const uint32_t key = static_cast<uint32_t>(keys[i]) - static_cast<uint32_t>(first);
    own[i] = key < static_cast<uint32_t>(key_count) ? key : static_cast<uint32_t>(key_count);
    positions[i] = static_cast<int32_t>(i);
  }
  std::stable_sort(positions.begin(), positions.end(),
                   [&](int32_t a, int32_t b) { return own[static_cast<size_t>(a)] < own[static_cast<size_t>(b)]; });
  for (size_t i = 0; i < own.size(); ++i) sorted[i] = static_cast<int32_t>(own[static_cast<size_t>(positions[i])]);
  return {sorted.data(), positions.data()};
}

// ---- entries whose choice among kernels is not emulated ----

void matmul(Stream& stream, const MatmulArgs& args) {
  if (small_matmul(stream, args)) return;
  reference_table()->matmul(stream, args);
}
bool fused_matmul(Stream& stream, const FusedMatmulArgs& args) { return small_fused_matmul(stream, args); }
bool rotated_matmul(Stream& stream, const RotatedMatmulArgs& args) { return small_rotated_matmul(stream, args); }
bool rotated_attention_backward(Stream&, const RotatedAttentionBackwardArgs&) { return false; }
bool linear_cross_entropy(Stream&, const LinearCrossEntropyArgs&) { return false; }
void attention_forward(Stream& stream, const AttentionForwardArgs& args) { flash_forward(stream, args); }
void attention_backward(Stream& stream, const AttentionBackwardArgs& args) { flash_backward(stream, args); }

}  // namespace cuda

namespace cases {
namespace {

const KernelTable& emulated_table() {
  static const KernelTable own = [] {
    KernelTable t;
    t.name = "cuda, emulated";
#define SINTER_ENTRY(name, Args, cpu, cuda) t.name = cuda::name;
    SINTER_KERNELS(SINTER_ENTRY)
    SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
    return t;
  }();
  return own;
}

Target make_target() {
  Target t;
  t.kernels = &emulated_table();
  t.largest = Size::small;
  t.levels = {""};
  t.num_runs = 1;
  return t;
}

}  // namespace

const Target& target() {
  static const Target target = make_target();
  return target;
}

}  // namespace cases
}  // namespace sinter::kernels
