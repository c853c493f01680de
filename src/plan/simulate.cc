#include "plan/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "base/error.h"
#include "base/rng.h"

namespace sinter::plan {
namespace {

using spec::Action;
using spec::ActionKind;

void check_input(const SimulationInput& input) {
  size_t stages = static_cast<size_t>(input.shape.pp * input.shape.interleave);
  SINTER_CHECK(input.forward.size() == stages && input.backward.size() == stages,
               "simulation: {} forward and {} backward times for {} virtual stages", input.forward.size(),
               input.backward.size(), stages);
  SINTER_CHECK(input.pipelines >= 1 && input.ranks_per_stage >= 1, "simulation: {} pipelines of {} ranks per stage",
               input.pipelines, input.ranks_per_stage);
  for (const Straggler& s : input.stragglers) {
    SINTER_CHECK(s.pipeline >= 0 && s.pipeline < input.pipelines && s.rank >= 0 && s.rank < input.shape.pp,
                 "simulation: straggler at pipeline {}, stage {} but there are {} pipelines of {} stages", s.pipeline,
                 s.rank, input.pipelines, input.shape.pp);
    SINTER_CHECK(s.slowdown > 0 && std::isfinite(s.slowdown),
                 "simulation: a slowdown of {}; expected a positive factor", s.slowdown);
  }
}

// Runs the action lists of one pipeline. A rank advances until it needs a message that has not been sent; whoever sends
// it wakes it up. Times depend only on the lists, so the order in which ranks advance does not matter.
class PipelineRun {
 public:
  PipelineRun(const SimulationInput& input, const std::vector<double>& slowdown)
      : input_(input), slowdown_(slowdown), ranks_(static_cast<size_t>(input.shape.pp)) {
    for (size_t r = 0; r < ranks_.size(); ++r)
      ranks_[r].list = spec::make_schedule(input.shape, static_cast<int64_t>(r));
    size_t slots = static_cast<size_t>(input.shape.pp * input.shape.interleave * input.shape.micro_batches);
    arrivals_[0].assign(slots, -1);
    arrivals_[1].assign(slots, -1);
  }

  PipelineTimeline run() {
    std::deque<size_t> ready;
    for (size_t r = 0; r < ranks_.size(); ++r) ready.push_back(r);
    while (!ready.empty()) {
      size_t r = ready.front();
      ready.pop_front();
      advance(r, ready);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      SINTER_CHECK(ranks_[r].next == ranks_[r].list.size(), "simulation: rank {} waits for ever at action {} of {}", r,
                   ranks_[r].next, ranks_[r].list.size());
      timeline_.busy.push_back(ranks_[r].busy);
      timeline_.finished.push_back(ranks_[r].finished);
      timeline_.seconds = std::max(timeline_.seconds, ranks_[r].finished);
    }
    return std::move(timeline_);
  }

 private:
  struct Rank {
    std::vector<Action> list;
    size_t next = 0;
    double compute_free = 0, link_free = 0;     // when each stream is free again
    int64_t last_compute = -1, last_send = -1;  // the events that end there
    int64_t message = -1;                       // arrival the next computation waits for
    double busy = 0, finished = 0;
  };

  size_t slot(int64_t stage, int32_t micro_batch) const {
    return static_cast<size_t>(stage * input_.shape.micro_batches + micro_batch);
  }

  void advance(size_t r, std::deque<size_t>& ready) {
    Rank& rank = ranks_[r];
    while (rank.next < rank.list.size()) {
      const Action& a = rank.list[rank.next];
      int64_t stage = a.chunk * input_.shape.pp + static_cast<int64_t>(r);
      switch (a.kind) {
        case ActionKind::receive_activation:
        case ActionKind::receive_gradient: {
          int64_t event = arrivals_[a.kind == ActionKind::receive_gradient][slot(stage, a.micro_batch)];
          if (event < 0) return;  // the sender will call again
          rank.message = event;
          break;
        }
        case ActionKind::forward:
        case ActionKind::backward:
        case ActionKind::backward_weights:
          compute(r, a, stage);
          break;
        case ActionKind::send_activation:
        case ActionKind::send_gradient:
          send(r, a, stage);
          ready.push_back(static_cast<size_t>(a.peer));
          break;
      }
      ++rank.next;
    }
  }

  void compute(size_t r, const Action& a, int64_t stage) {
    Rank& rank = ranks_[r];
    double arrival = rank.message >= 0 ? timeline_.events[static_cast<size_t>(rank.message)].end : 0;
    const std::vector<double>& duration = a.kind == ActionKind::forward ? input_.forward : input_.backward;
    double seconds = duration[static_cast<size_t>(stage)] * slowdown_[r];
    if (spec::splits_backward(input_.shape))
      seconds *= a.kind == ActionKind::backward           ? 1 - input_.weight_share
                 : a.kind == ActionKind::backward_weights ? input_.weight_share
                                                          : 1;
    bool waited = arrival > rank.compute_free;
    double begin = std::max(rank.compute_free, arrival);
    int64_t cause = waited ? rank.message : rank.last_compute;
    rank.message = -1;
    rank.last_compute = add({a, static_cast<int32_t>(r), Lane::compute, begin, begin + seconds, cause});
    rank.compute_free = rank.finished = begin + seconds;
    rank.busy += seconds;
  }

