#include "quant/folder/refine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/threads.h"
#include "kernels/table.h"

namespace sinter::quant {
namespace {

using core::Tensor;

constexpr int kRounds = 4;              // over all columns
constexpr int kInnerRounds = 3;         // over the columns of a block, before the others learn of it
constexpr int64_t kBlockColumns = 128;  // of a block where groups are too large to be one

Tensor make_tensor(int64_t rows, int64_t columns) {
  return Tensor(core::runtime({}).allocator(), {rows, columns}, core::DType::f32);
}

// c = a b, or c += a b.
void multiply(const Tensor& a, const Tensor& b, const Tensor& c, bool accumulates) {
  kernels::MatmulArgs args;
  args.a = a;
  args.b = {.data = b};
  args.c = c;
  args.accumulate = accumulates;
  kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
}

// Columns that are changed together, with their part of H + damping.
struct Block {
  std::vector<int32_t> columns;
  std::vector<float> h;    // (columns, columns)
  bool fits_scale = true;  // the columns are a whole group
};

std::vector<std::vector<int32_t>> columns_of_blocks(const IntegerWeight& weight, bool& are_groups) {
  std::vector<std::vector<int32_t>> groups(static_cast<size_t>(weight.num_groups));
  for (int64_t c = 0; c < weight.columns; ++c)
    groups[static_cast<size_t>(weight.group_of[static_cast<size_t>(c)])].push_back(static_cast<int32_t>(c));
  are_groups = std::all_of(groups.begin(), groups.end(), [](const auto& g) { return std::ssize(g) <= kMostGroup; });
  if (are_groups) return groups;
  std::vector<std::vector<int32_t>> blocks;
  for (const std::vector<int32_t>& group : groups) {
    for (size_t i = 0; i < group.size(); i += kBlockColumns)
      blocks.emplace_back(group.begin() + static_cast<std::ptrdiff_t>(i),
                          group.begin() + static_cast<std::ptrdiff_t>(std::min(group.size(), i + kBlockColumns)));
  }
  return blocks;
}

Block make_block(std::vector<int32_t> columns, const RoundingInputs& inputs, bool fits_scale) {
  Block block{.columns = std::move(columns), .h = {}, .fits_scale = fits_scale};
  for (int32_t i : block.columns) {
    const float* row = inputs.hessian.row(i);
    for (int32_t j : block.columns)
      block.h.push_back(row[j] + (i == j ? inputs.damping[static_cast<size_t>(i)] : 0.0f));
  }
  return block;
}

// The block's numbers of one row: scale * steps.
class RowBlock {
 public:
  RowBlock(const Block& block, int zero, int largest) : block_(block), zero_(zero), largest_(largest) {
    const size_t n = block.columns.size();
    steps.resize(n), gradient.resize(n), change.resize(n);
  }

  float scale = 1;
  std::vector<float> steps;     // code - zero point
  std::vector<float> gradient;  // of the error by the numbers, halved: d (H + damping)
  std::vector<float> change;    // of the numbers so far

  bool improve_codes() {
    bool has_changed = false;
    for (size_t i = 0; i < steps.size(); ++i) {
      const float best = steps[i] - gradient[i] / (row(i)[i] * scale);
      const int code = std::clamp(static_cast<int>(std::nearbyint(best)) + zero_, 0, largest_);
      const float step = static_cast<float>(code - zero_);
      if (step == steps[i]) continue;
      move(i, scale * (step - steps[i]));
      steps[i] = step;
      has_changed = true;
    }
    return has_changed;
  }

