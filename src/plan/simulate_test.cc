#include "plan/simulate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "plan/check/points.h"

namespace sinter::plan {
namespace {

// Times that are exact in binary, so that closed forms can be compared without tolerance.
constexpr double kForward = 0.25, kBackward = 0.5;

SimulationInput uniform(spec::PipelineKind kind, int64_t pp, int64_t interleave, int64_t micro_batches) {
  SimulationInput input;
  input.shape = {kind, pp, interleave, micro_batches};
  size_t stages = static_cast<size_t>(pp * interleave);
  input.forward.assign(stages, kForward);
  input.backward.assign(stages, kBackward);
  return input;
}

TEST(Simulate, GpipeAndOneForwardOneBackwardHaveTheClosedFormBubble) {
  for (spec::PipelineKind kind : {spec::PipelineKind::gpipe, spec::PipelineKind::one_f_one_b}) {
    for (int64_t p : {1, 2, 4, 8, 16}) {
      for (int64_t m : {1, 2, 4, 8, 32, 64}) {
        double t = kForward + kBackward;
        Simulation s = simulate(uniform(kind, p, 1, m));
        double dp = static_cast<double>(p), dm = static_cast<double>(m);
        EXPECT_EQ(s.pipeline_seconds, (dm + dp - 1) * t) << spec::pipeline_name(kind) << " p " << p << " m " << m;
        EXPECT_DOUBLE_EQ(s.bubble, (dp - 1) / (dm + dp - 1));                       // of the total
        EXPECT_DOUBLE_EQ((s.pipeline_seconds - dm * t) / (dm * t), (dp - 1) / dm);  // of the ideal time
      }
    }
  }
}

TEST(Simulate, InterleavingDividesTheBubbleByTheNumberOfChunks) {
  for (int64_t p : {2, 4, 8}) {
    for (int64_t v : {1, 2, 3, 4}) {
      for (int64_t groups : {1, 2, 4}) {
        int64_t m = p * groups;
        Simulation s = simulate(uniform(spec::PipelineKind::interleaved, p, v, m));
        double t = static_cast<double>(v) * (kForward + kBackward);  // one micro-batch on one rank
        double dp = static_cast<double>(p), dm = static_cast<double>(m), dv = static_cast<double>(v);
        EXPECT_EQ(s.pipeline_seconds, dm * t + (dp - 1) * t / dv) << "p " << p << " v " << v << " m " << m;
        EXPECT_DOUBLE_EQ((s.pipeline_seconds - dm * t) / (dm * t), (dp - 1) / (dv * dm));
      }
    }
  }
}

// ZB-H1's promise (Qi et al. 2024): (p - 1)(F + B - W), B and W the two halves of a backward pass.
TEST(Simulate, SplitBackwardPassesLeaveTheBubbleOfZeroBubbleH1) {
  for (int64_t p : {2, 4, 8}) {
    for (int64_t m : {p, 2 * p, 4 * p}) {
      for (double share : {0.25, 0.5}) {
        SimulationInput input = uniform(spec::PipelineKind::zero_bubble, p, 1, m);
        input.weight_share = share;
        const double weights = share * kBackward, inputs = kBackward - weights;
        const double ideal = static_cast<double>(m) * (kForward + kBackward);
        EXPECT_EQ(simulate(input).pipeline_seconds, ideal + static_cast<double>(p - 1) * (kForward + inputs - weights))
            << "p " << p << " m " << m << " share " << share;
      }
    }
  }
}

TEST(Simulate, TheCriticalPathIsGaplessAndAsLongAsTheStep) {
  SimulationInput input = uniform(spec::PipelineKind::one_f_one_b, 4, 1, 8);
  input.transfer = 0.125;
  input.forward[2] = 0.5;
  PipelineTimeline timeline = simulate_pipeline(input, {1, 1, 1, 1});
  std::vector<int64_t> path = timeline.critical_path();
  ASSERT_FALSE(path.empty());
  double at = 0;
  for (int64_t index : path) {
    const SimulatedEvent& e = timeline.events[static_cast<size_t>(index)];
    EXPECT_EQ(e.begin, at);
    at = e.end;
  }
  EXPECT_EQ(at, timeline.seconds);
}

TEST(Simulate, SendersThatWaitAreSlowerThanOverlappedSends) {
  SimulationInput input = uniform(spec::PipelineKind::one_f_one_b, 4, 1, 16);
  input.transfer = 0.0625;
  double overlapped = simulate(input).seconds;
  input.overlaps_transfer = false;
  EXPECT_GT(simulate(input).seconds, overlapped);
}

TEST(Simulate, AStragglerSlowsTheStepThroughItsOwnPipelineOnly) {
  SimulationInput input = uniform(spec::PipelineKind::one_f_one_b, 4, 1, 32);
  input.pipelines = 128;
  input.ranks_per_stage = 8;
  double plain = simulate(input).seconds;
  input.stragglers = {{77, 2, 1.5}};
  Simulation slow = simulate(input);
  EXPECT_EQ(slow.slowest_pipeline, 77);
  EXPECT_EQ(slow.num_simulated, 8);  // the straggler's pipeline and one for the other 127
  EXPECT_EQ(slow.num_ranks, 4096);
  // The slow stage sets the pace of its 32 micro-batches; part of one hides in the warm-up.
  double extra = 0.5 * (kForward + kBackward);
  EXPECT_LE(slow.seconds, plain + 32 * extra);
  EXPECT_GE(slow.seconds, plain + 31 * extra);
}

TEST(Simulate, SixteenThousandRanksOfDifferentSpeedAreSimulated) {
  SimulationInput input = uniform(spec::PipelineKind::interleaved, 16, 2, 64);
  input.pipelines = 128;
  input.ranks_per_stage = 8;
  input.jitter = 0.02;
  ASSERT_EQ(input.num_ranks(), 16384);
  Simulation s = simulate(input);
  EXPECT_EQ(s.num_simulated, 16 * 128);
  double plain = simulate(uniform(spec::PipelineKind::interleaved, 16, 2, 64)).seconds;
  EXPECT_GT(s.seconds, plain);
  EXPECT_LT(s.seconds, plain * 1.12);
  Simulation again = simulate(input);
  EXPECT_EQ(s.seconds, again.seconds);
}

TEST(Simulate, AgreesWithTheTimeModelOnARealLayout) {
  ModelShape model = make_model_shape(gpt_spec(96, 12288, 96, 51200, 2048));
  HardwareTable hardware = load_hardware();
  Cluster cluster = parse_cluster(hardware, "64xA100-80GB");
  spec::ParallelSpec p;
  p.tp = 8;
  p.pp = 8;
  p.global_batch = 64;
  const Software& software = find_software("sinter");
  Efficiency efficiency = find_efficiency(cluster.device, software.name);
  TimeModel time(model, p, cluster, software, efficiency);
  double closed = time.plan().seconds;
  double simulated = simulate(simulation_input(time, p, software)).seconds;
  EXPECT_NEAR(simulated / closed, 1, 0.03);
}

TEST(Simulate, TraceIsJsonWithOneEventPerActionAndTheSvgNamesEveryRank) {
  PipelineTimeline timeline = simulate_pipeline(uniform(spec::PipelineKind::one_f_one_b, 3, 1, 4), {1, 1, 1});
  nlohmann::json trace = nlohmann::json::parse(trace_json(timeline));
  size_t spans = 0;
  for (const auto& event : trace["traceEvents"]) spans += event["ph"] == "X";
  EXPECT_EQ(spans, timeline.events.size());
  std::string svg = timeline_svg(timeline, "three <stages> & more");
  EXPECT_NE(svg.find("three &lt;stages&gt; &amp; more"), std::string::npos);
  EXPECT_NE(svg.find("rank 2"), std::string::npos);
  EXPECT_NE(svg.find("#d00000"), std::string::npos);
}

TEST(Simulate, RefusesTimesThatDoNotFitTheShape) {
  SimulationInput input = uniform(spec::PipelineKind::one_f_one_b, 4, 1, 8);
  input.forward.pop_back();
  EXPECT_THROW(simulate(input), base::Error);
  input = uniform(spec::PipelineKind::one_f_one_b, 4, 1, 8);
  input.stragglers = {{0, 9, 2.0}};
  EXPECT_THROW(simulate(input), base::Error);
}

TEST(Goodput, DrawnFailuresAgreeWithTheExpectation) {
  FailureModel model;
  model.mtbf_seconds = 50000 * 3600.0;
  model.devices = 16384;
  model.checkpoint_seconds = 60;
  model.restart_seconds = 600;
  Goodput expected = expected_goodput(model);
  EXPECT_NEAR(simulated_goodput(model, 400.0 * 86400, 7), expected.goodput, 0.01);
  EXPECT_NEAR(expected.goodput + expected.lost_to_checkpoints + expected.lost_to_failures, 1, 1e-12);
}

TEST(Goodput, TheBestIntervalIsNearYoungsAndBeatsItsNeighbours) {
  FailureModel model;
  model.mtbf_seconds = 1e8;
  model.devices = 1000;
  model.checkpoint_seconds = 30;
  Goodput best = expected_goodput(model);
  EXPECT_NEAR(best.interval_seconds, std::sqrt(2 * 30 * 1e5), 0.05 * best.interval_seconds);
  for (double factor : {0.5, 2.0}) {
    FailureModel other = model;
    other.interval_seconds = factor * best.interval_seconds;
    EXPECT_LT(expected_goodput(other).goodput, best.goodput);
  }
}

// A run that takes exactly the simulated times.
std::vector<std::vector<TimedAction>> as_run(const SimulationInput& input, const PipelineTimeline& timeline) {
  std::vector<std::vector<TimedAction>> ranks;
  for (int64_t rank = 0; rank < input.shape.pp; ++rank) {
    std::vector<const SimulatedEvent*> own;
    for (const SimulatedEvent& e : timeline.events) {
      if (e.rank == rank) own.push_back(&e);
    }
    std::vector<TimedAction> list;
    double now = 0;
    size_t next = 0;
    for (const spec::Action& action : spec::make_schedule(input.shape, rank)) {
      const bool is_receive =
          action.kind == spec::ActionKind::receive_activation || action.kind == spec::ActionKind::receive_gradient;
      if (is_receive) {  // until the computation that needed it began
        size_t at = next;
        while (own[at]->stream != Lane::compute) ++at;
        list.push_back({action, now, own[at]->begin});
      } else {
        list.push_back({action, own[next]->begin, own[next]->end});
        if (own[next]->stream == Lane::compute) now = own[next]->end;
        ++next;
      }
    }
    ranks.push_back(list);
  }
  return ranks;
}

TEST(RunTimeline, ARunThatTakesTheSimulatedTimesIsTheSimulatedTimeline) {
  for (spec::PipelineKind kind : {spec::PipelineKind::gpipe, spec::PipelineKind::one_f_one_b,
                                  spec::PipelineKind::interleaved, spec::PipelineKind::zero_bubble}) {
    SimulationInput input;
    input.shape = {kind, 4, kind == spec::PipelineKind::interleaved ? 2 : 1, 8};
    const auto stages = static_cast<size_t>(input.shape.pp * input.shape.interleave);
    input.forward.assign(stages, 1.0);
    input.backward.assign(stages, 2.0);
    input.transfer = 0.125;
    const PipelineTimeline simulated = simulate_pipeline(input, {1, 1, 1.5, 1});
    const PipelineTimeline run = timeline_of_run(input.shape, as_run(input, simulated));
    EXPECT_DOUBLE_EQ(run.seconds, simulated.seconds);
    EXPECT_EQ(run.busy, simulated.busy);
    EXPECT_DOUBLE_EQ(bubble_of(run), bubble_of(simulated));
    EXPECT_EQ(run.events.size(), simulated.events.size());
    double on_path = 0;  // every moment of a step lies on its critical path
    for (int64_t i : run.critical_path())
      on_path += run.events[static_cast<size_t>(i)].end - run.events[static_cast<size_t>(i)].begin;
    EXPECT_NEAR(on_path, run.seconds, 1e-9) << spec::pipeline_name(kind);
  }
}

}  // namespace
}  // namespace sinter::plan
