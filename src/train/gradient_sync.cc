#include "train/gradient_sync.h"

#include <algorithm>
#include <chrono>

#include "ops/norm.h"

namespace sinter::train {
namespace {

using core::Tensor;
using models::Segment;

// Sums of pieces that wait to be added at once: those of two blocks with experts.
constexpr int64_t kBuffers = 4;

int64_t largest_piece(const models::ParameterStore& store) {
  int64_t largest = 0;
  for (const Segment& s : store.segments()) {
    if (s.is_divided) largest = std::max(largest, s.piece());
  }
  return largest;
}

}  // namespace

size_t GradientSync::buffer_bytes(const models::ParameterStore& store, int64_t max_passes) {
  if (!store.divides_gradients() || max_passes <= 1) return 0;
  return static_cast<size_t>(kBuffers * largest_piece(store)) * sizeof(float);
}

GradientSync::GradientSync(models::ParameterStore& store, const parallel::Mesh& mesh, const parallel::Axes* axes,
                           int64_t max_passes, Copies* copies)
    : store_(store), mesh_(mesh), axes_(axes), kernels_(kernels::kernels_for(store.options().device)), copies_(copies) {
  list_tensors();
  list_owned();
  if (!store.divides_gradients()) return;
  for (size_t i = 0; i < store.segments().size(); ++i) {
    if (store.segments()[i].is_divided) units_[store.segments()[i].unit].segments.push_back(i);
  }
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const Segment& segment = store.segment_of(store.slots()[i]);
    if (segment.is_divided) units_[segment.unit].slots.push_back(i);
  }
  if (max_passes <= 1) return;
  core::Allocator& allocator = core::runtime(store.options().device).allocator();
  for (int64_t i = 0; i < kBuffers; ++i)
    buffers_.emplace_back(allocator, core::Shape{largest_piece(store)}, core::DType::f32);
  is_taken_.resize(buffers_.size());
}

// Pieces of divided gradients under way stand in their slots, so there are no more of them than fit there.
size_t GradientSync::communicator_bytes() const {
  size_t bytes = 0;
  for (const auto& reducer : reducers_) bytes += reducer.buffer_bytes();
  int64_t slots = 0;
  for (const Segment& s : store_.segments()) {
    if (s.is_divided && s.parts > 1) slots = std::max(slots, s.slot_at + s.count());
  }
  return bytes + (store_.divides_gradients() ? static_cast<size_t>(slots) * sizeof(float) : 0);
}

// Whole gradients, in the order of the buffers that hold them; gaps belong to the tensor before them.
void GradientSync::list_tensors() {
  std::vector<Tensor> buffers = store_.gradients();
  if (store_.divides_gradients()) buffers.resize(1);
  for (size_t b = 0; b < buffers.size(); ++b) {
    const size_t first = tensors_.size();
    for (const auto& slot : store_.slots()) {
      if (!store_.is_trained(slot)) continue;
      const Segment& segment = store_.segment_of(slot);
      const bool has_slot = segment.is_divided && store_.divides_gradients();
      if (has_slot || slot.parameter.grad.tensor().dtype() != buffers[b].dtype()) continue;
      const int64_t begin =
          store_.divides_gradients() ? segment.gradient_at + slot.offset - segment.begin : slot.grad_offset;
      const bool is_expert = slot.info.expert_axis >= 0 && mesh_.layout().ep > 1;
      tensors_.push_back({b, slot.info.layer, begin, 0, is_expert ? &mesh_.expert_gradient() : &mesh_.gradient()});
    }
    std::sort(tensors_.begin() + static_cast<int64_t>(first), tensors_.end(),
              [](const Stretch& x, const Stretch& y) { return x.begin < y.begin; });
    std::vector<parallel::GradientReducer::Stretch> stretches;
    for (size_t i = first; i < tensors_.size(); ++i) {
      tensors_[i].end = i + 1 < tensors_.size() ? tensors_[i + 1].begin : buffers[b].num_elements();
      if (!stretches.empty() && stretches.back().comm == tensors_[i].comm) {
        stretches.back().end = tensors_[i].end;
      } else {
        stretches.push_back({tensors_[i].begin, tensors_[i].end, tensors_[i].comm});
      }
    }
    reducers_.emplace_back(stretches, buffers[b], static_cast<size_t>(mesh_.layout().bucket_mib * 1048576));
  }
}

