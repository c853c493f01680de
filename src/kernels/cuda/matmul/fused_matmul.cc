// Chooses, once per shape, between one kernel of ours for a product with extras and its parts, and between ours and the
// library's for one with a bias.
#include "kernels/cuda/matmul/fused_matmul.h"

#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "core/cuda/check.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul/small_product.h"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace {

constexpr const char* kChoiceWord = "fused";  // begins its lines in a checkpoint

// Where nothing may be measured, as in serving: with fewer rows one kernel reads the weight several times. A gated
// product of 512 rows of Llama 8B takes it 413 us on an H200; its numbers alone would take 172.
constexpr int64_t kLeastFusedRows = 1024;

void run_sm90(Stream& stream, const FusedMatmulArgs& args) {
  if (args.gated) {
    args.pre_activation ? sm90_swiglu_product(stream, args) : sm90_swiglu_slope_product(stream, args);
  } else {
    args.pre_activation || args.slope ? sm90_gelu_product(stream, args) : sm90_gelu_slope_product(stream, args);
  }
}

std::mutex choices_mutex;
std::map<FusedKey, bool>& choices() {
  static std::map<FusedKey, bool> choices;  // true: our kernel
  return choices;
}

FusedKind kind_of(const FusedMatmulArgs& args) {
  if (args.gated) return args.pre_activation ? FusedKind::gated_activation : FusedKind::gated_gradient;
  if (args.slope) return FusedKind::slope;
  if (args.slope_input) return args.c_sums ? FusedKind::slope_gradient_with_sums : FusedKind::slope_gradient;
  if (args.pre_activation) return FusedKind::activation;
  return args.c_sums ? FusedKind::activation_gradient_with_sums : FusedKind::activation_gradient;
}

// On the caller's data.
bool is_sm90_faster(Stream& stream, const FusedMatmulArgs& args) {
  const MatmulArgs& p = args.product;
  const FusedKey key =
      fused_key(stream, p.c.rows(), p.c.size(-1), p.a.size(-1), kind_of(args), static_cast<bool>(p.bias));
  auto trial = [&] {  // its sums go to scratch: they add up
    FusedMatmulArgs copy = args;
    if (args.c_sums) {
      void* sums = scratch(stream, Scratch::tokens, args.c_sums.bytes());
      copy.c_sums = Tensor::view_of(sums, args.c_sums.shape(), base::DType::f32, args.c_sums.device());
    }
    return copy;
  };
  return is_fused_faster(
      stream, key, [&] { run_sm90(stream, trial()); }, [&] { matmul_in_parts(*cuda_table(), stream, trial()); });
}

bool run_fused(Stream& stream, const FusedMatmulArgs& args) {
  if (options().fuse != Fuse::none && sm90_takes(stream, args)) {
    if (!is_sm90_faster(stream, args)) return false;
    run_sm90(stream, args);
    return true;
  }
  if (args.gated || !library_fused_matmul(stream, args)) return false;
  if (args.c_sums) column_sum(stream, {.x = args.product.c, .y = args.c_sums, .accumulate = true});
  return true;
}

bool run_rotated(Stream& stream, const RotatedMatmulArgs& args) {
  const MatmulArgs& p = args.product;
  if (options().fuse == Fuse::none || !sm90_takes_rope(stream, args)) return false;
  const FusedKey key =
      fused_key(stream, p.c.rows(), p.c.size(-1), p.a.size(-1), FusedKind::rope, static_cast<bool>(p.bias));
  auto parts = [&] {
    matmul(stream, p);
    rope(stream, args.rope);
  };
  if (!is_fused_faster(
          stream, key, [&] { sm90_rope_product(stream, args); }, parts))
    return false;
  sm90_rope_product(stream, args);
  return true;
}

}  // namespace

bool own_bias_matmul(Stream& stream, const MatmulArgs& args) {
  if (options().fuse == Fuse::none || !sm90_takes_bias(stream, args)) return false;
  const FusedKey key = fused_key(stream, args.c.rows(), args.c.size(-1), args.a.size(-1), FusedKind::bias, true);
  auto ours = [&] { sm90_bias_product(stream, args); };
  if (!is_fused_faster(stream, key, ours, [&] { library_fused_matmul(stream, {.product = args}); })) return false;
  ours();
  return true;
}

