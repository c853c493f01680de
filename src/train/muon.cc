#include "train/muon.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace sinter::train {
namespace {

using core::DType;
using core::Tensor;

// Matrices that go through the iterations at once fill at most this much of one scratch buffer: enough to fill a GPU.
constexpr int64_t kGroupBytes = int64_t{128} << 20;

// The first rows * columns elements of a scratch buffer as a matrix.
Tensor matrix_in(const Tensor& scratch, int64_t rows, int64_t columns) {
  return scratch.slice(0, rows * columns).reshape({rows, columns});
}

// Rows of a tensor of any number of axes.
Tensor rows_of(const Tensor& t, int64_t first, int64_t rows) {
  const int64_t columns = t.size(-1);
  return t.reshape({t.num_elements() / columns, columns}).slice(first, rows);
}

// The shape of a tensor before the tensor axis cut it: all of it, of the experts that are here.
base::Shape uncut_shape(const models::ParameterStore::Slot& slot) {
  base::Shape shape = slot.global_shape;
  const int axis = slot.info.expert_axis;
  if (axis >= 0) shape.set(axis, slot.info.shape[axis]);
  return shape;
}

int64_t first_expert_of(const models::ParameterStore::Slot& slot) {
  return slot.info.expert_axis >= 0 ? slot.boxes.front().begin[slot.info.expert_axis] : 0;
}

}  // namespace

bool Muon::takes(const spec::ParameterSpec& info) {
  return info.trainable &&
         (info.role == spec::ParameterRole::matrix || info.role == spec::ParameterRole::expert_matrix);
}

Muon::Muon(const spec::OptimizerRecipe& recipe, models::ParameterStore& store, const OptimizerShard& shard)
    : recipe_(recipe),
      shard_(shard),
      is_divided_(store.options().division.is_on() || shard.tensor != nullptr),
      store_(store),
      stream_(core::runtime(store.options().device).stream()),
      kernels_(kernels::kernels_for(store.options().device)) {
  core::DeviceRuntime& device = core::runtime(store.options().device);
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const models::ParameterStore::Slot& slot = store.slots()[i];
    if (!takes(slot.info)) continue;
    const models::ParameterStore::Stretch own = store.own_part(slot);
    if (own.count == 0) continue;
    Tensor momentum(store.state_memory(), is_divided_ ? base::Shape{own.count} : slot.info.shape, recipe.states);
    device.set_zero(momentum.raw(), momentum.bytes(), device.stream());
    states_.push_back({i, momentum, own.begin - slot.offset});
  }
  if (is_divided_) {
    make_divided_scratch();
  } else {
    make_groups();
    make_scratch();
  }
}

void Muon::make_groups() {
  for (size_t s = 0; s < states_.size(); ++s) {
    const spec::ParameterSpec& info = store_.slots()[states_[s].slot].info;
    const int64_t columns = info.shape[-1], stack_rows = info.shape[-2];
    // Of experts those of this rank.
    const int64_t first_expert = first_expert_of(store_.slots()[states_[s].slot]);
    const int64_t num_experts = info.expert_axis >= 0 ? info.shape[info.expert_axis] : 0;
    for (const spec::ParameterPart& part : info.parts) {
      const int64_t expert = part.expert - first_expert;
      if (part.expert >= 0 && (expert < 0 || expert >= num_experts)) continue;
      const int64_t most = std::max<int64_t>(1, kGroupBytes / (2 * part.rows * columns));
      auto fits = [&](const Group& g) {
        return g.rows == part.rows && g.columns == columns && static_cast<int64_t>(g.matrices.size()) < most;
      };
      auto found = std::find_if(groups_.begin(), groups_.end(), fits);
      if (found == groups_.end()) found = groups_.insert(groups_.end(), {part.rows, columns, {}});
      found->matrices.push_back({s, (part.expert < 0 ? 0 : expert * stack_rows) + part.row_begin});
    }
  }
}