// What this rank counts in the norm: of copies one does.
void GradientSync::list_owned() {
  if ((!axes_ || axes_->is_whole()) && !store_.divides_gradients()) return;
  for (const auto& slot : store_.slots()) {
    if (!store_.is_trained(slot)) continue;
    const Segment& segment = store_.segment_of(slot);
    const bool is_piece = segment.is_divided && store_.divides_gradients();
    const bool is_expert = slot.info.expert_axis >= 0 && mesh_.layout().ep > 1;
    const comm::Communicator& holders = is_expert ? mesh_.expert_gradient() : mesh_.gradient();
    const bool counts = is_piece ? is_expert || mesh_.copies().rank() == 0 : holders.rank() == 0;
    if (!counts) continue;
    const models::ParameterStore::Stretch here =
        is_piece ? store_.own_part(slot) : models::ParameterStore::Stretch{slot.offset, slot.info.num_elements()};
    for (const spec::Box& box : slot.boxes) {
      if (!box.is_owned) continue;
      spec::visit_runs(box, slot.global_shape, slot.info.shape, [&](int64_t, int64_t local, int64_t count) {
        const int64_t begin = std::max(slot.offset + local, here.begin),
                      end = std::min(slot.offset + local + count, here.begin + here.count);
        if (begin >= end) return;
        const bool is_next = !owned_.empty() && owned_.back().first + owned_.back().second == begin;
        if (is_next && &store_.segment_of(owned_.back().first) == &segment) {
          owned_.back().second += end - begin;
        } else {
          owned_.emplace_back(begin, end - begin);
        }
      });
    }
  }
}

ops::Context GradientSync::context() const {
  core::DeviceRuntime& device = core::runtime(store_.options().device);
  return {kernels_, device.stream(), device.allocator()};
}

int64_t GradientSync::num_buckets() const {
  int64_t count = pieces_;
  for (const auto& reducer : reducers_) count += reducer.num_buckets();
  return count;
}

int64_t GradientSync::num_overlapped() const {
  int64_t count = pieces_overlapped_;
  for (const auto& reducer : reducers_) count += reducer.num_overlapped();
  return count;
}

void GradientSync::begin_step(int64_t passes) {
  for (auto& reducer : reducers_) reducer.begin_step();
  for (const Stretch& tensor : tensors_) missing_[tensor.layer] = passes;
  for (auto& [unit, state] : units_) state.is_open = false, state.reduced = 0;
  pieces_ = pieces_overlapped_ = 0;
  first_squares_ = {};
}

comm::Communicator& GradientSync::parts_of(const Segment& segment) const {
  return segment.has_experts && mesh_.layout().ep > 1 ? mesh_.expert_gradient() : mesh_.shard();
}

void GradientSync::begin_gradients(int64_t layer) {
  if (!store_.divides_gradients()) return;
  const models::Division& division = store_.options().division;
  open(division.unit_of(layer));
  // A tied head adds to the table.
  if (division.keeps_ends && division.unit_of(layer) == division.head_layer) open(-1);
}

void GradientSync::open(int64_t number) {
  const auto found = units_.find(number);
  if (found == units_.end() || found->second.is_open) return;
  found->second.is_open = true;
  auto overlaps = [&](const Segment& a) {
    return std::any_of(found->second.segments.begin(), found->second.segments.end(), [&](size_t i) {
      const Segment& b = store_.segments()[i];
      return a.slot_at < b.slot_at + b.count() && b.slot_at < a.slot_at + a.count();
    });
  };
  for (size_t i = 0; i < under_way_.size();) {
    if (overlaps(store_.segments()[under_way_[i].segment])) {
      complete(i);
    } else {
      ++i;
    }
  }
}

// One backward pass of a layer is done.
void GradientSync::after_backward(int64_t layer) {
  // A table that both ends of a pipeline hold is complete when both are done.
  const bool waits = layer == -1 && mesh_.layout().pp > 1;
  if (!waits && store_.options().division.unit_of(layer) == layer) reduce(layer);
  auto found = missing_.find(layer);
  if (found == missing_.end() || --found->second > 0 || waits) return;
  mark(layer);
}

void GradientSync::begin_first_pass(const Tensor& squares) {
  if (!store_.divides_gradients()) return;
  kernels_.fill(core::runtime(store_.options().device).stream(), {squares, 0.0f});
  first_squares_ = squares;
}

void GradientSync::finish_first_pass(const Tensor& squares) {
  core::Stream& stream = core::runtime(store_.options().device).stream();
  if (!store_.divides_gradients()) return store_.sum_gradient_squares(kernels_, stream, squares);
  for (auto& slot : store_.slots()) {
    if (store_.is_trained(slot) && !store_.segment_of(slot).is_divided) ops::begin_gradient(context(), slot.parameter);
  }
  kernels_.sum_squares(stream, {.x = store_.grad(), .total = squares});
}

// What is needed before a gradient is summed over ranks.
void GradientSync::complete_sums(models::ParameterStore::Slot& slot) {
  models::Parameter& parameter = slot.parameter;
  if (has_work()) ops::begin_gradient(context(), parameter);  // where this rank added nothing
  if (axes_ && axes_->tensor()) axes_->tensor()->sum_gradient(context(), slot.info, parameter);
}

