#include "core/graph.h"

#include <utility>

namespace sinter::core {
namespace {

class CalledAgain : public Graph {
 public:
  explicit CalledAgain(std::function<void()> work) : work_(std::move(work)) {}
  void replay() override { work_(); }

 private:
  std::function<void()> work_;
};

}  // namespace

std::unique_ptr<Graph> capture(Stream& stream, std::function<void()> work) {
  if (stream.device.kind == DeviceKind::cuda) return cuda_capture(stream, work);
  return std::make_unique<CalledAgain>(std::move(work));
}

void RepeatedWork::run(Stream& stream, const std::function<void()>& work) {
  if (!has_run_) {
    work();
    has_run_ = true;
    return;
  }
  if (!graph_) graph_ = capture(stream, work);
  graph_->replay();
  ++num_replays_;
}

}  // namespace sinter::core