void Muon::make_scratch() {
  int64_t largest = 1, largest_square = 1;
  for (const Group& group : groups_) {
    const auto count = static_cast<int64_t>(group.matrices.size());
    const int64_t side = std::min(group.rows, group.columns);
    largest = std::max(largest, count * group.rows * group.columns);
    largest_square = std::max(largest_square, count * side * side);
  }
  // The iterations forgive rounding of the mantissa, but not a small range.
  const DType dtype = store_.options().compute == DType::f32 ? DType::f32 : DType::bf16;
  core::Allocator& allocator = core::runtime(store_.options().device).allocator();
  direction_ = Tensor(allocator, {largest}, dtype);
  next_ = Tensor(allocator, {largest}, dtype);
  gram_ = Tensor(allocator, {largest_square}, dtype);
  square_ = Tensor(allocator, {largest_square}, dtype);
}

size_t Muon::bytes() const {
  size_t bytes = direction_.bytes() + next_.bytes() + gram_.bytes() + square_.bytes() + (whole_ ? whole_.bytes() : 0);
  if (store_.options().division.host_states) return bytes;
  for (const State& state : states_) bytes += state.momentum.bytes();
  return bytes;
}

void Muon::update(const Tensor& control, float lr, kernels::RandomKey key) {
  SINTER_CHECK(control.num_elements() == kernels::kControlSize, "[muon] control has {} numbers; expected {}",
               control.num_elements(), static_cast<int64_t>(kernels::kControlSize));
  for (const Group& group : groups_) update_group(group, control, lr, key);
  if (!is_divided_) return;
  next_owner_ = 0;
  for (const models::Segment& segment : store_.segments()) update_segment(segment, control, lr, key);
}

void Muon::make_divided_scratch() {
  int64_t largest = 1, segment = 1, side = 1, uncut = 1;
  for (const auto& slot : store_.slots()) {
    if (!takes(slot.info)) continue;
    segment = std::max(segment, store_.segment_of(slot).count());
    const int64_t columns = slot.global_shape[-1];
    for (const spec::ParameterPart& part : slot.info.parts) {
      largest = std::max(largest, part.rows * columns);
      side = std::max(side, std::min(part.rows, columns));
    }
    if (shard_.tensor) uncut = std::max(uncut, uncut_shape(slot).num_elements());
  }
  const DType dtype = store_.options().compute == DType::f32 ? DType::f32 : DType::bf16;
  core::Allocator& allocator = core::runtime(store_.options().device).allocator();
  direction_ = Tensor(allocator, {segment}, dtype);
  next_ = Tensor(allocator, {largest}, dtype);
  gram_ = Tensor(allocator, {side * side}, dtype);
  square_ = Tensor(allocator, {side * side}, dtype);
  if (shard_.tensor) whole_ = Tensor(allocator, {uncut}, dtype);
}

