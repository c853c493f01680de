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

// Each tensor to one of `shards`: the largest first, to the one with least so far.
std::map<size_t, int64_t> share_matrices(const models::ParameterStore& store, const OptimizerShard& shard) {
  std::vector<std::pair<int64_t, size_t>> by_size;
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const spec::Parameter& info = store.slots()[i].info;
    if (Muon::takes(info)) by_size.emplace_back(-info.num_elements(), i);
  }
  std::sort(by_size.begin(), by_size.end());
  std::map<const OptimizerShard*, std::vector<int64_t>> all_loads;
  std::map<size_t, int64_t> owners;
  for (const auto& [size, slot] : by_size) {
    const OptimizerShard& own = shard.of(store.slots()[slot].info);
    std::vector<int64_t>& loads = all_loads.try_emplace(&own, static_cast<size_t>(own.count)).first->second;
    const auto least = std::min_element(loads.begin(), loads.end());
    *least -= size;
    owners[slot] = least - loads.begin();
  }
  return owners;
}

}  // namespace

bool Muon::takes(const spec::Parameter& info) {
  return info.trainable &&
         (info.role == spec::ParameterRole::matrix || info.role == spec::ParameterRole::expert_matrix);
}

Muon::Muon(const spec::OptimizerRecipe& recipe, models::ParameterStore& store, const OptimizerShard& shard)
    : recipe_(recipe),
      store_(store),
      stream_(core::runtime(store.options().device).stream()),
      kernels_(kernels::kernels_for(store.options().device)) {
  core::DeviceRuntime& device = core::runtime(store.options().device);
  owners_ = share_matrices(store, shard);
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const spec::Parameter& info = store.slots()[i].info;
    if (!takes(info)) continue;
    if (owners_.at(i) != shard.of(info).index) continue;
    Tensor momentum(device.allocator(), info.shape, recipe.states);
    device.set_zero(momentum.raw(), momentum.bytes(), device.stream());
    states_.push_back({i, momentum});
  }
  make_groups();
  make_scratch();
}

void Muon::make_groups() {
  for (size_t s = 0; s < states_.size(); ++s) {
    const spec::Parameter& info = store_.slots()[states_[s].slot].info;
    const int64_t columns = info.shape[-1], stack_rows = info.shape[-2];
    // Of experts those of this rank.
    const models::ParameterStore::Slot& slot = store_.slots()[states_[s].slot];
    const int64_t first_expert = info.expert_axis >= 0 ? slot.boxes.front().begin[info.expert_axis] : 0;
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
  size_t bytes = direction_.bytes() + next_.bytes() + gram_.bytes() + square_.bytes();
  for (const State& state : states_) bytes += state.momentum.bytes();
  return bytes;
}

void Muon::update(const Tensor& control, float lr, kernels::RandomKey key) {
  SINTER_CHECK(control.num_elements() == kernels::kControlSize, "[muon] control has {} numbers; expected {}",
               control.num_elements(), static_cast<int64_t>(kernels::kControlSize));
  for (const Group& group : groups_) update_group(group, control, lr, key);
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
