#include "train/reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/text.h"
#include "comm/waiting.h"
#include "train/balance.h"
#include "train/peak.h"

namespace sinter::train {

Reporter::Reporter(const RunPlan& plan, const parallel::Mesh& mesh, Sample sample, size_t bytes_before)
    : plan_(plan),
      mesh_(mesh),
      sample_(std::move(sample)),
      device_(core::runtime(plan.device)),
      bytes_before_(bytes_before) {}

void Reporter::start(int64_t resumed_step) {
  began_ = std::chrono::steady_clock::now();
  waited_before_ = comm::waited_seconds();
  if (!mesh_.is_first()) return;
  const spec::Recipe& recipe = plan_.recipe;
  const std::string path = recipe.log.metrics.empty() ? recipe.checkpoint.dir + "/metrics.jsonl" : recipe.log.metrics;
  metrics_ = std::make_unique<MetricsFile>(path, resumed_step);
  peak_flops_ = measure_matmul_flops(plan_.device, plan_.shape.compute) * mesh_.all().size();
  base::log_info("peak {} in {} matrix products, measured", format_flops(peak_flops_),
                 base::dtype_name(plan_.shape.compute));
  device_.allocator().reset_peak();
  progress_.update(fmt::format("step {}/{}  the first step is under way", resumed_step + 1, plan_.steps));
}

void Reporter::report(StepMetrics m) {
  if (!mesh_.is_first()) return;
  const double flops = m.tokens_per_second * plan_.flops_per_token;
  peak_flops_ = std::max(peak_flops_, flops);  // it may have been measured while others had the machine
  m.flops_share = flops / peak_flops_;
  all_seconds_ += m.seconds, ++steps_timed_;
  step_seconds_ = step_seconds_ == 0 ? m.seconds : 0.9 * step_seconds_ + 0.1 * m.seconds;
  if (m.step % plan_.recipe.log.every == 0 || m.step == plan_.steps || m.validation_loss || !m.tasks.empty()) {
    if (checkpoint_seconds_ > 0) m.checkpoint_seconds = std::exchange(checkpoint_seconds_, 0);
    metrics_->append(m);
  }
  progress_.update(
      progress_text(m, plan_.steps, peak_flops_, step_seconds_ * static_cast<double>(plan_.steps - m.step)));
  const int64_t every = plan_.recipe.log.sample_every;
  if (sample_ && every > 0 && m.step % every == 0) show_samples(m.step);
}

void Reporter::stand_aside(const std::function<void()>& work) {
  progress_.finish();
  note_peak();
  work();
  device_.allocator().reset_peak();
}

void Reporter::show_samples(int64_t step) {
  stand_aside([&] {
    try {
      sample_(step);
    } catch (const std::exception& e) {  // a run is not to end for want of something to look at
      base::log_warning("step {}: no samples: {}", step, e.what());
    }
  });
}

void Reporter::note_peak() { peak_bytes_ = std::max(peak_bytes_, device_.allocator().stats().peak_bytes); }

// How evenly the ranks worked since the first step; all of them call it.
void Reporter::tell_balance() {
  if (mesh_.all().size() == 1) return;
  const double all = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count(),
               working = std::max(0.0, all - (comm::waited_seconds() - waited_before_));
  std::vector<double> each(static_cast<size_t>(mesh_.all().size()));
  mesh_.all().all_gather(std::as_bytes(std::span(&working, 1)), std::as_writable_bytes(std::span(each)));
  if (mesh_.is_first()) base::log_info("{}", describe_balance(each, all));
}

void Reporter::tell_offload(const StepRunner& runner) {
  if (!mesh_.is_first() || !plan_.host || steps_timed_ == 0) return;
  const auto steps = static_cast<double>(steps_timed_);
  const double copies = runner.copy_seconds() / steps, step = all_seconds_ / steps,
               computing = step - runner.copy_stall_seconds() / steps;
  base::log_info("offload: {} in host memory; a step of {}: {} of computing, {} of copies, {:.2f} x the longer",
                 base::format_bytes(double(plan_.host_state_bytes)), base::format_duration(step),
                 base::format_duration(computing), base::format_duration(copies), step / std::max(computing, copies));
}

void Reporter::finish(const StepRunner& runner) {
  tell_balance();
  if (!mesh_.is_first()) return;
  note_peak();
  const auto peak = static_cast<double>(peak_bytes_ - bytes_before_);
  base::log_info("memory: {} at most, planned {}; activations {} of {} planned", base::format_bytes(peak),
                 base::format_bytes(double(plan_.memory_bytes())),
                 base::format_bytes(double(runner.arena_peak_bytes())),
                 base::format_bytes(double(plan_.memory.train_peak_bytes)));
  if (runner.gradients().num_buckets() > 0) {
    base::log_info("gradients: {} of {} buckets were on their way before the backward pass ended",
                   runner.gradients().num_overlapped(), runner.gradients().num_buckets());
  }
}

}  // namespace sinter::train