// All whole gradients of a layer are complete on this rank.
void GradientSync::mark(int64_t layer) {
  missing_.erase(layer);
  for (auto& slot : store_.slots()) {
    if (slot.info.layer != layer || !store_.is_trained(slot)) continue;
    if (!(store_.divides_gradients() && store_.segment_of(slot).is_divided)) complete_sums(slot);
  }
  for (const Stretch& tensor : tensors_) {
    if (tensor.layer == layer) reducers_[tensor.reducer].mark_ready(tensor.begin, tensor.end);
  }
}

// The divided gradients of a unit, as they are now, to their pieces.
void GradientSync::reduce(int64_t number) {
  const auto found = units_.find(number);
  if (found == units_.end()) return;
  open(number);
  Unit& unit = found->second;
  for (size_t i : unit.slots) complete_sums(store_.slots()[i]);
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i : unit.segments) {
    const Segment& segment = store_.segments()[i];
    const Tensor all = store_.gradient_slot(segment);
    if (first_squares_ && unit.reduced == 0)
      kernels_.sum_squares(core::runtime(store_.options().device).stream(), {.x = all, .total = first_squares_});
    ++pieces_;
    ++pieces_overlapped_;
    if (copies_ && segment.parts == 1) {
      const Tensor there = store_.gradients_of(segment.own_begin(), segment.piece());
      under_way_.push_back({i, copies_->start(all, there, unit.reduced > 0), -1});
      continue;
    }
    const int64_t buffer = unit.reduced == 0 ? -1 : take_buffer();
    const Tensor sum = buffer < 0 ? store_.gradients_of(segment.own_begin(), segment.piece())
                                  : buffers_[static_cast<size_t>(buffer)].slice(0, segment.piece());
    under_way_.push_back({i, parts_of(segment).start_reduce_scatter(all, sum), buffer});
  }
  if (store_.options().division.host_gradients && !copies_)
    copy_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (size_t i : unit.slots) store_.slots()[i].parameter.grad.discard();
  unit.is_open = false;
  ++unit.reduced;
  for (UnderWay& work : under_way_) work.work->advance();
}

int64_t GradientSync::take_buffer() {
  for (;;) {
    for (size_t i = 0; i < is_taken_.size(); ++i) {
      if (is_taken_[i]) continue;
      is_taken_[i] = true;
      return static_cast<int64_t>(i);
    }
    complete(0);
  }
}

void GradientSync::complete(size_t index) {
  UnderWay done = std::move(under_way_[index]);
  under_way_.erase(under_way_.begin() + static_cast<int64_t>(index));
  done.work->wait();
  if (done.buffer < 0) return;
  const Segment& segment = store_.segments()[done.segment];
  kernels_.axpby(core::runtime(store_.options().device).stream(),
                 {.x = buffers_[static_cast<size_t>(done.buffer)].slice(0, segment.piece()),
                  .y = store_.gradients_of(segment.own_begin(), segment.piece()),
                  .beta = 1});
  is_taken_[static_cast<size_t>(done.buffer)] = false;
}

void GradientSync::finish(const std::function<void()>& sum_tied) {
  if (sum_tied) sum_tied();
  const int64_t behind = pieces_overlapped_;
  for (auto& [number, unit] : units_) {
    if (unit.is_open || unit.reduced == 0) reduce(number);
  }
  pieces_overlapped_ = behind;
  while (!missing_.empty()) mark(missing_.begin()->first);
  while (!under_way_.empty()) complete(0);
  if (store_.divides_gradients() && mesh_.copies().size() > 1) {  // copies of the pieces meet once a step
    for (const Segment& s : store_.segments()) {
      if (s.is_divided && !(s.has_experts && mesh_.layout().ep > 1))
        mesh_.copies().all_reduce(store_.gradients_of(s.own_begin(), s.piece()));
    }
  }
  for (auto& reducer : reducers_) reducer.finish();
  if (has_work()) store_.forget_squares();
}

void GradientSync::sum_squares(const Tensor& total) const {
  core::DeviceRuntime& device = core::runtime(store_.options().device);
  if ((!axes_ || axes_->is_whole()) && !store_.divides_gradients())
    return store_.sum_gradient_squares(kernels_, device.stream(), total);
  kernels_.fill(device.stream(), {total, 0.0f});
  for (const auto& [begin, count] : owned_)
    kernels_.sum_squares(device.stream(), {.x = store_.gradients_of(begin, count), .total = total});
  const double sum = mesh_.all().sum(static_cast<double>(core::to_host<float>(total)[0]));
  const auto value = static_cast<float>(sum);
  device.copy_to_device(total.raw(), &value, sizeof value, device.stream());
  device.synchronize(device.stream());
}

}  // namespace sinter::train
