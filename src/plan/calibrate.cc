#include "plan/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/time.h"

namespace sinter::plan {
namespace {

constexpr double kFree = 1e9;  // a share so large that the part takes no time

StepTime model_time(DeviceSpec device, MatrixFormat format, const MeasuredStep& step, const TrainingShares& shares) {
  device.training[static_cast<size_t>(format)] = shares;
  Cluster cluster;
  cluster.device = device;
  cluster.per_node = 1;
  cluster.rails = 1;
  cluster.network.bandwidth = 1e9;
  spec::ParallelSpec p;
  p.micro_batch = step.sequences;
  p.global_batch = step.sequences * step.micro_batches;
  p.seq_len = step.seq_len;
  if (format == MatrixFormat::fp32 || format == MatrixFormat::tf32) p.compute = base::DType::f32;
  if (format == MatrixFormat::fp16) p.compute = base::DType::f16;
  ModelShape shape = make_model_shape(step.model);
  return plan_step(shape, p, cluster, find_software("sinter"), find_efficiency(device, "sinter", format), format).time;
}

// Solves the normal equations of the chosen columns by elimination; empty where they are dependent.
std::vector<double> solve(const std::vector<std::vector<double>>& columns, const std::vector<size_t>& chosen) {
  const size_t n = chosen.size(), rows = columns[0].size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n + 1, 0.0));
  for (size_t i = 0; i < n; ++i) {
    for (size_t r = 0; r < rows; ++r) {
      for (size_t j = 0; j < n; ++j) a[i][j] += columns[chosen[i]][r] * columns[chosen[j]][r];
      a[i][n] += columns[chosen[i]][r];
    }
  }
  std::vector<double> scale(n);
  for (size_t i = 0; i < n; ++i) scale[i] = std::sqrt(std::max(a[i][i], 1e-300));
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) a[i][j] /= scale[i] * scale[j];
    a[i][n] /= scale[i];
  }
  for (size_t i = 0; i < n; ++i) {
    if (a[i][i] < 1e-9) return {};
    for (size_t k = 0; k < n; ++k) {
      if (k == i) continue;
      double factor = a[k][i] / a[i][i];
      for (size_t j = i; j <= n; ++j) a[k][j] -= factor * a[i][j];
    }
  }
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = a[i][n] / a[i][i] / scale[i];
  return x;
}

double share_of(double coefficient) { return coefficient > 0 ? 1 / coefficient : kFree; }

// One cause over all steps: what was measured, and what each constant alone would take.
class Cause {
 public:
  explicit Cause(size_t constants) : columns_(constants) {}
  void add(double measured, const std::vector<double>& work) {
    if (!(measured > 0)) return;
    for (size_t c = 0; c < columns_.size(); ++c) columns_[c].push_back(work[c] / measured);
  }
  // Steps that something disturbed stand far off what the others agree on: the worst are left out one by one.
  std::vector<double> fit() {
    if (columns_[0].empty()) return std::vector<double>(columns_.size(), 0.0);
    while (true) {
      std::vector<double> x = fit_nonnegative(columns_);
      size_t worst = 0;
      double farthest = 0;
      for (size_t r = 0; r < columns_[0].size(); ++r) {
        double sum = 0;
        for (size_t c = 0; c < columns_.size(); ++c) sum += x[c] * columns_[c][r];
        if (std::abs(sum - 1) > farthest) worst = r, farthest = std::abs(sum - 1);
      }
      if (farthest < kDisturbed || columns_[0].size() <= columns_.size() + 2) return x;
      for (std::vector<double>& column : columns_) column.erase(column.begin() + static_cast<std::ptrdiff_t>(worst));
    }
  }

 private:
  static constexpr double kDisturbed = 0.2;
  std::vector<std::vector<double>> columns_;
};

}  // namespace

