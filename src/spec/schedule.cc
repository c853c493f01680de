#include "spec/schedule.h"

#include <algorithm>

#include "base/error.h"

namespace sinter::spec {
namespace {

// One computation of a rank before communication is added around it.
struct Step {
  bool is_forward;
  int64_t micro_batch, chunk;
  bool is_weights = false;  // the second half of a split backward
};

void check_shape(const PipelineShape& shape, int64_t rank) {
  SINTER_CHECK(shape.pp >= 1 && shape.interleave >= 1 && shape.micro_batches >= 1,
               "pipeline: pp {}, interleave {} and {} micro-batches must all be at least 1", shape.pp, shape.interleave,
               shape.micro_batches);
  SINTER_CHECK(rank >= 0 && rank < shape.pp, "pipeline: rank {} is not one of 0..{}", rank, shape.pp - 1);
  SINTER_CHECK(shape.interleave == 1 || shape.kind == PipelineKind::interleaved,
               "pipeline: interleave {} needs the interleaved schedule, found {}", shape.interleave,
               pipeline_name(shape.kind));
  SINTER_CHECK(shape.kind != PipelineKind::interleaved || shape.micro_batches % shape.pp == 0,
               "pipeline: the interleaved schedule needs a multiple of pp = {} micro-batches, found {}; the next is {}",
               shape.pp, shape.micro_batches, (shape.micro_batches / shape.pp + 1) * shape.pp);
}

// The k-th forward of a rank: micro-batches go through the chunks in groups of pp.
Step nth_forward(const PipelineShape& shape, int64_t k) {
  int64_t group = shape.pp * shape.interleave;
  return {
      .is_forward = true, .micro_batch = k / group * shape.pp + k % shape.pp, .chunk = k / shape.pp % shape.interleave};
}

// The k-th backward: same order of micro-batches, chunks from last to first.
Step nth_backward(const PipelineShape& shape, int64_t k) {
  Step step = nth_forward(shape, k);
  return {.is_forward = false, .micro_batch = step.micro_batch, .chunk = shape.interleave - 1 - step.chunk};
}

// Forwards a rank runs before its first backward.
int64_t num_warmup(const PipelineShape& shape, int64_t rank) {
  int64_t total = shape.micro_batches * shape.interleave;
  switch (shape.kind) {
    case PipelineKind::gpipe:
      return total;
    case PipelineKind::one_f_one_b:
    case PipelineKind::zero_bubble:
      return std::min(total, shape.pp - rank - 1);
    case PipelineKind::interleaved:
      return std::min(total, 2 * (shape.pp - rank - 1) + (shape.interleave - 1) * shape.pp);
  }
  return total;
}

// ZB-H1: the gradients of weights follow `delay` backward passes later, so that no rank holds more passes than 1F1B's
// first, and what is left of them fills the time at the end in which 1F1B waits.
std::vector<Step> with_split_backward(const std::vector<Step>& steps, int64_t delay) {
  std::vector<Step> split;
  std::vector<Step> waiting;
  size_t done = 0;
  for (const Step& step : steps) {
    split.push_back(step);
    if (step.is_forward) continue;
    waiting.push_back({.is_forward = false, .micro_batch = step.micro_batch, .chunk = step.chunk, .is_weights = true});
    if (static_cast<int64_t>(waiting.size() - done) > delay) split.push_back(waiting[done++]);
  }
  split.insert(split.end(), waiting.begin() + static_cast<int64_t>(done), waiting.end());
  return split;
}

std::vector<Step> order_of_steps(const PipelineShape& shape, int64_t rank) {
  int64_t total = shape.micro_batches * shape.interleave;
  int64_t warmup = num_warmup(shape, rank);
  std::vector<Step> steps;
  steps.reserve(static_cast<size_t>(2 * total));
  for (int64_t k = 0; k < warmup; ++k) steps.push_back(nth_forward(shape, k));
  for (int64_t k = warmup; k < total; ++k) {
    steps.push_back(nth_forward(shape, k));
    steps.push_back(nth_backward(shape, k - warmup));
  }
  for (int64_t k = total - warmup; k < total; ++k) steps.push_back(nth_backward(shape, k));
  if (splits_backward(shape)) return with_split_backward(steps, rank);
  if (shape.kind == PipelineKind::gpipe) {
    // GPipe's backward takes the micro-batches last first: the newest activations are freed at once.
    for (int64_t k = 0; k < total; ++k) steps[static_cast<size_t>(total + k)] = nth_backward(shape, total - 1 - k);
  }
  return steps;
}

}  // namespace

PipelineShape pipeline_shape(const ParallelSpec& parallel) {
  return {parallel.schedule, parallel.pp, parallel.interleave, parallel.micro_batches()};
}

std::vector<Action> make_schedule(const PipelineShape& shape, int64_t rank) {
  check_shape(shape, rank);
  int64_t last_stage = shape.pp * shape.interleave - 1;
  auto previous = static_cast<int32_t>((rank + shape.pp - 1) % shape.pp);
  auto next = static_cast<int32_t>((rank + 1) % shape.pp);
  std::vector<Action> actions;
  for (const Step& step : order_of_steps(shape, rank)) {
    int64_t stage = step.chunk * shape.pp + rank;
    auto add = [&](ActionKind kind, int32_t peer) {
      actions.push_back({kind, static_cast<int32_t>(step.micro_batch), static_cast<int32_t>(step.chunk), peer});
    };
    if (step.is_weights) {
      add(ActionKind::backward_weights, -1);
    } else if (step.is_forward) {
      if (stage > 0) add(ActionKind::receive_activation, previous);
      add(ActionKind::forward, -1);
      if (stage < last_stage) add(ActionKind::send_activation, next);
    } else {
      if (stage < last_stage) add(ActionKind::receive_gradient, next);
      add(ActionKind::backward, -1);
      if (stage > 0) add(ActionKind::send_gradient, previous);
    }
  }
  return actions;
}

int64_t max_in_flight(const PipelineShape& shape, int64_t rank) {
  check_shape(shape, rank);
  if (splits_backward(shape)) return std::min(shape.micro_batches, shape.pp);
  return std::min(shape.micro_batches * shape.interleave, num_warmup(shape, rank) + 1);
}

LayerRange layers_of_stage(int64_t num_layers, int64_t num_stages, int64_t stage) {
  SINTER_CHECK(num_stages >= 1 && stage >= 0 && stage < num_stages, "pipeline: stage {} of {} does not exist", stage,
               num_stages);
  int64_t base = num_layers / num_stages, extra = num_layers % num_stages;
  return {stage * base + std::min(stage, extra), base + (stage < extra ? 1 : 0)};
}

}  // namespace sinter::spec
