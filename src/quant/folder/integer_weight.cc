#include "quant/folder/integer_weight.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/dtype.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/table.h"
#include "quant/folder/refine.h"

namespace sinter::quant {
namespace {

constexpr int64_t kBlock = 128;  // columns after which errors are carried on to those behind, in one product

struct Grid {
  float scale = 1;
  int zero = 8;
};

int nearest(float x, const Grid& grid, int largest) {
  return std::clamp(static_cast<int>(std::nearbyint(x / grid.scale)) + grid.zero, 0, largest);
}

// The grid over [low, high], which holds zero.
Grid grid_of(float low, float high, int bits, bool symmetric) {
  const int largest = (1 << bits) - 1, middle = 1 << (bits - 1);
  const float span = symmetric ? 2 * std::max(-low, high) : high - low;
  Grid grid{.scale = static_cast<float>(base::f16(span / static_cast<float>(largest))), .zero = middle};
  if (!(grid.scale > 0)) return {.scale = 1, .zero = middle};  // zeros, or numbers below what f16 holds
  // 0 is the zero point that readers of GPTQ's first format disagree about.
  if (!symmetric) grid.zero = std::clamp(static_cast<int>(std::nearbyint(-low / grid.scale)), 1, largest);
  return grid;
}

double error_of(const std::vector<float>& x, const std::vector<float>& weights, const Grid& grid, int largest) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float error = x[i] - grid.scale * static_cast<float>(nearest(x[i], grid, largest) - grid.zero);
    sum += static_cast<double>(weights[i]) * static_cast<double>(error * error);
  }
  return sum;
}

// The best of some ranges, from all of the numbers to six tenths of it.
Grid best_grid(const std::vector<float>& x, const std::vector<float>& weights, const IntegerForm& form) {
  constexpr int kSteps = 20;
  float low = 0, high = 0;
  for (float v : x) low = std::min(low, v), high = std::max(high, v);
  const int largest = (1 << form.bits) - 1;
  Grid best = grid_of(low, high, form.bits, form.symmetric);
  if (!form.searches) return best;
  double least = error_of(x, weights, best, largest);
  auto attempt = [&](float a, float b) {
    const Grid grid = grid_of(low * a, high * b, form.bits, form.symmetric);
    const double error = error_of(x, weights, grid, largest);
    if (error < least) least = error, best = grid;
  };
  for (int step = 1; step <= kSteps; ++step) {
    const float share = 1.0f - 0.02f * static_cast<float>(step);
    attempt(share, share);
    if (form.symmetric) continue;
    attempt(share, 1), attempt(1, share);
  }
  return best;
}

// Groups, scales and zero points of a weight, with the least error where each column counts by its importance; codes
// are left empty.
IntegerWeight make_scales(const std::vector<float>& w, int64_t rows, std::vector<float> importance,
                          const std::vector<int32_t>& order, const IntegerForm& form) {
  const int64_t K = std::ssize(importance), group = form.group <= 0 ? K : form.group;
  IntegerWeight result{.rows = rows, .columns = K, .num_groups = (K + group - 1) / group};
  result.group_of.resize(static_cast<size_t>(K));
  std::vector<std::vector<int32_t>> members(static_cast<size_t>(result.num_groups));
  for (int64_t i = 0; i < K; ++i) {
    const int32_t column = form.orders_groups ? order[static_cast<size_t>(i)] : static_cast<int32_t>(i);
    result.group_of[static_cast<size_t>(column)] = static_cast<int32_t>(i / group);
    members[static_cast<size_t>(i / group)].push_back(column);
  }
  result.codes.resize(static_cast<size_t>(rows * K));
  result.scales.resize(static_cast<size_t>(rows * result.num_groups));
  result.zeros.resize(result.scales.size());
  const float floor = 1e-6f * *std::max_element(importance.begin(), importance.end());
  for (float& d : importance) d = floor > 0 ? std::max(d, floor) : 1.0f;
  base::parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
    std::vector<float> x, weights;
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t g = 0; g < result.num_groups; ++g) {
        x.clear(), weights.clear();
        for (int32_t c : members[static_cast<size_t>(g)]) {
          x.push_back(w[static_cast<size_t>(r * K + c)]);
          weights.push_back(importance[static_cast<size_t>(c)]);
          SINTER_CHECK(std::isfinite(x.back()), "row {}, column {} is {}; expected a finite number", r, c, x.back());
        }
        const Grid grid = best_grid(x, weights, form);
        SINTER_CHECK(std::isfinite(grid.scale), "row {} has numbers too large for scales in f16", r);
        result.scales[static_cast<size_t>(r * result.num_groups + g)] = grid.scale;
        result.zeros[static_cast<size_t>(r * result.num_groups + g)] = static_cast<uint8_t>(grid.zero);
      }
    }
  });
  return result;
}

Grid grid_at(const IntegerWeight& weight, int64_t row, int64_t column) {
  const auto g = static_cast<size_t>(row * weight.num_groups + weight.group_of[static_cast<size_t>(column)]);
  return {weight.scales[g], weight.zeros[g]};
}

