#include "parallel/data.h"

#include <algorithm>
#include <cassert>
#include <span>

#include "kernels/args/fp8.h"

namespace sinter::parallel {

GradientReducer::GradientReducer(comm::Communicator& comm, core::Tensor gradients, size_t bucket_bytes)
    : GradientReducer({{0, gradients.num_elements(), &comm}}, gradients, bucket_bytes) {}

GradientReducer::GradientReducer(const std::vector<Stretch>& stretches, core::Tensor gradients, size_t bucket_bytes)
    : gradients_(std::move(gradients)) {
  const auto most = static_cast<int64_t>(std::max<size_t>(bucket_bytes / base::dtype_bytes(gradients_.dtype()), 1));
  for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
    if (stretch->comm->is_trivial()) continue;
    for (int64_t end = stretch->end; end > stretch->begin; end -= most)
      buckets_.push_back({std::max(end - most, stretch->begin), end, 0, stretch->comm, nullptr});
  }
}

void GradientReducer::begin_step() {
  overlapped_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.end - bucket.begin, bucket.is_started = false;
}

void GradientReducer::mark_ready(int64_t begin, int64_t end) {
  if (begin >= end) return;
  auto bucket = std::partition_point(buckets_.begin(), buckets_.end(), [&](const Bucket& b) { return b.begin >= end; });
  for (; bucket != buckets_.end() && bucket->end > begin; ++bucket) {
    bucket->missing -= std::min(end, bucket->end) - std::max(begin, bucket->begin);
    assert(bucket->missing >= 0);
    if (bucket->missing > 0) continue;
    start(static_cast<size_t>(bucket - buckets_.begin()));
    ++overlapped_;
  }
  for (size_t i : under_way_) buckets_[i].work->advance();
}

void GradientReducer::start(size_t index) {
  if (static_cast<int64_t>(under_way_.size()) == kMostUnderWay) {
    Bucket& oldest = buckets_[under_way_.front()];
    under_way_.erase(under_way_.begin());
    oldest.work->wait();
    oldest.work.reset();
  }
  Bucket& bucket = buckets_[index];
  bucket.work = bucket.comm->start_all_reduce(gradients_.slice(bucket.begin, bucket.end - bucket.begin));
  bucket.is_started = true;
  under_way_.push_back(index);
}

void GradientReducer::finish() {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (!buckets_[i].is_started) start(i);
  }
  for (size_t i : under_way_) {
    buckets_[i].work->wait();
    buckets_[i].work.reset();
  }
  under_way_.clear();
}

size_t GradientReducer::buffer_bytes() const {
  int64_t largest = 0;
  for (const Bucket& bucket : buckets_) largest = std::max(largest, bucket.end - bucket.begin);
  return static_cast<size_t>(std::min(kMostUnderWay, num_buckets()) * largest) * base::dtype_bytes(gradients_.dtype());
}

void share_fp8_ranges(comm::Communicator& group, const core::Tensor& scalings) {
  using kernels::Fp8Scaling;
  if (group.size() == 1) return;
  std::vector<float> rows = core::to_host<float>(scalings), seen;
  auto visit = [&rows](auto&& use) {
    for (size_t row = 0; row < rows.size(); row += Fp8Scaling::kSize) {
      use(rows[row + Fp8Scaling::kLargest]);
      for (int64_t i = 0; i < Fp8Scaling::kHistorySteps; ++i)
        use(rows[row + static_cast<size_t>(Fp8Scaling::kHistory + i)]);
    }
  };
  visit([&](float value) { seen.push_back(value); });
  group.all_reduce(std::span<float>(seen), comm::ReduceOp::max);
  size_t next = 0;
  visit([&](float& value) { value = seen[next++]; });
  core::DeviceRuntime& device = core::runtime(scalings.device());
  device.copy_to_device(scalings.raw(), rows.data(), scalings.bytes(), device.stream());
  device.synchronize(device.stream());
}

}  // namespace sinter::parallel