void Muon::update_segment(const models::Segment& segment, const Tensor& control, float lr, kernels::RandomKey key) {
  const int64_t end = segment.end;
  auto is_here = [&](const models::ParameterStore::Slot& slot) {
    return takes(slot.info) && slot.offset >= segment.begin && slot.offset < end;
  };
  const Tensor d = direction_.slice(0, std::min(segment.count(), direction_.num_elements()));
  bool has_any = false;
  for (const State& state : states_) {
    const models::ParameterStore::Slot& slot = store_.slots()[state.slot];
    if (!is_here(slot)) continue;
    const int64_t begin = slot.offset + state.first, count = state.momentum.num_elements();
    kernels_.muon_momentum(stream_, {.grad = store_.gradients_of(begin, count),
                                     .momentum = state.momentum,
                                     .direction = d.slice(begin - segment.begin, count),
                                     .control = control,
                                     .mu = static_cast<float>(recipe_.muon_momentum),
                                     .key = {key.seed, base::mix_bits(key.stream, static_cast<uint64_t>(begin))}});
  }
  for (const auto& slot : store_.slots()) has_any = has_any || is_here(slot);
  if (!has_any) return;
  const OptimizerShard& shard = segment.has_experts && shard_.experts ? *shard_.experts : shard_;
  if (segment.parts > 1) shard.group->all_gather(d.slice(segment.part * segment.piece(), segment.piece()), d);
  for (const auto& slot : store_.slots()) {
    if (!is_here(slot)) continue;
    const Tensor local = d.slice(slot.offset - segment.begin, slot.info.num_elements());
    const bool is_cut = shard_.tensor && slot.info.tp_axis >= 0;
    const Tensor whole = is_cut ? whole_.slice(0, uncut_shape(slot).num_elements()) : local;
    if (is_cut) exchange_boxes(slot, local, whole, true);
    orthogonalize_tensor(slot, whole);
    if (is_cut) exchange_boxes(slot, local, whole, false);
    const models::ParameterStore::Stretch own = store_.own_part(slot);
    if (own.count == 0) continue;
    const bool rounds = store_.options().compute != DType::f32;
    kernels_.sgd(stream_, {.master = store_.masters_of(own.begin, own.count),
                           .grad = d.slice(own.begin - segment.begin, own.count),
                           .copy = rounds ? store_.weights_of(own.begin, own.count) : Tensor(),
                           .control = control.slice(kernels::kControlOne, 2),
                           .lr = lr,
                           .weight_decay = static_cast<float>(recipe_.weight_decay)});
  }
}

// Between a rank's boxes of a tensor and all of it: gathered from all ranks of the tensor axis, or taken back.
void Muon::exchange_boxes(const models::ParameterStore::Slot& slot, const Tensor& local, const Tensor& whole,
                          bool is_gathered) const {
  if (is_gathered) kernels_.fill(stream_, {whole, 0.0f});
  const base::Shape shape = uncut_shape(slot);
  for (size_t i = 0; i < slot.boxes.size(); ++i) {
    spec::Box box = slot.boxes[i];
    if (slot.info.expert_axis >= 0)
      box.begin.set(slot.info.expert_axis, box.begin[slot.info.expert_axis] - first_expert_of(slot));
    // Heads of keys and values that several ranks hold: each adds its share.
    const float share = i > 0 ? 1.0f / static_cast<float>(slot.gradient_parts) : 1.0f;
    spec::visit_runs(box, shape, slot.info.shape, [&](int64_t global, int64_t own, int64_t count) {
      const Tensor here = local.slice(own, count), there = whole.slice(global, count);
      if (is_gathered) {
        kernels_.axpby(stream_, {.x = here, .y = there, .alpha = share});
      } else {
        kernels_.axpby(stream_, {.x = there, .y = here});
      }
    });
  }
  if (is_gathered) shard_.tensor->all_reduce(whole);
}

// values: all of a tensor, flat. Every matrix in it becomes orthogonal, times the size of its step.
void Muon::orthogonalize_tensor(const models::ParameterStore::Slot& slot, const Tensor& values) {
  const OptimizerShard& shard = shard_.of(slot.info);
  const models::Segment& segment = store_.segment_of(slot);
  const base::Shape shape = uncut_shape(slot);
  const int64_t columns = shape[-1], stack_rows = shape[-2], first_expert = first_expert_of(slot);
  const int64_t num_experts = slot.info.expert_axis >= 0 ? shape[slot.info.expert_axis] : 0;
  core::DeviceRuntime& device = core::runtime(store_.options().device);
  std::vector<comm::Handle> works;
  for (const spec::ParameterPart& part : slot.info.parts) {
    const int64_t expert = part.expert - first_expert;
    if (part.expert >= 0 && (expert < 0 || expert >= num_experts)) continue;
    const int64_t first_row = (part.expert < 0 ? 0 : expert * stack_rows) + part.row_begin;
    const Tensor rows = values.slice(first_row * columns, part.rows * columns);
    const int64_t owner = segment.parts > 1 ? next_owner_++ % segment.parts : segment.part;
    if (owner == segment.part) {
      const Tensor x = rows.reshape({part.rows, columns}), made = orthogonalize(x, 1);
      if (made.raw() != x.raw()) device.copy_within(x.raw(), made.raw(), x.bytes(), stream_);
      const float size = std::sqrt(std::max(1.0f, static_cast<float>(part.rows) / static_cast<float>(columns)));
      if (size != 1.0f) kernels_.axpby(stream_, {.x = rows, .y = rows, .alpha = size});
    }
    if (segment.parts > 1) works.push_back(shard.group->start_broadcast(rows, static_cast<int>(owner)));
  }
  for (comm::Handle& work : works) work->wait();
}

