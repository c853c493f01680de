#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/html.h"
#include "base/rng.h"
#include "base/text.h"
#include "plan/simulate.h"

namespace sinter::plan {
namespace {

const char* action_word(spec::ActionKind kind) {
  switch (kind) {
    case spec::ActionKind::forward:
      return "forward";
    case spec::ActionKind::backward:
      return "backward";
    case spec::ActionKind::backward_weights:
      return "backward of weights";
    case spec::ActionKind::send_activation:
      return "send activation";
    case spec::ActionKind::send_gradient:
      return "send gradient";
    case spec::ActionKind::receive_activation:
      return "receive activation";
    case spec::ActionKind::receive_gradient:
      return "receive gradient";
  }
  return "?";
}

// Forwards blue, backwards green, one shade per model chunk.
std::string colour(const SimulatedEvent& event) {
  bool is_forward = event.action.kind == spec::ActionKind::forward;
  int lightness = 45 + 9 * (event.action.chunk % 5);
  const bool is_weights = event.action.kind == spec::ActionKind::backward_weights;
  return fmt::format("hsl({},{}%,{}%)", is_forward ? 212 : is_weights ? 75 : 140, 60, lightness);
}

}  // namespace

std::string trace_json(const PipelineTimeline& timeline) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t rank = 0; rank < timeline.busy.size(); ++rank) {
    for (int stream = 0; stream < 2; ++stream) {
      out += fmt::format(
          "{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":{},\"args\":{{\"name\":\"rank {} {}\"}}}},\n",
          2 * rank + static_cast<size_t>(stream), rank, stream == 0 ? "compute" : "communication");
    }
  }
  std::vector<int64_t> path = timeline.critical_path();
  std::set<int64_t> critical(path.begin(), path.end());
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const SimulatedEvent& e = timeline.events[i];
    out += fmt::format(
        "{{\"name\":\"{} {}\",\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{:.3f},\"dur\":{:.3f},\"pid\":0,\"tid\":{},"
        "\"args\":{{\"micro_batch\":{},\"chunk\":{},\"critical\":{}}}}}{}\n",
        action_word(e.action.kind), e.action.micro_batch, action_word(e.action.kind), e.begin * 1e6,
        (e.end - e.begin) * 1e6, 2 * e.rank + (e.stream == Lane::communication ? 1 : 0), e.action.micro_batch,
        e.action.chunk, critical.count(static_cast<int64_t>(i)) > 0, i + 1 < timeline.events.size() ? "," : "");
  }
  return out + "]}\n";
}

namespace {

// About eight round times from 0 that lie within the step.
std::vector<double> time_ticks(double all) {
  if (!(all > 0)) return {0};
  const double power = std::pow(10, std::floor(std::log10(all / 8)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (all / (factor * power) <= 10) step = factor * power;
  }
  std::vector<double> ticks;
  for (int i = 0; i * step <= 0.97 * all; ++i) ticks.push_back(i * step);  // the last has room for its words
  return ticks;
}

}  // namespace

std::string timeline_svg(const PipelineTimeline& timeline, const std::string& title) {
  constexpr double kWidth = 1200, kLeft = 70, kTop = 46, kRow = 26;
  double ranks = static_cast<double>(timeline.busy.size());
  double scale = timeline.seconds > 0 ? (kWidth - kLeft - 20) / timeline.seconds : 0;
  double height = kTop + ranks * kRow + 34;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{}\" y=\"20\" font-size=\"14\">{}</text>\n",
      kWidth, height, kLeft, base::escape_html(title));
  out += fmt::format(
      "<text x=\"{}\" y=\"36\" fill=\"#555\">blue forward, green backward, red outline critical path</text>\n", kLeft);
  std::vector<int64_t> path = timeline.critical_path();
  std::set<int64_t> critical(path.begin(), path.end());
  for (size_t rank = 0; rank < timeline.busy.size(); ++rank) {
    double y = kTop + static_cast<double>(rank) * kRow;
    out += fmt::format("<text x=\"8\" y=\"{:.1f}\">rank {}</text>\n", y + 16, rank);
    out += fmt::format("<rect x=\"{}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"#f0f0f0\"/>\n", kLeft, y,
                       timeline.seconds * scale, kRow - 4);
  }
  for (size_t i = 0; i < timeline.events.size(); ++i) {
    const SimulatedEvent& e = timeline.events[i];
    if (e.stream != Lane::compute) continue;
    double x = kLeft + e.begin * scale, w = (e.end - e.begin) * scale, y = kTop + e.rank * kRow;
    bool is_critical = critical.count(static_cast<int64_t>(i)) > 0;
    out += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"{}\" "
        "stroke-width=\"{}\"><title>{} {} chunk {} {:.3f} ms</title></rect>\n",
        x, y, w, kRow - 4, colour(e), is_critical ? "#d00000" : "white", is_critical ? 1.2 : 0.4,
        action_word(e.action.kind), e.action.micro_batch, e.action.chunk, 1e3 * (e.end - e.begin));
    if (w > 14) {
      out += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" fill=\"white\" text-anchor=\"middle\">{}</text>\n", x + w / 2,
                         y + 15, e.action.micro_batch);
    }
  }
  for (const double seconds : time_ticks(timeline.seconds)) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#555\">{}</text>\n",
                       kLeft + seconds * scale, kTop + ranks * kRow + 16,
                       seconds > 0 ? base::format_duration(seconds) : "0");
  }
  return out + "</svg>\n";
}