FusedKey fused_key(const Stream& stream, int64_t rows, int64_t columns, int64_t inner, FusedKind kind, bool has_bias) {
  return {stream.device.index, rows, columns, inner, static_cast<int64_t>(kind), has_bias ? 1 : 0};
}

bool is_fused_faster(Stream& stream, const FusedKey& key, const std::function<void()>& fused,
                     const std::function<void()>& parts) {
  {
    std::lock_guard lock(choices_mutex);
    if (auto found = choices().find(key); found != choices().end()) return found->second;
  }
  if (!may_measure(stream)) return key[1] >= kLeastFusedRows;
  constexpr double kTurnMs = 15.0;  // about as long as the clock takes to follow the power drawn
  constexpr int kTurns = 4;         // each, so that what else the machine does weighs on both
  auto time = [&](const std::function<void()>& call) {
    return time_calls(stream, kTurnMs, [&] {
      call();
      return true;
    });
  };
  parts();  // their product chooses its own algorithm first
  double fused_ms = 0, parts_ms = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    fused_ms += time(fused) / kTurns;
    parts_ms += time(parts) / kTurns;
  }
  base::log_debug("[matmul] ({}), kind {}: fused {:.3f} ms, in parts {:.3f}",
                  fmt::join(key.begin() + 1, key.begin() + 4, ", "), key[4], fused_ms, parts_ms);
  std::lock_guard lock(choices_mutex);
  return choices()[key] = fused_ms < parts_ms;
}

double time_calls(Stream& stream, double budget_ms, const std::function<bool()>& call) {
  auto native = static_cast<cudaStream_t>(stream.native);
  cudaEvent_t begin = nullptr, end = nullptr;
  SINTER_CUDA_CHECK(cudaEventCreate(&begin));
  SINTER_CUDA_CHECK(cudaEventCreate(&end));
  auto batch = [&](int count) -> double {
    SINTER_CUDA_CHECK(cudaEventRecord(begin, native));
    for (int i = 0; i < count; ++i) {
      if (!call()) return -1;
    }
    SINTER_CUDA_CHECK(cudaEventRecord(end, native));
    SINTER_CUDA_CHECK(cudaEventSynchronize(end));
    float ms = 0;
    SINTER_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    return ms / count;
  };
  double ms = batch(1);
  if (ms >= 0) ms = batch(std::clamp(static_cast<int>(budget_ms / std::max(ms, 1e-3)), 1, 40));
  SINTER_CUDA_CHECK(cudaEventDestroy(begin));
  SINTER_CUDA_CHECK(cudaEventDestroy(end));
  return ms;
}

bool is_capturing(const Stream& stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  SINTER_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native), &capture));
  return capture != cudaStreamCaptureStatusNone;
}

bool may_measure(const Stream& stream) { return options().tune && !is_measuring_off() && !is_capturing(stream); }

void append_fused_choices(std::vector<std::string>& lines) {
  std::lock_guard lock(choices_mutex);
  for (const auto& [key, is_ours] : choices()) {
    lines.push_back(fmt::format("{} {} : {}", kChoiceWord, fmt::join(key, " "), is_ours ? 1 : 0));
  }
}

bool restore_fused_choice(const std::string& line, core::Device device) {
  std::istringstream text(line);
  std::string word, colon;
  if (!(text >> word) || word != kChoiceWord) return false;
  FusedKey key{};
  for (int64_t& field : key) text >> field;
  int is_ours = 0;
  text >> colon >> is_ours;
  SINTER_CHECK(text && colon == ":", "the checkpoint's kernel choice '{}' is not one", line);
  key[0] = device.index;
  std::lock_guard lock(choices_mutex);
  choices()[key] = is_ours != 0;
  return true;
}

bool fused_matmul(Stream& stream, const FusedMatmulArgs& args) {
  return small_fused_matmul(stream, args) || (is_ordinary(args.product) && run_fused(stream, args));
}

bool rotated_matmul(Stream& stream, const RotatedMatmulArgs& args) {
  return small_rotated_matmul(stream, args) || (is_ordinary(args.product) && run_rotated(stream, args));
}

}  // namespace sinter::kernels::cuda
