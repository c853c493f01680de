#include "parallel/data.h"

#include <algorithm>
#include <cassert>

namespace sinter::parallel {

GradientReducer::GradientReducer(comm::Communicator& comm, core::Tensor gradients, size_t bucket_bytes)
    : GradientReducer({{0, gradients.num_elements(), &comm}}, gradients, bucket_bytes) {}

GradientReducer::GradientReducer(const std::vector<Stretch>& stretches, core::Tensor gradients, size_t bucket_bytes)
    : gradients_(std::move(gradients)) {
  const auto most = static_cast<int64_t>(std::max<size_t>(bucket_bytes / base::dtype_bytes(gradients_.dtype()), 1));
  for (auto stretch = stretches.rbegin(); stretch != stretches.rend(); ++stretch) {
    if (stretch->comm->size() == 1) continue;
    for (int64_t end = stretch->end; end > stretch->begin; end -= most)
      buckets_.push_back({std::max(end - most, stretch->begin), end, 0, stretch->comm, nullptr});
  }
}

void GradientReducer::begin_step() {
  overlapped_ = 0;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.end - bucket.begin;
}

void GradientReducer::mark_ready(int64_t begin, int64_t end) {
  if (begin >= end) return;
  auto bucket = std::partition_point(buckets_.begin(), buckets_.end(), [&](const Bucket& b) { return b.begin >= end; });
  for (; bucket != buckets_.end() && bucket->end > begin; ++bucket) {
    bucket->missing -= std::min(end, bucket->end) - std::max(begin, bucket->begin);
    assert(bucket->missing >= 0);
    if (bucket->missing > 0) continue;
    start(*bucket);
    ++overlapped_;
  }
  for (Bucket& b : buckets_) {
    if (b.work) b.work->advance();
  }
}

void GradientReducer::start(Bucket& bucket) {
  bucket.work = bucket.comm->start_all_reduce(gradients_.slice(bucket.begin, bucket.end - bucket.begin));
}

void GradientReducer::finish() {
  for (Bucket& bucket : buckets_) {
    if (!bucket.work) start(bucket);
  }
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
  }
}

}  // namespace sinter::parallel