  void improve_scale() {
    double slope = 0, curvature = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] == 0) continue;
      double sum = 0;
      for (size_t j = 0; j < steps.size(); ++j) sum += static_cast<double>(row(i)[j] * steps[j]);
      slope += static_cast<double>(steps[i] * gradient[i]);
      curvature += static_cast<double>(steps[i]) * sum;
    }
    if (!(curvature > 0)) return;
    const auto better =
        static_cast<float>(base::f16(static_cast<float>(static_cast<double>(scale) - slope / curvature)));
    if (!(better > 0) || !std::isfinite(better)) return;
    const double by = static_cast<double>(better) - static_cast<double>(scale);
    if (by * (2 * slope + by * curvature) >= 0) return;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i] != 0) move(i, (better - scale) * steps[i]);
    }
    scale = better;
  }

 private:
  const float* row(size_t i) const { return block_.h.data() + i * block_.columns.size(); }
  void move(size_t i, float by) {
    change[i] += by;
    const float* h = row(i);
    for (size_t j = 0; j < gradient.size(); ++j) gradient[j] += by * h[j];
  }

  const Block& block_;
  int zero_, largest_;
};

// Improves a block of one row; its numbers' change to `change`, which is zero before.
bool improve_row(const Block& block, int64_t r, const float* gradient, int largest, IntegerWeight& weight,
                 float* change) {
  const auto group =
      static_cast<size_t>(r * weight.num_groups + weight.group_of[static_cast<size_t>(block.columns[0])]);
  RowBlock row(block, weight.zeros[group], largest);
  row.scale = weight.scales[group];
  uint8_t* codes = weight.codes.data() + r * weight.columns;
  for (size_t i = 0; i < block.columns.size(); ++i) {
    row.steps[i] = static_cast<float>(codes[block.columns[i]] - weight.zeros[group]);
    row.gradient[i] = gradient[block.columns[i]];
  }
  const float before = row.scale;
  bool has_changed = false;
  for (int round = 0; round < kInnerRounds; ++round) {
    if (!row.improve_codes() && round > 0) break;
    if (block.fits_scale) row.improve_scale();
  }
  weight.scales[group] = row.scale;
  for (size_t i = 0; i < block.columns.size(); ++i) {
    codes[block.columns[i]] = static_cast<uint8_t>(static_cast<int>(row.steps[i]) + weight.zeros[group]);
    change[i] = row.change[i];
    has_changed = has_changed || change[i] != 0;
  }
  return has_changed || row.scale != before;
}

}  // namespace

std::vector<double> refine(const std::vector<float>& w, const RoundingInputs& inputs, const IntegerForm& form,
                           IntegerWeight& rounded) {
  const int64_t K = rounded.columns, rows = rounded.rows;
  const int largest = (1 << form.bits) - 1;
  Tensor d = make_tensor(rows, K), gradient = make_tensor(rows, K);
  for (int64_t i = 0; i < rows * K; ++i) d.data<float>()[i] = rounded.number(i / K, i % K) - w[static_cast<size_t>(i)];
  multiply(d, inputs.hessian.matrix(), gradient, false);
  for (int64_t i = 0; i < rows * K; ++i)
    gradient.data<float>()[i] += d.data<float>()[i] * inputs.damping[static_cast<size_t>(i % K)];
  bool are_groups = true;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<bool> has_changed{false};
    for (std::vector<int32_t>& columns : columns_of_blocks(rounded, are_groups)) {
      const Block block = make_block(std::move(columns), inputs, are_groups);
      const auto count = std::ssize(block.columns);
      const Tensor change = make_tensor(rows, count), h = make_tensor(count, K);
      base::parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          if (improve_row(block, r, gradient.data<float>() + r * K, largest, rounded, change.data<float>() + r * count))
            has_changed.store(true, std::memory_order_relaxed);
        }
      });
      for (int64_t i = 0; i < count; ++i) {
        const int32_t column = block.columns[static_cast<size_t>(i)];
        float* to = h.data<float>() + i * K;
        std::memcpy(to, inputs.hessian.row(column), static_cast<size_t>(K) * sizeof(float));
        to[column] += inputs.damping[static_cast<size_t>(column)];
      }
      multiply(change, h, gradient, true);
    }
    if (!has_changed) break;
  }
  std::vector<double> errors(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows * K; ++i) {
    const float error = rounded.number(i / K, i % K) - w[static_cast<size_t>(i)];
    errors[static_cast<size_t>(i / K)] += static_cast<double>(error) * static_cast<double>(gradient.data<float>()[i]);
  }
  return errors;
}

}  // namespace sinter::quant
