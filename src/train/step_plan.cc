#include "train/step_plan.h"

#include <algorithm>
#include <limits>

#include "kernels/trace.h"
#include "train/chunks.h"
#include "train/pipeline.h"
#include "train/step_batch.h"

namespace sinter::train {
namespace {

bool has_dropout(const spec::ModelSpec& spec) {
  return spec.dropout.embedding > 0 || spec.dropout.residual > 0 || spec.dropout.attention > 0;
}

// A pass of one chunk without data. between(): after the forward.
void run_planned_pass(const ops::Context& context, const models::Transformer& chunk, Objective& objective,
                      const StepBatch& batch, const models::DropoutKey& dropout, bool is_pipeline,
                      const std::function<void()>& between, const std::function<void()>& before_weights = {}) {
  models::LossPlaces places = batch.places();
  if (!context.tape) places.balance = {};
  autograd::Variable input, output;
  const models::TransformerPart& part = chunk.part();
  const core::Shape stream{stream_rows(chunk, batch.get()), chunk.spec().hidden};
  const core::DType dtype = chunk.store().options().compute;
  if (!part.has_embedding) input = autograd::Tape::make_variable(context.make(stream, dtype));
  if (part.has_head) {
    objective.forward({context, chunk, batch.get(), nullptr, dropout, places, input});
  } else {
    output = chunk.stage(context, batch.get(), dropout, input, places.balance);
    output.value = {};  // a message has a copy
  }
  if (!context.tape) return;
  if (between) between();
  if (is_pipeline && !part.has_head) output.slot->grad = context.make(stream, dtype);
  context.tape->backward();
  if (!context.tape->splits_weights()) return;
  output = {}, input = {};  // sent on
  if (before_weights) before_weights();
  context.tape->backward_weights();
}

}  // namespace

bool has_dropout(const spec::ModelSpec& spec, const models::ParameterStore& store) {
  return has_dropout(spec) || std::any_of(store.slots().begin(), store.slots().end(),
                                          [](const auto& slot) { return slot.info.adapter.dropout > 0; });
}

// Null unless asked for. Evaluation does without: it tells the loss of the weights that are exported.
std::unique_ptr<ops::Fp8Layers> make_fp8(const StepShape& shape, models::ParameterStore& store) {
  if (!shape.fp8) return nullptr;
  std::vector<const models::Parameter*> weights;
  for (const auto& slot : store.slots()) {
    if (slot.info.role == spec::ParameterRole::matrix) weights.push_back(&slot.parameter);
  }
  return std::make_unique<ops::Fp8Layers>(store.options().device, weights);
}

size_t StepPlan::arena_bytes() const {
  size_t passes = 0, others = std::max(train.total_bytes, evaluate.total_bytes);
  for (const Chunk& chunk : chunks) {
    passes += std::max<size_t>((chunk.pass.bytes(chunk.in_flight) + 255) / 256 * 256, 256);
    others = std::max(others, chunk.evaluate.total_bytes);
  }
  return std::max(passes, others);
}

std::string graph_obstacle(const spec::ModelSpec& spec, core::Device device, int ranks) {
  if (has_dropout(spec)) return "dropout gets a new key from the host in every pass";
  if (spec.rope.kind == spec::RopeKind::dynamic) return "dynamic RoPE gets a table from the host in every pass";
  if (ranks > 1) return "several ranks begin to sum their gradients during the last pass of a step";
  if (kernels::is_tracing(device)) return "SINTER_TRACE times every call of a pass";
  return "";
}

StepPlan plan_step(const spec::ModelSpec& spec, const StepShape& shape, const std::vector<spec::LocalParameter>& table,
                   Objective* objective, const std::set<std::string>& apart, const parallel::Axes* axes) {
  LanguageModeling modeling;
  if (!objective) objective = &modeling;
  const core::Device nowhere{core::DeviceKind::shapes, 0};
  core::DeviceRuntime& device = core::runtime(nowhere);
  models::ParameterStore store(
      !table.empty() ? table
      : axes         ? axes->table(spec)
                     : spec::whole_table(spec),
      {.device = nowhere, .compute = shape.compute, .trains = true, .gradients = shape.gradients, .apart = apart});
  const Chunks chunks(spec, store, axes);
  const StepBatch batch(spec, shape, device.allocator(), axes ? axes->context() : nullptr);
  std::unique_ptr<ops::Fp8Layers> fp8 = make_fp8(shape, store);
  const models::DropoutKey dropout{.is_on = has_dropout(spec, store)};
  StepPlan plan;
  if (fp8) plan.fp8_bytes = fp8->bytes();
  const bool is_pipeline = shape.pipeline.pp > 1;
  const std::vector<int64_t> in_flight =
      is_pipeline ? chunks_in_flight(shape.pipeline, axes->place().pp) : std::vector<int64_t>{1};
  for (size_t c = 0; c < chunks.all().size(); ++c) {
    const models::Transformer& chunk = *chunks.all()[c];
    StepPlan::Chunk own{.in_flight = in_flight[c]};
    core::MemoryPlan train;
    {
      core::RecordingAllocator recorder;
      core::RecordingAllocator host;
      autograd::Tape tape(shape.recompute, shape.host ? &host : nullptr);
      const ops::Context context{*kernels::shapes_table(), device.stream(), recorder, &tape, fp8.get()};
      if (spec::splits_backward(shape.pipeline)) tape.split_weights();
      int64_t forward_end = 0, backward_end = std::numeric_limits<int64_t>::max();
      run_planned_pass(
          context, chunk, *objective, batch, dropout, is_pipeline, [&] { forward_end = recorder.clock(); },
          [&] { backward_end = recorder.clock(); });
      plan.host_bytes += host.stats().peak_bytes * static_cast<size_t>(own.in_flight);
      if (is_pipeline) {
        own.pass = core::plan_pass(recorder.trace(), forward_end, backward_end);
        plan.train_peak_bytes += own.pass.bytes(own.in_flight);
      } else {
        plan.train = core::plan_memory(recorder.trace());
        plan.train_peak_bytes = recorder.trace().peak_bytes;
      }
    }
    core::RecordingAllocator recorder;
    const ops::Context context{*kernels::shapes_table(), device.stream(), recorder, nullptr};
    run_planned_pass(context, chunk, *objective, batch, {}, is_pipeline, {});
    (is_pipeline ? own.evaluate : plan.evaluate) = core::plan_memory(recorder.trace());
    if (is_pipeline) plan.chunks.push_back(std::move(own));
  }
  return plan;
}

}  // namespace sinter::train
