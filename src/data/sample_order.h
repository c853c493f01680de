// Which sample stands at place k of a run: weighted sources, each shuffled anew every epoch. A pure function of k.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sinter::data {

struct SampleAddress {
  int64_t source = 0;
  int64_t index = 0;  // of the sample in its source
  int64_t epoch = 0;
};

class SampleOrder {
 public:
  // sizes: samples in each source (all > 0); weights: their shares of the run (> 0).
  SampleOrder(std::vector<int64_t> sizes, std::vector<double> weights, uint64_t seed, bool shuffle);
  SampleAddress operator()(int64_t k) const;
  // The part of the run that comes from a source: its weight, in whole samples of every 4096 and at least one.
  double share(size_t source) const;

 private:
  std::vector<int64_t> sizes_;
  std::vector<int64_t> slots_begin_;  // per source: its first slot among the slots of a block; one more at the end
  std::vector<int64_t> in_order_;     // without shuffling and with several sources: the slot at each place of a block
  uint64_t seed_;
  bool shuffle_;
};

// Sequences in each optimizer step: constant, or growing in equal parts over the first steps.
class BatchSchedule {
 public:
  // All counts in sequences; every step's count is a multiple of `granularity` (micro-batch times ranks).
  BatchSchedule(int64_t first, int64_t last, int64_t ramp_steps, int64_t granularity);
  int64_t sequences_at(int64_t step) const;      // step counts from 0
  int64_t sequences_before(int64_t step) const;  // of all steps before it
  // The fewest steps that see at least `sequences`.
  int64_t steps_for(int64_t sequences) const;
  // From `step` on count from `sequences`, however many this schedule would have seen by then: a run that had other
  // batches so far goes on where it stood.
  void continue_at(int64_t step, int64_t sequences);

 private:
  int64_t planned_before(int64_t step) const;
  int64_t shift_ = 0;            // sequences seen more than planned
  std::vector<int64_t> before_;  // of the ramp's steps, one more at the end
  int64_t last_;
};

}  // namespace sinter::data
