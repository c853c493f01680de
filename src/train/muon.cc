#include "train/muon.h"

#include <algorithm>
#include <cmath>

namespace sinter::train {
namespace {

using core::DType;
using core::Tensor;

// The first rows * columns elements of a scratch buffer as a matrix.
Tensor matrix_in(const Tensor& scratch, int64_t rows, int64_t columns) {
  return scratch.slice(0, rows * columns).reshape({rows, columns});
}

}  // namespace

bool Muon::takes(const spec::Parameter& info) {
  return info.role == spec::ParameterRole::matrix || info.role == spec::ParameterRole::expert_matrix;
}

Muon::Muon(const spec::OptimizerRecipe& recipe, models::ParameterStore& store)
    : recipe_(recipe),
      store_(store),
      stream_(core::runtime(store.options().device).stream()),
      kernels_(kernels::kernels_for(store.options().device)) {
  core::DeviceRuntime& device = core::runtime(store.options().device);
  int64_t largest = 1, largest_side = 1;
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const spec::Parameter& info = store.slots()[i].info;
    if (!takes(info)) continue;
    Tensor momentum(device.allocator(), info.shape, DType::f32);
    device.set_zero(momentum.raw(), momentum.bytes(), device.stream());
    states_.push_back({i, momentum});
    for (const spec::ParameterPart& part : info.parts) {
      largest = std::max(largest, part.rows * info.shape[-1]);
      largest_side = std::max(largest_side, std::min(part.rows, info.shape[-1]));
    }
  }
  // The iterations forgive rounding, so they run in the compute format.
  const DType dtype = store.options().compute;
  auto scratch = [&](int64_t count) { return Tensor(device.allocator(), {count}, dtype); };
  direction_ = scratch(largest);
  next_ = scratch(largest);
  gram_ = scratch(largest_side * largest_side);
  square_ = scratch(largest_side * largest_side);
  norm_ = Tensor(device.allocator(), {1}, DType::f32);
}

size_t Muon::bytes() const {
  size_t bytes = direction_.bytes() + next_.bytes() + gram_.bytes() + square_.bytes() + norm_.bytes();
  for (const State& state : states_) bytes += state.momentum.bytes();
  return bytes;
}

void Muon::update(const Tensor& control, float lr) {
  const float grad_scale = core::to_host<float>(control)[0];
  for (const State& state : states_) {
    models::ParameterStore::Slot& slot = store_.slots()[state.slot];
    const int64_t columns = slot.info.shape[-1], stack_rows = slot.info.shape[-2];
    for (const spec::ParameterPart& part : slot.info.parts) {
      const int64_t first = (part.expert < 0 ? 0 : part.expert * stack_rows) + part.row_begin;
      auto rows_of = [&](const Tensor& t) {
        return t.reshape({t.num_elements() / columns, columns}).slice(first, part.rows);
      };
      update_matrix(rows_of(slot.parameter.master), rows_of(slot.parameter.grad), rows_of(state.momentum), grad_scale,
                    lr);
    }
    if (store_.options().compute != DType::f32) {
      kernels_.axpby(stream_, {.x = slot.parameter.master, .y = slot.parameter.weight.data});
    }
  }
}

void Muon::update_matrix(const Tensor& master, const Tensor& grad, const Tensor& momentum, float grad_scale, float lr) {
  const auto mu = static_cast<float>(recipe_.muon_momentum);
  const int64_t rows = master.size(0), columns = master.size(1);
  Tensor d = matrix_in(direction_, rows, columns);
  kernels_.axpby(stream_, {.x = grad, .y = momentum, .alpha = (1 - mu) * grad_scale, .beta = mu});
  kernels_.axpby(stream_, {.x = momentum, .y = d, .alpha = mu, .beta = 0});
  kernels_.axpby(stream_, {.x = grad, .y = d, .alpha = (1 - mu) * grad_scale, .beta = 1});
  orthogonalize(d);
  const float size = std::sqrt(std::max(1.0f, static_cast<float>(rows) / static_cast<float>(columns)));
  const float keep = 1 - lr * static_cast<float>(recipe_.weight_decay);
  kernels_.axpby(stream_, {.x = d, .y = master, .alpha = -lr * size, .beta = keep});
}

void Muon::orthogonalize(const Tensor& x) {
  // Coefficients of the quintic iteration that pushes singular values towards 1 fastest from near 0 (Keller Jordan
  // 2024).
  constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  const int64_t rows = x.size(0), columns = x.size(1);
  const bool is_wide = rows <= columns;
  const int64_t side = std::min(rows, columns);
  Tensor gram = matrix_in(gram_, side, side), square = matrix_in(square_, side, side);
  Tensor next = matrix_in(next_, rows, columns);
  kernels_.fill(stream_, norm_, 0.0f);
  kernels_.sum_squares(stream_, {.x = x.reshape({rows * columns}), .total = norm_});
  const float norm = std::sqrt(core::to_host<float>(norm_)[0]);
  kernels_.axpby(stream_, {.x = x, .y = next, .alpha = 1 / (norm + 1e-7f), .beta = 0});
  kernels_.axpby(stream_, {.x = next, .y = x});
  for (int64_t i = 0; i < recipe_.muon_iterations; ++i) {
    // gram = x x^T (or x^T x, whichever is smaller); next = a x + (b gram + c gram^2) x.
    kernels_.matmul(stream_, {.a = x, .b = {.data = x}, .c = gram, .transpose_a = !is_wide, .transpose_b = is_wide});
    kernels_.matmul(stream_, {.a = gram, .b = {.data = gram}, .c = square, .alpha = c});
    kernels_.axpby(stream_, {.x = gram, .y = square, .alpha = b, .beta = 1});
    kernels_.axpby(stream_, {.x = x, .y = next, .alpha = a, .beta = 0});
    if (is_wide) {
      kernels_.matmul(stream_, {.a = square, .b = {.data = x}, .c = next, .accumulate = true});
    } else {
      kernels_.matmul(stream_, {.a = x, .b = {.data = square}, .c = next, .accumulate = true});
    }
    kernels_.axpby(stream_, {.x = next, .y = x});
  }
}

}  // namespace sinter::train
