// Which products our kernels for Hopper take. Built with the files *_sm90.cu, or sm90_absent.cc instead of all of them.
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "core/cuda/check.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fused_matmul.h"

namespace sinter::kernels::cuda {
namespace {

bool is_hopper(const Stream& stream) {
  static std::mutex mutex;
  static std::map<int, bool> known;
  std::lock_guard lock(mutex);
  const int device = stream.device.index;
  auto found = known.find(device);
  if (found == known.end()) {
    int major = 0, minor = 0;
    SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    found = known.emplace(device, major == 9 && minor == 0).first;
  }
  return found->second;
}

bool is_bf16(const Tensor& t) { return t.dtype() == base::DType::bf16; }
// The copy engine's: addresses in multiples of 16 bytes.
bool is_aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0; }

}  // namespace

bool sm90_takes(const Stream& stream, const FusedMatmulArgs& args) {
  constexpr int64_t kTileRows = 128, kMost = int64_t{1} << 30;
  const MatmulArgs& p = args.product;
  const bool is_forward = static_cast<bool>(args.pre_activation);
  if (is_forward == static_cast<bool>(args.activation_input) || args.a_sums) return false;
  if (args.activation != spec::Activation::gelu_tanh || p.transpose_a || p.transpose_b != is_forward) return false;
  if (p.accumulate || p.alpha != 1.0f || p.addend || p.batch != 1 || p.group_offsets || (p.bias && !is_forward))
    return false;
  if (!is_bf16(p.a) || !is_bf16(p.b.data) || !is_bf16(p.c) || (p.bias && !is_bf16(p.bias))) return false;
  const Tensor& other = is_forward ? args.pre_activation : args.activation_input;
  if (!is_bf16(other) || other.raw() == p.c.raw()) return false;
  if (!is_aligned(p.a) || !is_aligned(p.b.data) || !is_aligned(p.c) || !is_aligned(other)) return false;
  if (p.bias && !is_aligned(p.bias)) return false;
  const int64_t m = p.c.rows();
  if (m < kTileRows || m > kMost) return false;
  const int64_t n = p.c.num_elements() / m, k = p.a.num_elements() / m;
  if (n % 8 != 0 || k % 8 != 0 || k == 0 || p.b.data.num_elements() != n * k) return false;
  return is_hopper(stream);
}

}  // namespace sinter::kernels::cuda
