#include "bench/pipeline.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "comm/communicator.h"
#include "core/host_batch.h"
#include "models/transformer.h"
#include "plan/simulate.h"
#include "train/pipeline.h"

namespace sinter::bench {
namespace {

using core::Tensor;

// Seconds that a rank's share of the model sleeps in a micro-batch: forward, gradients of inputs and of weights.
constexpr double kForward = 8e-3, kInputs = 8e-3, kWeights = 8e-3;

struct Case {
  spec::PipelineShape shape;
  bool computes = false;
};

spec::ModelSpec make_spec(const Case& c) {
  spec::ModelSpec m;
  m.family = spec::Family::llama;
  m.num_layers = c.computes ? 4 * c.shape.pp : c.shape.pp * c.shape.interleave;
  m.num_heads = m.num_kv_heads = 4;
  m.head_dim = c.computes ? 64 : 4;
  m.hidden = m.num_heads * m.head_dim;
  m.ffn = 4 * m.hidden;
  m.vocab_size = 128;
  m.max_positions = 1024;
  m.rope.kind = spec::RopeKind::standard;
  return m;
}

// One micro-batch and where its losses go.
struct Batch {
  Batch(int64_t tokens, uint64_t number) {
    core::DeviceRuntime& device = core::runtime({});
    base::CounterRng rng{7, number};
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; ++i) ids.push_back(static_cast<int32_t>(rng.bits(static_cast<uint64_t>(i)) % 128));
    host.add_sequence(ids);
    host.set_next_token_targets();
    batch = core::upload(device.allocator(), host);
    places.scale = core::make_tensor<float>(device.allocator(), {1}, std::vector<float>{1e-3f});
    places.losses = Tensor(device.allocator(), {tokens}, core::DType::f32);
  }
  core::HostBatch host;
  core::RaggedBatch batch;
  models::LossPlaces places;
};

// A rank's chunks of the model, with or without sleep in every block.
struct Stages {
  Stages(const Case& c, int64_t rank)
      : spec(make_spec(c)),
        store(spec::local_table(spec, {.pp = c.shape.pp, .interleave = c.shape.interleave}, {.pp = rank}),
              {.trains = true}) {
    store.initialize(1);
    const int64_t stages = c.shape.pp * c.shape.interleave;
    for (int64_t chunk = 0; chunk < c.shape.interleave; ++chunk) {
      const int64_t stage = chunk * c.shape.pp + rank;
      const models::TransformerPart part{spec::layers_of_stage(spec.num_layers, stages, stage), stage == 0,
                                         stage == stages - 1};
      chunks.push_back(std::make_unique<models::Transformer>(spec, store, part));
      if (!c.computes) add_sleep(chunks.back()->hooks, c.shape.interleave);
      pointers.push_back(chunks.back().get());
    }
  }
  void add_sleep(models::BlockHooks& hooks, int64_t parts) const {
    auto sleep = [parts, layers = spec.num_layers](double seconds) {
      return [=](int64_t layer) {
        if (layer >= 0 && layer < layers)
          std::this_thread::sleep_for(std::chrono::duration<double>(seconds / static_cast<double>(parts)));
      };
    };
    hooks.before_forward = sleep(kForward);
    hooks.before_backward = sleep(kInputs);
    hooks.before_gradients = sleep(kWeights);
  }
  spec::ModelSpec spec;
  models::ParameterStore store;
  std::vector<std::unique_ptr<models::Transformer>> chunks;
  std::vector<models::Transformer*> pointers;
};

plan::PipelineTimeline gather(comm::Communicator& world, const spec::PipelineShape& shape,
                              std::vector<plan::TimedAction> own, double began) {
  for (plan::TimedAction& a : own) a.begin -= began, a.end -= began;
  const std::string bytes(reinterpret_cast<const char*>(own.data()), own.size() * sizeof own[0]);
  std::vector<std::vector<plan::TimedAction>> ranks;
  for (const std::string& text : world.gather_texts(bytes)) {
    ranks.emplace_back(text.size() / sizeof(plan::TimedAction));
    std::memcpy(ranks.back().data(), text.data(), text.size());
  }
  return plan::timeline_of_run(shape, ranks);
}

// The quickest of a few steps.
plan::PipelineTimeline measure(comm::Communicator& world, const Case& c) {
  Stages stages(c, world.rank());
  std::vector<std::unique_ptr<Batch>> batches;
  std::vector<train::PipelineMicroBatch> passes;
  for (int64_t i = 0; i < c.shape.micro_batches; ++i) {
    batches.push_back(std::make_unique<Batch>(c.computes ? 256 : 8, static_cast<uint64_t>(i)));
    passes.push_back({batches.back()->batch, {}, batches.back()->places});
  }
  core::DeviceRuntime& device = core::runtime({});
  const ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
  train::Pipeline pipeline(world, c.shape, stages.pointers);
  plan::PipelineTimeline best;
  for (int i = 0; i < 4; ++i) {
    std::vector<plan::TimedAction> actions;
    pipeline.trace_into(&actions);
    stages.store.begin_step();
    world.barrier();
    const double began = train::clock_seconds();
    pipeline.run(context, autograd::Recompute::none, passes);
    plan::PipelineTimeline timeline = gather(world, c.shape, std::move(actions), began);
    if (i > 0 && (best.events.empty() || timeline.seconds < best.seconds)) best = std::move(timeline);
  }
  return best;
}

// Idle time over computing time, by the schedule's formula.
double theory(const spec::PipelineShape& s) {
  const auto p = static_cast<double>(s.pp), m = static_cast<double>(s.micro_batches),
             v = static_cast<double>(s.interleave);
  if (spec::splits_backward(s))
    return (p - 1) * (kForward + kInputs - kWeights) / (m * (kForward + kInputs + kWeights));
  return (p - 1) / (v * m);
}

// The same of a timeline, beside the rank that computes longest.
double idle_share(const plan::PipelineTimeline& t) {
  return t.seconds / *std::max_element(t.busy.begin(), t.busy.end()) - 1;
}

plan::PipelineTimeline simulated(const spec::PipelineShape& shape) {
  plan::SimulationInput input;
  input.shape = shape;
  const auto v = static_cast<double>(shape.interleave);
  input.forward.assign(static_cast<size_t>(shape.pp * shape.interleave), kForward / v);
  input.backward.assign(input.forward.size(), (kInputs + kWeights) / v);
  input.weight_share = kWeights / (kInputs + kWeights);
  return plan::simulate_pipeline(input, std::vector<double>(static_cast<size_t>(shape.pp), 1.0));
}

}  // namespace

