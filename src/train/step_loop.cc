#include "train/step_loop.h"

#include <chrono>

#include "train/schedule.h"

namespace sinter::train {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

StepLoop::StepLoop(const RunPlan& plan, const Chunks& chunks, const parallel::Mesh& mesh)
    : plan_(plan),
      device_(core::runtime(plan.device)),
      store_(chunks.first().store()),
      optimizer_(plan.recipe.optimizer, store_, static_cast<uint64_t>(plan.recipe.train.seed), optimizer_shard(mesh)),
      runner_(chunks.all(), chunks.axes(), plan.shape, plan.memory, mesh, plan.objective.get()),
      guard_(plan.recipe, plan.device),
      squares_(device_.allocator(), {1}, core::DType::f32) {
  for (int64_t i = 0; i <= steps_ahead(); ++i) records_.emplace_back(plan.device, kernels::kRecordSize);
}

void StepLoop::restart_clock() { began_ = now_seconds(); }

void StepLoop::begin(const std::vector<data::MicroBatch>& batches, int64_t step) {
  if (in_flight_.empty()) restart_clock();
  Begun begun{.step = step,
              .tokens = plan_.source->tokens_at(step),
              .lr_factor = lr_factor(plan_.recipe.schedule, step, plan_.steps)};
  begun.counts = runner_.start(batches, step, guard_.loss_scale());
  runner_.sum_squares(squares_);
  guard_.decide(runner_.record().slice(kSumLoss, 1), begun.counts.count, squares_, runner_.record());
  optimizer_.update(guard_.control(), begun.lr_factor, step);
  runner_.weights().forget();
  records_[static_cast<size_t>(step) % records_.size()].post(runner_.record());
  in_flight_.push_back(begun);
}

EndedStep StepLoop::end() {
  const Begun begun = in_flight_.front();
  in_flight_.pop_front();
  const std::vector<float> record = records_[static_cast<size_t>(begun.step) % records_.size()].take();
  EndedStep ended{.step = begun.step, .tokens = begun.tokens, .lr_factor = begun.lr_factor};
  ended.outcome = read_outcome(record);
  ended.result = runner_.read(begun.counts, record, ended.outcome.loss_scale);
  ended.seconds = now_seconds() - began_;
  const StepResult& result = ended.result;
  if (ended.outcome.is_applied() && result.small_norm_squared) {
    noise_scale_.add(*result.small_norm_squared, result.small_tokens, ended.outcome.norm * ended.outcome.norm,
                     begun.counts.count);
  }
  return ended;
}

}  // namespace sinter::train
