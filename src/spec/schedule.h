// Pipeline schedules as plain action lists: what each pipeline rank does, in order. The trainer runs these lists and
// the simulator times them, so what is simulated is what runs.
//
// A model of `pp * interleave` chunks is laid out so that rank r holds chunks r, pp + r, 2 pp + r, ... ; chunk c of
// rank r is virtual stage c * pp + r. Receives stand before the computation that needs them, sends right after the one
// that makes them. Sends do not block: a runner may start them and wait at the end of the list.
#pragma once
#include <cstdint>
#include <vector>

#include "spec/parallel_spec.h"

namespace sinter::spec {

enum class ActionKind : uint8_t {
  receive_activation,  // block input from the previous virtual stage
  forward,
  send_activation,   // block output to the next virtual stage
  receive_gradient,  // gradient of the block output from the next virtual stage
  backward,          // with split backward passes: of the inputs only
  send_gradient,     // gradient of the block input to the previous virtual stage
  backward_weights,  // of the weights, where backward passes are split (ZB-H1)
};

struct Action {
  ActionKind kind = ActionKind::forward;
  int32_t micro_batch = 0;
  int32_t chunk = 0;  // which of this rank's model chunks
  int32_t peer = -1;  // pipeline rank at the other end of a send or receive

  bool operator==(const Action&) const = default;
};

struct PipelineShape {
  PipelineKind kind = PipelineKind::one_f_one_b;
  int64_t pp = 1;
  int64_t interleave = 1;  // chunks per rank; 1 unless kind is interleaved
  int64_t micro_batches = 1;
};
PipelineShape pipeline_shape(const ParallelSpec& parallel);

// The list of one rank. Throws base::Error when the shape is not valid (interleaved needs micro_batches % pp == 0).
std::vector<Action> make_schedule(const PipelineShape& shape, int64_t rank);

// Whether gradients of weights are actions of their own.
inline bool splits_backward(const PipelineShape& shape) {
  return shape.kind == PipelineKind::zero_bubble && shape.pp > 1;
}

// Micro-batch activations (in units of one chunk) alive at once on `rank` when the list runs.
int64_t max_in_flight(const PipelineShape& shape, int64_t rank);

// First layer and number of layers of a virtual stage: as even as possible, earlier stages take the remainder.
struct LayerRange {
  int64_t begin = 0, count = 0;
};
LayerRange layers_of_stage(int64_t num_layers, int64_t num_stages, int64_t stage);

}  // namespace sinter::spec
