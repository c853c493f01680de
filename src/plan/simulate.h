// A discrete-event simulator of training steps: it runs the trainer's own action lists (spec/schedule.h) on a compute
// and a communication stream per rank. Ranks that do the same are simulated once: the tensor- and context-parallel
// ranks of a pipeline stage move together, and pipelines differ only where something makes them differ (a slow rank,
// jitter).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/time.h"
#include "spec/schedule.h"

namespace sinter::plan {

struct Straggler {
  int64_t pipeline = 0;   // which data-parallel replica
  int64_t rank = 0;       // which stage of it
  double slowdown = 1.0;  // its computations take this many times as long
};

struct SimulationInput {
  spec::PipelineShape shape;
  std::vector<double> forward, backward;  // seconds per virtual stage (pp * interleave)
  double weight_share = 0.5;              // of a backward pass: gradients of weights, where it is split (ZB-H1)
  double transfer = 0;                    // seconds of one send
  bool overlaps_transfer = true;          // sends run beside computation; else the sender waits for them
  double tail = 0;                        // after the last backward of all: gradient traffic, optimizer
  int64_t pipelines = 1;                  // data-parallel replicas
  int64_t ranks_per_stage = 1;            // tensor x context parallel ranks that move together
  std::vector<Straggler> stragglers;
  double jitter = 0;  // relative standard deviation of every rank's speed, drawn from `seed`
  uint64_t seed = 0;

  int64_t num_ranks() const { return shape.pp * pipelines * ranks_per_stage; }
};

enum class Lane : uint8_t { compute, communication };

struct SimulatedEvent {
  spec::Action action;
  int32_t rank = 0;
  Lane stream = Lane::compute;
  double begin = 0, end = 0;
  int64_t cause = -1;  // index of the event whose end let this one begin; -1 = the start
};

// One pipeline's step.
struct PipelineTimeline {
  std::vector<SimulatedEvent> events;
  std::vector<double> busy;                    // (pp) seconds of computation
  std::vector<double> finished;                // (pp) end of the last computation
  double seconds = 0;                          // until the last of them
  std::vector<int64_t> critical_path() const;  // event indices, first to last
};

struct Simulation {
  PipelineTimeline slowest;  // the pipeline that ends last
  int64_t slowest_pipeline = 0;
  double pipeline_seconds = 0;               // until every pipeline has finished
  double seconds = 0;                        // with the tail
  double bubble = 0;                         // idle share of the slowest pipeline's computing time
  int64_t num_ranks = 0, num_simulated = 0;  // pipelines x stages actually run through
};

// Throws base::Error when the lists cannot run to their end or the input does not fit the shape.
PipelineTimeline simulate_pipeline(const SimulationInput& input, const std::vector<double>& slowdown);
Simulation simulate(const SimulationInput& input);

// Durations from the time model.
SimulationInput simulation_input(const TimeModel& time, const spec::ParallelSpec& parallel, const Software& software);

// What a rank of a pipeline did in a step that ran, in the order of its list; seconds since the step's beginning. A
// receive ends when the message is there, a send when it is on its way.
struct TimedAction {
  spec::Action action;
  double begin = 0, end = 0;
};
// That step as a timeline, drawn by the code that draws simulated ones. [rank of the pipeline]; every rank's list
// whole. A computation waited for a message that was on its way only after its rank had begun to wait for it. Throws
// base::Error where a message has no sender.
PipelineTimeline timeline_of_run(const spec::PipelineShape& shape, const std::vector<std::vector<TimedAction>>& ranks);
// Idle share of the ranks' time up to the last computation.
double bubble_of(const PipelineTimeline& timeline);

// For chrome://tracing and ui.perfetto.dev: one process per pipeline, one thread per rank and stream.
std::string trace_json(const PipelineTimeline& timeline);
// A picture: one row per rank, forwards and backwards in colour, the critical path outlined.
std::string timeline_svg(const PipelineTimeline& timeline, const std::string& title);

// Share of the time that trains when devices fail (exponential, independent) and work since the last checkpoint is
// lost.
struct FailureModel {
  double mtbf_seconds = 0;  // of one device
  int64_t devices = 1;
  double checkpoint_seconds = 0;  // training stands still
  double restart_seconds = 0;     // from a failure to the first step after it
  double interval_seconds = 0;    // between checkpoints; 0 = the best
};
struct Goodput {
  double interval_seconds = 0, failures_per_day = 0, goodput = 1;
  double lost_to_checkpoints = 0, lost_to_failures = 0;  // shares of the time
};
// Daly's expectation, exact for exponential failures; the default interval minimises it (Young: sqrt(2 t_ckpt MTBF)).
Goodput expected_goodput(const FailureModel& model);
// The same by drawing failures until `useful_seconds` of training are done.
double simulated_goodput(const FailureModel& model, double useful_seconds, uint64_t seed);

}  // namespace sinter::plan