  void send(size_t r, const Action& a, int64_t stage) {
    Rank& rank = ranks_[r];
    bool waits_for_link = rank.link_free > rank.compute_free;
    double begin = std::max(rank.link_free, rank.compute_free), end = begin + input_.transfer;
    int64_t event = add({a, static_cast<int32_t>(r), Lane::communication, begin, end,
                         waits_for_link ? rank.last_send : rank.last_compute});
    rank.link_free = end;
    rank.last_send = event;
    if (!input_.overlaps_transfer) {
      rank.compute_free = end;
      rank.last_compute = event;
    }
    bool is_gradient = a.kind == ActionKind::send_gradient;
    arrivals_[is_gradient][slot(is_gradient ? stage - 1 : stage + 1, a.micro_batch)] = event;
  }

  int64_t add(const SimulatedEvent& event) {
    timeline_.events.push_back(event);
    return static_cast<int64_t>(timeline_.events.size()) - 1;
  }

  const SimulationInput& input_;
  const std::vector<double>& slowdown_;
  std::vector<Rank> ranks_;
  std::vector<int64_t> arrivals_[2];  // activation and gradient: send event by (receiving virtual stage, micro-batch)
  PipelineTimeline timeline_;
};

// How much slower each stage of a pipeline is. The tensor- and context-parallel ranks of a stage wait for each other,
// so the slowest of them counts.
std::vector<double> slowdown_of(const SimulationInput& input, int64_t pipeline) {
  std::vector<double> slowdown(static_cast<size_t>(input.shape.pp), 1.0);
  if (input.jitter > 0) {
    base::CounterRng rng{input.seed, 0};
    for (int64_t stage = 0; stage < input.shape.pp; ++stage) {
      double worst = 0;
      for (int64_t rank = 0; rank < input.ranks_per_stage; ++rank) {
        uint64_t index = static_cast<uint64_t>((pipeline * input.shape.pp + stage) * input.ranks_per_stage + rank);
        worst = std::max(worst, std::exp(input.jitter * rng.normal(index)));
      }
      slowdown[static_cast<size_t>(stage)] = worst;
    }
  }
  for (const Straggler& s : input.stragglers) {
    if (s.pipeline == pipeline) slowdown[static_cast<size_t>(s.rank)] *= s.slowdown;
  }
  return slowdown;
}

}  // namespace

std::vector<int64_t> PipelineTimeline::critical_path() const {
  int64_t last = -1;
  for (size_t i = 0; i < events.size(); ++i) {
    bool is_compute = events[i].stream == Lane::compute;
    if (is_compute && (last < 0 || events[i].end > events[static_cast<size_t>(last)].end))
      last = static_cast<int64_t>(i);
  }
  std::vector<int64_t> path;
  for (int64_t at = last; at >= 0; at = events[static_cast<size_t>(at)].cause) path.push_back(at);
  std::reverse(path.begin(), path.end());
  return path;
}

PipelineTimeline simulate_pipeline(const SimulationInput& input, const std::vector<double>& slowdown) {
  check_input(input);
  SINTER_CHECK(slowdown.size() == static_cast<size_t>(input.shape.pp), "simulation: {} slowdowns for {} ranks",
               slowdown.size(), input.shape.pp);
  return PipelineRun(input, slowdown).run();
}

Simulation simulate(const SimulationInput& input) {
  check_input(input);
  Simulation result;
  result.num_ranks = input.num_ranks();
  // Pipelines that differ from the plain one; the plain one stands for all the others.
  std::vector<int64_t> distinct;
  if (input.jitter > 0) {
    for (int64_t p = 0; p < input.pipelines; ++p) distinct.push_back(p);
  } else {
    for (const Straggler& s : input.stragglers) distinct.push_back(s.pipeline);
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    int64_t plain = 0;
    while (plain < static_cast<int64_t>(distinct.size()) && distinct[static_cast<size_t>(plain)] == plain) ++plain;
    if (plain < input.pipelines) distinct.push_back(plain);
  }
  for (int64_t pipeline : distinct) {
    PipelineTimeline timeline = simulate_pipeline(input, slowdown_of(input, pipeline));
    result.num_simulated += input.shape.pp;
    if (timeline.seconds > result.pipeline_seconds) {
      result.pipeline_seconds = timeline.seconds;
      result.slowest = std::move(timeline);
      result.slowest_pipeline = pipeline;
    }
  }
  result.bubble = bubble_of(result.slowest);
  result.seconds = result.pipeline_seconds + input.tail;
  return result;
}

SimulationInput simulation_input(const TimeModel& time, const spec::ParallelSpec& parallel, const Software& software) {
  SimulationInput input;
  input.shape = spec::pipeline_shape(parallel);
  for (int64_t stage = 0; stage < parallel.pp * parallel.interleave; ++stage) {
    ChunkTime chunk = time.chunk(stage);
    input.forward.push_back(chunk.forward);
    input.backward.push_back(chunk.backward);
  }
  input.transfer = time.transfer();
  input.overlaps_transfer = software.overlaps_pipeline;
  input.tail = time.tail(input.backward[0]).total();
  input.pipelines = parallel.dp();
  input.ranks_per_stage = parallel.tp * parallel.cp;
  return input;
}

}  // namespace sinter::plan