namespace {

// Expected wall time per useful second when checkpoints are `interval` of useful work apart (Daly 2006).
double time_per_useful_second(const FailureModel& model, double interval) {
  double mtbf = model.mtbf_seconds / static_cast<double>(model.devices);
  return mtbf * std::exp(model.restart_seconds / mtbf) * std::expm1((interval + model.checkpoint_seconds) / mtbf) /
         interval;
}

void check_failures(const FailureModel& model) {
  SINTER_CHECK(model.devices >= 1, "failures: {} devices; expected at least 1", model.devices);
  SINTER_CHECK(model.mtbf_seconds > 0, "failures: a mean time between failures of {} s; expected a positive number",
               model.mtbf_seconds);
  SINTER_CHECK(model.checkpoint_seconds >= 0 && model.restart_seconds >= 0 && model.interval_seconds >= 0,
               "failures: checkpoint, restart and interval times must not be negative");
}

double best_interval(const FailureModel& model) {
  double mtbf = model.mtbf_seconds / static_cast<double>(model.devices);
  double young = std::sqrt(2 * std::max(model.checkpoint_seconds, 1e-3) * mtbf);
  // One minimum: golden section around Young's value.
  double low = young / 16, high = young * 16;
  constexpr double kGolden = 0.6180339887498949;
  for (int i = 0; i < 80; ++i) {
    double a = high - kGolden * (high - low), b = low + kGolden * (high - low);
    (time_per_useful_second(model, a) < time_per_useful_second(model, b) ? high : low) =
        time_per_useful_second(model, a) < time_per_useful_second(model, b) ? b : a;
  }
  return (low + high) / 2;
}

}  // namespace

Goodput expected_goodput(const FailureModel& model) {
  check_failures(model);
  Goodput g;
  g.interval_seconds = model.interval_seconds > 0 ? model.interval_seconds : best_interval(model);
  double mtbf = model.mtbf_seconds / static_cast<double>(model.devices);
  g.failures_per_day = 86400 / mtbf;
  g.goodput = 1 / time_per_useful_second(model, g.interval_seconds);
  g.lost_to_checkpoints = g.goodput * model.checkpoint_seconds / g.interval_seconds;
  g.lost_to_failures = 1 - g.goodput - g.lost_to_checkpoints;
  return g;
}

double simulated_goodput(const FailureModel& model, double useful_seconds, uint64_t seed) {
  check_failures(model);
  double interval = model.interval_seconds > 0 ? model.interval_seconds : best_interval(model);
  double mtbf = model.mtbf_seconds / static_cast<double>(model.devices);
  base::CounterRng rng{seed, 1};
  uint64_t draws = 0;
  auto next_failure = [&] {
    double u = (static_cast<double>(rng.bits64(draws++) >> 11) + 0.5) * 0x1p-53;
    return -mtbf * std::log(u);
  };
  double wall = 0, done = 0, failure = next_failure();
  while (done < useful_seconds) {
    double attempt = interval + model.checkpoint_seconds;
    if (failure >= wall + attempt) {
      wall += attempt;
      done += interval;
      continue;
    }
    wall = failure;
    // A restart may be hit as well.
    while (true) {
      failure = wall + next_failure();
      if (failure >= wall + model.restart_seconds) break;
      wall = failure;
    }
    wall += model.restart_seconds;
  }
  return done / wall;
}

}  // namespace sinter::plan
