#include "data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "data/permutation.h"

namespace sinter::data {
namespace {

constexpr int64_t kSlots = 4096;  // samples of a block, inside which every source has its exact share

// The slots of a block in an order that spreads every source evenly and takes its samples one after the other.
std::vector<int64_t> spread_slots(const std::vector<int64_t>& counts, const std::vector<int64_t>& begins) {
  std::vector<std::pair<double, int64_t>> places;
  for (size_t s = 0; s < counts.size(); ++s) {
    for (int64_t i = 0; i < counts[s]; ++i)
      places.push_back({(static_cast<double>(i) + 0.5) / static_cast<double>(counts[s]), begins[s] + i});
  }
  std::sort(places.begin(), places.end());
  std::vector<int64_t> slots;
  for (const auto& [place, slot] : places) slots.push_back(slot);
  return slots;
}

}  // namespace

SampleOrder::SampleOrder(std::vector<int64_t> sizes, std::vector<double> weights, uint64_t seed, bool shuffle)
    : sizes_(std::move(sizes)), seed_(seed), shuffle_(shuffle) {
  SINTER_CHECK(!sizes_.empty() && sizes_.size() == weights.size() && sizes_.size() <= kSlots / 4,
               "between 1 and {} data sources, found {}", kSlots / 4, sizes_.size());
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  // Slots by largest remainder, at least one each.
  std::vector<int64_t> slots(sizes_.size());
  std::vector<std::pair<double, size_t>> remainders;
  int64_t used = 0;
  for (size_t s = 0; s < slots.size(); ++s) {
    double exact = weights[s] / total * kSlots;
    slots[s] = std::max<int64_t>(1, static_cast<int64_t>(exact));
    remainders.push_back({static_cast<double>(slots[s]) - exact, s});
    used += slots[s];
  }
  std::sort(remainders.begin(), remainders.end());  // most short-changed first
  for (size_t i = 0; used < kSlots; ++i, ++used) ++slots[remainders[i % slots.size()].second];
  while (used > kSlots) {
    --*std::max_element(slots.begin(), slots.end());
    --used;
  }
  slots_begin_.push_back(0);
  for (int64_t count : slots) slots_begin_.push_back(slots_begin_.back() + count);
  if (!shuffle && sizes_.size() > 1) in_order_ = spread_slots(slots, slots_begin_);
}

double SampleOrder::share(size_t source) const {
  return static_cast<double>(slots_begin_[source + 1] - slots_begin_[source]) / static_cast<double>(kSlots);
}

SampleAddress SampleOrder::operator()(int64_t k) const {
  SampleAddress out;
  int64_t ordinal = k;
  if (sizes_.size() > 1) {
    const int64_t block = k / kSlots;
    const Permutation order(kSlots, base::mix_bits(base::mix_bits(seed_, 0x6d6978), static_cast<uint64_t>(block)));
    const auto slot = shuffle_ ? static_cast<int64_t>(order(static_cast<uint64_t>(k % kSlots)))
                               : in_order_[static_cast<size_t>(k % kSlots)];
    out.source = std::upper_bound(slots_begin_.begin(), slots_begin_.end(), slot) - slots_begin_.begin() - 1;
    const auto s = static_cast<size_t>(out.source);
    ordinal = block * (slots_begin_[s + 1] - slots_begin_[s]) + slot - slots_begin_[s];
  }
  const int64_t size = sizes_[static_cast<size_t>(out.source)];
  out.epoch = ordinal / size;
  out.index = ordinal % size;
  if (shuffle_) {
    const uint64_t key =
        base::mix_bits(base::mix_bits(seed_, static_cast<uint64_t>(out.source)), static_cast<uint64_t>(out.epoch));
    out.index = static_cast<int64_t>(Permutation(static_cast<uint64_t>(size), key)(static_cast<uint64_t>(out.index)));
  }
  return out;
}

BatchSchedule::BatchSchedule(int64_t first, int64_t last, int64_t ramp_steps, int64_t granularity) {
  auto rounded = [&](double sequences) {
    return std::max<int64_t>(1, std::llround(sequences / static_cast<double>(granularity))) * granularity;
  };
  last_ = rounded(static_cast<double>(last));
  before_.push_back(0);
  for (int64_t step = 0; step < ramp_steps; ++step) {
    double share = static_cast<double>(step) / static_cast<double>(ramp_steps);
    before_.push_back(before_.back() + rounded(static_cast<double>(first) + share * static_cast<double>(last - first)));
  }
}

int64_t BatchSchedule::sequences_at(int64_t step) const { return sequences_before(step + 1) - sequences_before(step); }

int64_t BatchSchedule::sequences_before(int64_t step) const { return planned_before(step) + shift_; }

int64_t BatchSchedule::planned_before(int64_t step) const {
  const auto ramp = static_cast<int64_t>(before_.size()) - 1;
  return step <= ramp ? before_[static_cast<size_t>(step)] : before_.back() + (step - ramp) * last_;
}

int64_t BatchSchedule::steps_for(int64_t sequences) const {
  const int64_t planned = sequences - shift_;
  for (size_t step = 0; step < before_.size(); ++step) {
    if (before_[step] >= planned) return static_cast<int64_t>(step);
  }
  return static_cast<int64_t>(before_.size()) - 1 + (planned - before_.back() + last_ - 1) / last_;
}

void BatchSchedule::continue_at(int64_t step, int64_t sequences) { shift_ = sequences - planned_before(step); }

}  // namespace sinter::data
