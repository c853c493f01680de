#include "parallel/data.h"

#include <algorithm>
#include <cassert>

namespace sinter::parallel {

GradientReducer::GradientReducer(comm::Communicator& comm, core::Tensor gradients, size_t bucket_bytes)
    : comm_(comm),
      gradients_(std::move(gradients)),
      bucket_elements_(static_cast<int64_t>(std::max<size_t>(bucket_bytes / 4, 1))) {
  assert(gradients_.dtype() == base::DType::f32);
  for (int64_t end = gradients_.num_elements(); end > 0; end -= bucket_elements_) {
    buckets_.push_back({std::max<int64_t>(end - bucket_elements_, 0), end, 0, nullptr, {}});
  }
}

void GradientReducer::begin_step() {
  overlapped_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.end - bucket.begin;
}

void GradientReducer::mark_ready(int64_t begin, int64_t end) {
  if (comm_.size() == 1 || begin >= end) return;
  const int64_t n = gradients_.num_elements();
  for (int64_t b = (n - end) / bucket_elements_; b < num_buckets(); ++b) {
    Bucket& bucket = buckets_[static_cast<size_t>(b)];
    if (bucket.end <= begin) break;
    bucket.missing -= std::min(end, bucket.end) - std::max(begin, bucket.begin);
    assert(bucket.missing >= 0);
    if (bucket.missing > 0) continue;
    start(bucket);
    ++overlapped_;
  }
  for (Bucket& bucket : buckets_) {
    if (bucket.request) bucket.request->advance();
  }
}

void GradientReducer::start(Bucket& bucket) {
  const auto count = static_cast<size_t>(bucket.end - bucket.begin);
  core::Tensor range = gradients_.slice(bucket.begin, bucket.end - bucket.begin);
  if (gradients_.device().kind == core::DeviceKind::cpu) {
    bucket.request = comm_.start_all_reduce({range.data<float>(), count});
  } else {
    bucket.staged = core::to_host<float>(range);
    bucket.request = comm_.start_all_reduce(bucket.staged);
  }
}

void GradientReducer::finish() {
  if (comm_.size() == 1) return;
  for (Bucket& bucket : buckets_) {
    if (!bucket.request) start(bucket);
  }
  core::DeviceRuntime& device = core::runtime(gradients_.device());
  for (Bucket& bucket : buckets_) {
    bucket.request->wait();
    bucket.request.reset();
    if (bucket.staged.empty()) continue;
    core::Tensor range = gradients_.slice(bucket.begin, bucket.end - bucket.begin);
    device.copy_to_device(range.raw(), bucket.staged.data(), range.bytes(), device.stream());
    device.synchronize(device.stream());
    bucket.staged.clear();
  }
}

}  // namespace sinter::parallel
