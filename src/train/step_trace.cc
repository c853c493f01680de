#include "train/step_trace.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "kernels/trace.h"
#include "train/pipeline.h"

namespace sinter::train {
namespace {

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text ? text : "";
}

}  // namespace

StepTrace::StepTrace(const parallel::Mesh& mesh, core::Device device) : mesh_(mesh) {
  if (kernels::is_tracing(device)) return;
  path_ = mesh.all().broadcast_text(variable("SINTER_TRACE"));
  const std::string step = mesh.all().broadcast_text(variable("SINTER_TRACE_STEP"));
  step_ = std::max(step.empty() ? 3L : std::atol(step.c_str()), 1L) - 1;
}

void StepTrace::begin(int64_t step) {
  is_recording_ = !path_.empty() && step == step_;
  if (!is_recording_) return;
  actions_.clear();
  mesh_.all().barrier();
  began_ = clock_seconds();
}

void StepTrace::add(spec::ActionKind kind, size_t micro_batch, double begin, double end) {
  if (is_recording_) actions_.push_back({{kind, static_cast<int32_t>(micro_batch), 0, -1}, begin, end});
}

void StepTrace::end(const spec::PipelineShape& shape) {
  if (!is_recording_) return;
  is_recording_ = false;
  const double tail_end = clock_seconds() - began_;
  for (plan::TimedAction& a : actions_) a.begin -= began_, a.end -= began_;
  const std::string own(reinterpret_cast<const char*>(actions_.data()), actions_.size() * sizeof actions_[0]);
  const std::vector<std::string> texts = mesh_.pipeline().gather_texts(own);
  if (!mesh_.is_first()) return;
  std::vector<std::vector<plan::TimedAction>> ranks;
  for (const std::string& text : texts) {
    ranks.emplace_back(text.size() / sizeof(plan::TimedAction));
    std::memcpy(ranks.back().data(), text.data(), text.size());
  }
  const plan::PipelineTimeline timeline = plan::timeline_of_run(shape, ranks);
  const std::string title = fmt::format("step {}: {}, {}", step_ + 1, spec::describe(mesh_.layout()),
                                        base::format_duration(timeline.seconds));
  base::write_file_atomic(path_, plan::trace_json(timeline));
  base::write_file_atomic(path_ + ".svg", plan::timeline_svg(timeline, title));
  base::log_info("step {} is drawn in {} and {}.svg: passes {}, bubble {:.1f} %, then sums of gradients {}", step_ + 1,
                 path_, path_, base::format_duration(timeline.seconds), 100 * plan::bubble_of(timeline),
                 base::format_duration(tail_end - timeline.seconds));
}

}  // namespace sinter::train
