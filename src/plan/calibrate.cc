#include "plan/calibrate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/time.h"

namespace sinter::plan {
namespace {

StepTime model_time(Device device, Format format, const MeasuredStep& step, const TrainingShares& shares) {
  device.training[static_cast<size_t>(format)] = shares;
  Cluster cluster;
  cluster.device = device;
  cluster.per_node = 1;
  cluster.rails = 1;
  cluster.network.bandwidth = 1e9;
  spec::ParallelSpec p;
  p.micro_batch = p.global_batch = step.sequences;
  p.seq_len = step.seq_len;
  if (format == Format::fp32 || format == Format::tf32) p.compute = base::DType::f32;
  if (format == Format::fp16) p.compute = base::DType::f16;
  ModelShape shape = make_model_shape(step.model);
  return plan_step(shape, p, cluster, find_software("sinter"), find_efficiency(device, "sinter", format), format).time;
}

// time = work * x + calls * y with x, y >= 0: least squares of relative errors.
struct Line {
  double x = 0, y = 0;
};
Line fit_line(const std::vector<double>& work, const std::vector<double>& calls, const std::vector<double>& time) {
  double ww = 0, wc = 0, cc = 0, w1 = 0, c1 = 0;
  for (size_t i = 0; i < time.size(); ++i) {
    double w = work[i] / time[i], c = calls[i] / time[i];
    ww += w * w;
    wc += w * c;
    cc += c * c;
    w1 += w;
    c1 += c;
  }
  double determinant = ww * cc - wc * wc;
  Line line;
  if (determinant > 1e-9 * ww * cc) line = {(w1 * cc - c1 * wc) / determinant, (c1 * ww - w1 * wc) / determinant};
  if (!(line.x > 0) || !(line.y >= 0)) line = {w1 / ww, 0};  // all of it is rate
  return line;
}

}  // namespace

TrainingShares fit_training_shares(const Device& device, Format format, const std::vector<MeasuredStep>& steps) {
  if (steps.size() < 2) base::fail("calibration needs two measured steps of different size; got {}", steps.size());
  constexpr double kFree = 1e9;  // a share so large that the part takes no time
  const TrainingShares no_calls{1, 1, kFree, 0, 0}, only_calls{kFree, 1, kFree, 1, 1}, only_bytes{kFree, 1, 1, 0, 0};
  std::vector<double> product_work, product_calls, product_time, byte_work, byte_calls, byte_time;
  double attention_work = 0, attention_time = 0;
  for (const MeasuredStep& step : steps) {
    StepTime rate = model_time(device, format, step, no_calls), calls = model_time(device, format, step, only_calls),
             bytes = model_time(device, format, step, only_bytes);
    product_work.push_back(rate.matmul);
    product_calls.push_back(calls.matmul);
    product_time.push_back(step.matmul);
    attention_work += rate.attention;
    attention_time += step.attention;
    byte_work.push_back(bytes.elementwise + bytes.optimizer);
    byte_calls.push_back(calls.elementwise);
    byte_time.push_back(step.elementwise + step.optimizer);
  }
  Line products = fit_line(product_work, product_calls, product_time),
       other = fit_line(byte_work, byte_calls, byte_time);
  TrainingShares shares;
  shares.gemm = 1 / products.x;
  shares.gemm_start = products.y;
  shares.attention = attention_time > 0 ? attention_work / attention_time : shares.gemm;
  shares.memory = 1 / other.x;
  shares.kernel = other.y;
  return shares;
}

double predict_step_seconds(const Device& device, Format format, const MeasuredStep& step) {
  return model_time(device, format, step, device.training[static_cast<size_t>(format)]).total();
}

}  // namespace sinter::plan