std::vector<int32_t> columns_by_importance(const Hessian& hessian) {
  const std::vector<float> importance = hessian.diagonal();
  std::vector<int32_t> order(importance.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return importance[static_cast<size_t>(a)] > importance[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace

RoundingInputs::RoundingInputs(const Hessian& inputs, double damp)
    : hessian(inputs), order(columns_by_importance(inputs)), root(inverse_root(inputs, order, damp)) {
  damping = inputs.diagonal();
  const double sum = std::accumulate(damping.begin(), damping.end(), 0.0);
  const double mean = sum > 0 ? sum / static_cast<double>(damping.size()) : 1.0;
  for (float& d : damping) d = static_cast<float>(damp * mean + (d > 0 ? 0.0 : mean));
}

void make_up(std::vector<float>& w, const RoundingInputs& inputs, const core::Tensor& drift) {
  const int64_t K = inputs.hessian.columns(), rows = drift.size(0);
  core::Allocator& memory = core::runtime({}).allocator();
  const core::Tensor turned(memory, {rows, K}, core::DType::f32), half(memory, {rows, K}, core::DType::f32);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < K; ++i)
      turned.data<float>()[r * K + i] = drift.data<float>()[r * K + inputs.order[static_cast<size_t>(i)]];
  }
  auto multiply = [&](const core::Tensor& a, bool transpose_b, const core::Tensor& c) {
    kernels::MatmulArgs args;
    args.a = a;
    args.b = {.data = inputs.root};
    args.c = c;
    args.transpose_b = transpose_b;
    kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
  };
  multiply(turned, true, half);
  multiply(half, false, turned);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < K; ++i)
      w[static_cast<size_t>(r * K + inputs.order[static_cast<size_t>(i)])] += turned.data<float>()[r * K + i];
  }
}

IntegerWeight round_nearest(const std::vector<float>& w, int64_t rows, const Hessian& hessian,
                            const IntegerForm& form) {
  IntegerWeight result = make_scales(w, rows, hessian.diagonal(), columns_by_importance(hessian), form);
  const int64_t K = result.columns;
  base::parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * K; i < end * K; ++i) {
      result.codes[static_cast<size_t>(i)] =
          static_cast<uint8_t>(nearest(w[static_cast<size_t>(i)], grid_at(result, i / K, i % K), (1 << form.bits) - 1));
    }
  });
  return result;
}

namespace {

// Column after column, each making up for the errors of those before it.
IntegerWeight round_in_order(const std::vector<float>& w, int64_t rows, const RoundingInputs& inputs,
                             const IntegerForm& form) {
  const int64_t K = inputs.hessian.columns();
  const std::vector<int32_t>& order = inputs.order;
  const core::Tensor& root = inputs.root;
  // What an error of a column costs once the columns behind it have made up for it.
  std::vector<float> cost(static_cast<size_t>(K));
  for (int64_t i = 0; i < K; ++i) {
    const float factor = root.data<float>()[i * K + i];
    cost[static_cast<size_t>(order[static_cast<size_t>(i)])] = 1.0f / (factor * factor);
  }
  IntegerWeight result = make_scales(w, rows, cost, order, form);
  const int largest = (1 << form.bits) - 1;
  core::Allocator& memory = core::runtime({}).allocator();
  core::Tensor left(memory, {rows, K}, core::DType::f32);  // what is to be rounded, in `order`
  float* x = left.data<float>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < K; ++i) x[r * K + i] = w[static_cast<size_t>(r * K + order[static_cast<size_t>(i)])];
  }
  const float* u = root.data<float>();
  for (int64_t b = 0; b < K; b += kBlock) {
    const int64_t count = std::min(kBlock, K - b);
    core::Tensor errors(memory, {rows, count}, core::DType::f32);
    base::parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float *row = x + r * K + b, *error = errors.data<float>() + r * count;
        for (int64_t i = 0; i < count; ++i) {
          const int64_t column = order[static_cast<size_t>(b + i)];
          const Grid grid = grid_at(result, r, column);
          const int code = nearest(row[i], grid, largest);
          result.codes[static_cast<size_t>(r * K + column)] = static_cast<uint8_t>(code);
          const float* factors = u + (b + i) * K + b;
          error[i] = (row[i] - grid.scale * static_cast<float>(code - grid.zero)) / factors[i];
          for (int64_t j = i + 1; j < count; ++j) row[j] -= error[i] * factors[j];
        }
      }
    });
    const int64_t next = b + count;
    if (next == K) break;
    core::Tensor factors(memory, {count, K - next}, core::DType::f32);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(factors.data<float>() + i * (K - next), u + (b + i) * K + next,
                  static_cast<size_t>(K - next) * sizeof(float));
    kernels::MatmulArgs args;
    args.a = errors;
    args.b = {.data = factors};
    args.c = left;
    args.alpha = -1.0f;
    args.accumulate = true;
    args.c_first_column = next;
    args.c_columns = K - next;
    kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
  }
  return result;
}

void copy_row(const IntegerWeight& from, int64_t row, IntegerWeight& to) {
  auto copy = [row](const auto& source, auto& target, int64_t count) {
    std::copy_n(source.begin() + row * count, count, target.begin() + row * count);
  };
  copy(from.codes, to.codes, to.columns);
  copy(from.scales, to.scales, to.num_groups);
  copy(from.zeros, to.zeros, to.num_groups);
}

}  // namespace

IntegerWeight round_weight(const std::vector<float>& w, int64_t rows, const RoundingInputs& inputs,
                           const IntegerForm& form) {
  IntegerForm whole_range = form;
  whole_range.searches = false;
  IntegerWeight best = round_in_order(w, rows, inputs, form), other = round_in_order(w, rows, inputs, whole_range);
  const std::vector<double> errors = refine(w, inputs, form, best), others = refine(w, inputs, form, other);
  for (int64_t r = 0; r < rows; ++r) {
    if (others[static_cast<size_t>(r)] < errors[static_cast<size_t>(r)]) copy_row(other, r, best);
  }
  return best;
}

}  // namespace sinter::quant
