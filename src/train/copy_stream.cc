#include <utility>
#include <vector>

#include "core/side_stream.h"
#include "kernels/table.h"
#include "train/copies.h"

namespace sinter::train {
namespace {

using MarkPtr = std::shared_ptr<core::Mark>;

// Seconds between pairs of marks, taken once both have passed.
class Spans {
 public:
  void add(MarkPtr begin, MarkPtr end) {
    constexpr size_t kMostOpen = 1024;
    if (open_.size() >= kMostOpen) seconds();
    open_.emplace_back(std::move(begin), std::move(end));
  }
  double seconds() {
    std::erase_if(open_, [&](const auto& span) {
      if (!span.second->has_passed()) return false;
      seconds_ += span.second->seconds_since(*span.first);
      return true;
    });
    return seconds_;
  }

 private:
  std::vector<std::pair<MarkPtr, MarkPtr>> open_;
  double seconds_ = 0;
};

class CopyStream : public Copies {
 public:
  CopyStream(core::Device device, std::unique_ptr<core::SideStream> side)
      : main_(core::runtime(device).stream()), kernels_(kernels::kernels_for(device)), side_(std::move(side)) {}

  comm::Handle start(const core::Tensor& from, const core::Tensor& to, bool adds) override {
    side_->mark(main_)->hold(side_->stream());
    const MarkPtr begin = side_->mark(side_->stream());
    kernels_.axpby(side_->stream(), {.x = from, .y = to, .alpha = 1.0f, .beta = adds ? 1.0f : 0.0f});
    const MarkPtr end = side_->mark(side_->stream());
    busy_.add(begin, end);
    return std::make_unique<Copying>(*this, end);
  }
  double busy_seconds() override { return busy_.seconds(); }
  double waited_seconds() override { return waited_.seconds(); }

 private:
  class Copying : public comm::Work {
   public:
    Copying(CopyStream& stream, MarkPtr end) : stream_(stream), end_(std::move(end)) {}
    ~Copying() override {
      try {
        wait();                          // the tensors may go
      } catch (const std::exception&) {  // the device's error is told by whoever uses it next
      }
    }
    bool advance() override { return end_->has_passed(); }
    // The main stream waits, not the host.
    void wait() override {
      if (std::exchange(was_waited_for_, true)) return;
      const MarkPtr before = stream_.side_->mark(stream_.main_);
      end_->hold(stream_.main_);
      stream_.waited_.add(before, stream_.side_->mark(stream_.main_));
    }

   private:
    CopyStream& stream_;
    MarkPtr end_;
    bool was_waited_for_ = false;
  };

  core::Stream& main_;
  const kernels::KernelTable& kernels_;
  std::unique_ptr<core::SideStream> side_;
  Spans busy_, waited_;
};

}  // namespace

std::unique_ptr<Copies> make_copy_stream(core::Device device) {
  std::unique_ptr<core::SideStream> side = core::SideStream::make(device);
  return side ? std::make_unique<CopyStream>(device, std::move(side)) : nullptr;
}

}  // namespace sinter::train