void Muon::update_group(const Group& group, const Tensor& control, float lr, kernels::RandomKey key) {
  const auto count = static_cast<int64_t>(group.matrices.size());
  const int64_t rows = group.rows;
  Tensor x = matrix_in(direction_, count * rows, group.columns);
  for (int64_t i = 0; i < count; ++i) {
    const Matrix& matrix = group.matrices[static_cast<size_t>(i)];
    const State& state = states_[matrix.state];
    const auto place = static_cast<uint64_t>(store_.slots()[state.slot].offset + matrix.first_row);
    kernels_.muon_momentum(stream_,
                           {.grad = rows_of(store_.slots()[state.slot].parameter.grad.tensor(), matrix.first_row, rows),
                            .momentum = rows_of(state.momentum, matrix.first_row, rows),
                            .direction = x.slice(i * rows, rows),
                            .control = control,
                            .mu = static_cast<float>(recipe_.muon_momentum),
                            .key = {key.seed, base::mix_bits(key.stream, place)}});
  }
  const Tensor d = orthogonalize(x, count);
  const float size = std::sqrt(std::max(1.0f, static_cast<float>(rows) / static_cast<float>(group.columns)));
  const bool rounds = store_.options().compute != DType::f32;
  for (int64_t i = 0; i < count; ++i) {
    const Matrix& matrix = group.matrices[static_cast<size_t>(i)];
    const autograd::Parameter& parameter = store_.slots()[states_[matrix.state].slot].parameter;
    // The direction is clipped by nature: its own factor is 1.
    kernels_.sgd(stream_, {.master = rows_of(parameter.master, matrix.first_row, rows),
                           .grad = d.slice(i * rows, rows),
                           .copy = rounds ? rows_of(parameter.weight.data, matrix.first_row, rows) : Tensor(),
                           .control = control.slice(kernels::kControlOne, 2),
                           .lr = lr * size,
                           .weight_decay = static_cast<float>(recipe_.weight_decay) / size});
  }
}

Tensor Muon::orthogonalize(Tensor x, int64_t batch) {
  // Coefficients of the quintic iteration that pushes singular values towards 1 fastest from near 0 (Keller Jordan
  // 2024).
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  const int64_t rows = x.size(0) / batch, columns = x.size(1);
  const bool is_wide = rows <= columns;
  const int64_t side = std::min(rows, columns);
  Tensor gram = matrix_in(gram_, batch * side, side), square = matrix_in(square_, batch * side, side);
  Tensor next = matrix_in(next_, batch * rows, columns);
  kernels_.normalize(stream_, {.x = x.reshape({batch, rows * columns})});
  for (int64_t i = 0; i < recipe_.muon_iterations; ++i) {
    // gram = x x^T (or x^T x, whichever is smaller); square = b gram + c gram^2; next = a x + square x (or x square).
    kernels_.matmul(
        stream_,
        {.a = x, .b = {.data = x}, .c = gram, .transpose_a = !is_wide, .transpose_b = is_wide, .batch = batch});
    kernels_.matmul(
        stream_, {.a = gram, .b = {.data = gram}, .c = square, .alpha = c, .addend = gram, .beta = b, .batch = batch});
    kernels_.matmul(stream_, {.a = is_wide ? square : x,
                              .b = {.data = is_wide ? x : square},
                              .c = next,
                              .addend = x,
                              .beta = a,
                              .batch = batch});
    std::swap(x, next);
  }
  return x;
}

}  // namespace sinter::train