Report bench_pipeline(const Options& options) {
  comm::Communicator& world = comm::world();
  SINTER_CHECK(world.size() > 1, "pipeline needs several ranks: mpirun -n 4 sinter bench pipeline");
  Report report;
  report.name = "pipeline";
  report.title = "Pipelines through the trainer's runner: idle time over computing time of the busiest stage";
  report.columns = {{"schedule", "schedule"}, {"stages", "stages", 0},      {"micro_batches", "micro-batches", 0},
                    {"work", "work"},         {"step_ms", "step ms"},       {"measured", "measured", 3},
                    {"theory", "theory", 3},  {"simulated", "simulated", 3}};
  const int64_t pp = world.size();
  std::vector<Case> cases;
  for (const bool computes : {false, true}) {
    if (computes && pp != 2) continue;  // more would share cores
    for (int64_t m = 2 * pp; m <= (options.is_full ? 8 : 4) * pp; m *= 2) {
      for (spec::PipelineKind kind : {spec::PipelineKind::gpipe, spec::PipelineKind::one_f_one_b,
                                      spec::PipelineKind::interleaved, spec::PipelineKind::zero_bubble})
        cases.push_back({{kind, pp, kind == spec::PipelineKind::interleaved ? 2 : 1, m}, computes});
    }
  }
  for (const Case& c : cases) {
    const plan::PipelineTimeline timeline = measure(world, c);
    report.rows.push_back({std::string(spec::pipeline_name(c.shape.kind)), static_cast<double>(pp),
                           static_cast<double>(c.shape.micro_batches), std::string(c.computes ? "computes" : "sleeps"),
                           timeline.seconds * 1e3, idle_share(timeline), theory(c.shape),
                           idle_share(simulated(c.shape))});
  }
  return report;
}

}  // namespace sinter::bench
