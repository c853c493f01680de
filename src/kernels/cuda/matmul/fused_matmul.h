// Products with extras (kernels/fused.h) on CUDA: who may do them in one kernel, and how calls are timed to choose.
#pragma once
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "kernels/fused.h"

namespace sinter::kernels::cuda {

// By an epilogue of cuBLASLt, but for c_sums: matmul.cc. False: better or only done apart (nothing was enqueued).
bool library_fused_matmul(Stream&, const FusedMatmulArgs&);
// A product with a bias by our kernel, where it takes it and measured faster. False: nothing was enqueued.
bool own_bias_matmul(Stream&, const MatmulArgs&);

// What a choice between one kernel and the parts depends on: device, rows, columns, inner size, what is done beside the
// product, with a bias or without.
enum class FusedKind {
  activation_gradient = 0,
  activation = 1,
  cross_entropy = 2,
  bias = 3,
  activation_gradient_with_sums = 4,
  gated_gradient = 5,
  gated_activation = 6,
  slope = 7,
  slope_gradient = 8,
  slope_gradient_with_sums = 9,
  rope = 10
};
using FusedKey = std::array<int64_t, 6>;
FusedKey fused_key(const Stream&, int64_t rows, int64_t columns, int64_t inner, FusedKind kind, bool has_bias);
// Whether `fused` beats `parts`: measured by running both, several times, the first time a key is seen. Where nothing
// may be measured it is taken as faster, which it is for the shapes of training.
bool is_fused_faster(Stream&, const FusedKey&, const std::function<void()>& fused, const std::function<void()>& parts);

// The choices between one kernel and the parts, a line each for a checkpoint (kernels/choices.h), and back, for a
// device of the same kind: false when the line is of another kind.
void append_fused_choices(std::vector<std::string>& lines);
bool restore_fused_choice(const std::string& line, core::Device device);

// Milliseconds of one call in a steady stream of them: the GPU must run at the clock it holds under load, or algorithms
// that draw more power look faster than they are. Negative when a call fails. Waits for the stream.
double time_calls(Stream& stream, double budget_ms, const std::function<bool()>& call);
bool is_capturing(const Stream& stream);
// Whether a choice may be measured now: measuring waits for the stream.
bool may_measure(const Stream& stream);

}  // namespace sinter::kernels::cuda
