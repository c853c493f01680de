// The timeline of a step that ran, in the form of a simulated one.
#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "plan/simulate.h"

namespace sinter::plan {
namespace {

using spec::ActionKind;

bool is_send(ActionKind kind) { return kind == ActionKind::send_activation || kind == ActionKind::send_gradient; }
bool is_receive(ActionKind kind) {
  return kind == ActionKind::receive_activation || kind == ActionKind::receive_gradient;
}
bool carries_gradient(ActionKind kind) {
  return kind == ActionKind::send_gradient || kind == ActionKind::receive_gradient;
}

// A message: whether it is a gradient, the virtual stage that gets it, its micro-batch.
using Message = std::tuple<bool, int64_t, int32_t>;

Message message_of(const spec::PipelineShape& shape, int64_t rank, const spec::Action& a) {
  const int64_t stage = a.chunk * shape.pp + rank;
  const bool is_gradient = carries_gradient(a.kind);
  return {is_gradient, is_send(a.kind) ? stage + (is_gradient ? -1 : 1) : stage, a.micro_batch};
}

}  // namespace

PipelineTimeline timeline_of_run(const spec::PipelineShape& shape, const std::vector<std::vector<TimedAction>>& ranks) {
  PipelineTimeline timeline;
  std::map<Message, int64_t> sends;
  struct Waiting {
    int64_t event;
    Message message;
    double since;
  };
  std::vector<Waiting> waiting;  // computations that needed a message
  auto add = [&](const TimedAction& a, size_t rank, Lane stream, int64_t cause) {
    timeline.events.push_back({a.action, static_cast<int32_t>(rank), stream, a.begin, a.end, cause});
    return static_cast<int64_t>(timeline.events.size()) - 1;
  };
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    int64_t last = -1;
    double busy = 0, finished = 0;
    const TimedAction* received = nullptr;
    for (const TimedAction& a : ranks[rank]) {
      if (is_receive(a.action.kind)) {
        received = &a;
      } else if (is_send(a.action.kind)) {
        sends[message_of(shape, static_cast<int64_t>(rank), a.action)] = add(a, rank, Lane::communication, last);
      } else {
        last = add(a, rank, Lane::compute, last);
        if (received)
          waiting.push_back({last, message_of(shape, static_cast<int64_t>(rank), received->action), received->begin});
        received = nullptr;
        busy += a.end - a.begin;
        finished = a.end;
      }
    }
    timeline.busy.push_back(busy);
    timeline.finished.push_back(finished);
    timeline.seconds = std::max(timeline.seconds, finished);
  }
  for (const Waiting& w : waiting) {
    const auto sent = sends.find(w.message);
    SINTER_CHECK(sent != sends.end(), "timeline: nobody sent micro-batch {} to virtual stage {}",
                 std::get<2>(w.message), std::get<1>(w.message));
    if (timeline.events[static_cast<size_t>(sent->second)].end > w.since)
      timeline.events[static_cast<size_t>(w.event)].cause = sent->second;
  }
  return timeline;
}

double bubble_of(const PipelineTimeline& timeline) {
  double busy = 0;
  for (double seconds : timeline.busy) busy += seconds;
  const double available = timeline.seconds * static_cast<double>(timeline.busy.size());
  return available > 0 ? (available - busy) / available : 0;
}

}  // namespace sinter::plan