std::vector<double> fit_nonnegative(const std::vector<std::vector<double>>& columns) {
  std::vector<double> best(columns.size(), 0.0);
  double best_loss = 1e300;
  for (size_t mask = 1; mask < (size_t{1} << columns.size()); ++mask) {
    std::vector<size_t> chosen;
    for (size_t c = 0; c < columns.size(); ++c) {
      if (mask >> c & 1) chosen.push_back(c);
    }
    std::vector<double> x = solve(columns, chosen);
    if (x.empty() || *std::min_element(x.begin(), x.end()) < 0) continue;
    double loss = 0;
    for (size_t r = 0; r < columns[0].size(); ++r) {
      double sum = 0;
      for (size_t i = 0; i < chosen.size(); ++i) sum += x[i] * columns[chosen[i]][r];
      loss += (sum - 1) * (sum - 1);
    }
    if (loss >= best_loss) continue;
    best_loss = loss;
    std::fill(best.begin(), best.end(), 0.0);
    for (size_t i = 0; i < chosen.size(); ++i) best[chosen[i]] = x[i];
  }
  return best;
}

TrainingShares fit_training_shares(const DeviceSpec& device, MatrixFormat format,
                                   const std::vector<MeasuredStep>& steps) {
  if (steps.size() < 2) base::fail("calibration needs two measured steps of different size; got {}", steps.size());
  // With one constant at 1 and the rest free of charge, the model's time is that constant's work.
  TrainingShares free{kFree, kFree, kFree, 0, 0, kFree, kFree, kFree, kFree, kFree};
  auto alone = [&](double TrainingShares::*member) {
    TrainingShares s = free;
    s.*member = 1;
    return s;
  };
  const TrainingShares rate = alone(&TrainingShares::gemm), operands = alone(&TrainingShares::gemm_memory),
                       starts = alone(&TrainingShares::gemm_start), scores = alone(&TrainingShares::attention),
                       heads = alone(&TrainingShares::attention_memory), bytes = alone(&TrainingShares::memory),
                       calls = alone(&TrainingShares::kernel), loss = alone(&TrainingShares::loss),
                       update = alone(&TrainingShares::optimizer), matrices = alone(&TrainingShares::gemm_weights);
  Cause products(4), attention(2), elementwise(2), losses(1), updates(1);
  for (const MeasuredStep& step : steps) {
    auto time = [&](const TrainingShares& s) { return model_time(device, format, step, s); };
    products.add(step.matmul, {time(rate).matmul, time(operands).matmul, time(starts).matmul, time(matrices).matmul});
    attention.add(step.attention, {time(scores).attention, time(heads).attention});
    elementwise.add(step.elementwise, {time(bytes).elementwise, time(calls).elementwise});
    losses.add(step.loss, {time(loss).loss});
    updates.add(step.optimizer, {time(update).optimizer});
  }
  std::vector<double> p = products.fit(), a = attention.fit(), e = elementwise.fit();
  TrainingShares shares;
  shares.gemm = share_of(p[0]);
  shares.gemm_memory = share_of(p[1]);
  shares.gemm_start = p[2];
  shares.gemm_weights = share_of(p[3]);
  shares.attention = share_of(a[0]);
  shares.attention_memory = share_of(a[1]);
  shares.memory = share_of(e[0]);
  shares.kernel = e[1];
  shares.loss = share_of(losses.fit()[0]);
  shares.optimizer = share_of(updates.fit()[0]);
  return shares;
}

MeasuredStep predict_step(const DeviceSpec& device, MatrixFormat format, const MeasuredStep& step) {
  StepTime t = model_time(device, format, step, device.training[static_cast<size_t>(format)]);
  MeasuredStep out = step;
  out.matmul = t.matmul;
  out.attention = t.attention;
  out.elementwise = t.elementwise;
  out.loss = t.loss;
  out.optimizer = t.total() - t.matmul - t.attention - t.elementwise - t.loss;
  return out;
}

}  // namespace sinter::plan
