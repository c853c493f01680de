#include "train/weight_stream.h"

#include <chrono>

namespace sinter::train {

using core::Tensor;
using models::Segment;

WeightStream::WeightStream(models::ParameterStore& store, const parallel::Mesh& mesh, Copies* copies)
    : store_(store), mesh_(mesh), kernels_(kernels::kernels_for(store.options().device)), copies_(copies) {
  if (!store.divides_weights()) return;
  for (size_t i = 0; i < store.segments().size(); ++i) {
    if (store.segments()[i].is_divided) units_[store.segments()[i].unit].segments.push_back(i);
  }
}

void WeightStream::forget() {
  for (auto& [number, unit] : units_) {
    for (comm::Handle& work : unit.works) work->wait();
    unit.works.clear();
    unit.is_here = false;
  }
}

void WeightStream::prepare(int64_t layer, int64_t direction) {
  if (units_.empty()) return;
  const models::Division& division = store_.options().division;
  const int64_t number = division.unit_of(layer);
  fetch(number);
  if (division.keeps_ends && number == division.head_layer) fetch(-1);  // a tied head
  wait_for(number);
  if (division.keeps_ends && number == division.head_layer) wait_for(-1);
  const int64_t next = number + direction;  // of a chunk of layers: where it ends there is none here
  const auto found = units_.find(next);
  if (found == units_.end() || found->second.is_here) return;
  fetch(next);
  ++num_ahead_;
}

// Begins to bring a unit together; what stood in its place is gone.
void WeightStream::fetch(int64_t number) {
  const auto found = units_.find(number);
  if (found == units_.end() || found->second.is_here) return;
  auto overlap = [&](const Unit& a, const Unit& b) {
    for (size_t i : a.segments) {
      for (size_t j : b.segments) {
        const Segment &x = store_.segments()[i], &y = store_.segments()[j];
        if (x.slot_at < y.slot_at + y.count() && y.slot_at < x.slot_at + x.count()) return true;
      }
    }
    return false;
  };
  for (auto& [other, unit] : units_) {
    if (other == number || !unit.is_here || !overlap(unit, found->second)) continue;
    wait_for(other);
    unit.is_here = false;
  }
  core::Stream& stream = core::runtime(store_.options().device).stream();
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i : found->second.segments) {
    const Segment& segment = store_.segments()[i];
    const Tensor all = store_.weight_slot(segment), own = all.slice(segment.part * segment.piece(), segment.piece());
    const Tensor masters = store_.masters_of(segment.own_begin(), segment.piece());
    if (copies_ && segment.parts == 1) {
      found->second.works.push_back(copies_->start(masters, own));
      continue;
    }
    kernels_.axpby(stream, {.x = masters, .y = own});
    if (segment.parts == 1) continue;
    comm::Communicator& group = segment.has_experts && mesh_.layout().ep > 1 ? mesh_.expert_gradient() : mesh_.shard();
    found->second.works.push_back(group.start_all_gather(own, all));
  }
  if (store_.options().division.host_weights && !copies_)
    copy_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  found->second.is_here = true;
  ++num_gathers_;
}

void WeightStream::wait_for(int64_t number) {
  const auto found = units_.find(number);
  if (found == units_.end()) return;
  for (comm::Handle& work : found->second.works) work->wait();
  found->second.works.clear();
}

}  // namespace sinter::train
