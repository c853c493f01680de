#include "parallel/data.h"

#include <algorithm>
#include <cassert>

namespace sinter::parallel {

GradientReducer::GradientReducer(comm::Communicator& comm, core::Tensor gradients, size_t bucket_bytes)
    : comm_(comm),
      gradients_(std::move(gradients)),
      bucket_elements_(static_cast<int64_t>(std::max<size_t>(bucket_bytes / base::dtype_bytes(gradients_.dtype()), 1))) {
  for (int64_t end = gradients_.num_elements(); end > 0; end -= bucket_elements_) {
    buckets_.push_back({std::max<int64_t>(end - bucket_elements_, 0), end, 0, nullptr});
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
    if (bucket.work) bucket.work->advance();
  }
}

void GradientReducer::start(Bucket& bucket) {
  bucket.work = comm_.start_all_reduce(gradients_.slice(bucket.begin, bucket.end - bucket.begin));
}

void GradientReducer::finish() {
  if (comm_.size() == 1) return;
  for (Bucket& bucket : buckets_) {
    if (!bucket.work) start(bucket);
  }
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
  }
}

}  // namespace sinter::parallel
