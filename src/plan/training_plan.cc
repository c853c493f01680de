#include "plan/training_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "plan/inference.h"
#include "spec/trained_layouts.h"

namespace sinter::plan {
namespace {

constexpr int64_t kMostDevices = 10'000'000;  // widths beyond are no widths

SearchResult search(const TrainingRequest& request, int64_t devices, int64_t batch, bool trained_only = false) {
  SearchRequest r;
  r.trained_only = trained_only;
  r.model = request.model;
  r.cluster = request.cluster;
  r.cluster.num_devices = devices;
  r.global_batch = batch;
  r.seq_len = request.seq_len;
  r.software = request.software.name;
  r.format = request.format;
  if (request.format == MatrixFormat::fp32 || request.format == MatrixFormat::tf32) r.base.compute = base::DType::f32;
  if (request.format == MatrixFormat::fp16) r.base.compute = base::DType::f16;
  const LayoutWish& wish = request.wish;
  r.tp = wish.tp;
  r.pp = wish.pp;
  r.cp = wish.cp;
  r.ep = wish.ep;
  r.micro_batch = wish.micro_batch;
  r.shard = wish.shard;
  r.zero = wish.zero;
  if (wish.recompute) r.recompute = {*wish.recompute};
  return search_layouts(r);
}

int64_t find_devices_needed(const TrainingRequest& request, int64_t batch, bool trained_only = false) {
  const int64_t now = request.cluster.num_devices;
  for (int64_t devices = 2 * now; devices <= 64 * now && devices <= 32768; devices *= 2) {
    if (!search(request, devices, std::max(batch, devices), trained_only).best.empty()) return devices;
  }
  return 0;
}

std::optional<TrainingPlan::Trained> find_trained(const TrainingRequest& request, const spec::ParallelSpec& chosen,
                                                  int64_t batch) {
  if (request.software.name != "sinter" || spec::untrained_keys(chosen).empty()) return std::nullopt;
  SearchResult found = search(request, request.cluster.num_devices, batch, true);
  TrainingPlan::Trained trained{.fits = !found.best.empty()};
  if (trained.fits) {
    trained.layout = std::move(found.best.front());
    return trained;
  }
  trained.layout.parallel = found.smallest;
  trained.layout.memory = found.smallest_memory;
  trained.devices_needed = find_devices_needed(request, batch, true);
  return trained;
}

// Refuses widths that cannot be, naming the nearest that can, before any layout is tried.
void check_wish(const TrainingRequest& request) {
  const LayoutWish& wish = request.wish;
  if (wish.zero < -1 || wish.zero > 3) base::fail_usage("ZeRO stage {}; expected 0, 1, 2 or 3", wish.zero);
  if (wish.tp > 0) check_tp(request.model, wish.tp);
  const int64_t devices = request.cluster.num_devices;
  int64_t product = 1;
  for (int64_t width : {wish.tp, wish.pp, wish.cp}) {
    product *= std::clamp<int64_t>(width, 1, kMostDevices);
    if (product > devices) break;
  }
  if (product <= devices && devices % product == 0) return;
  int64_t above = (devices + product - 1) / product * product;
  base::fail_usage("tp x pp x cp = {} does not divide {} devices; take {}x{}, or widths whose product divides {}",
                   product, devices, std::max(above, product), request.cluster.device.name, devices);
}

}  // namespace

int64_t usual_global_batch(double parameters, int64_t seq_len, int64_t devices, int64_t micro_batch) {
  const double tokens = parameters < 1e9     ? 0.5e6
                        : parameters < 5e9   ? 1e6
                        : parameters < 30e9  ? 2e6
                        : parameters < 200e9 ? 4e6
                                             : 16e6;
  int64_t odd = devices;  // data-parallel ranks are the devices over powers of two
  while (odd % 2 == 0) odd /= 2;
  int64_t sequences = odd * std::max<int64_t>(1, micro_batch);
  while (static_cast<double>(sequences) * static_cast<double>(seq_len) < tokens * 0.95) sequences *= 2;
  return sequences;
}

TrainingPlan make_training_plan(const TrainingRequest& request) {
  TrainingPlan plan;
  plan.shape = make_model_shape(request.model);
  const double parameters = static_cast<double>(plan.shape.total_parameters());
  const double active = static_cast<double>(plan.shape.active_parameters());
  const int64_t devices = request.cluster.num_devices;
  check_wish(request);
  int64_t batch = request.global_batch;
  if (batch == 0) batch = usual_global_batch(active, request.seq_len, devices, request.wish.micro_batch);
  SearchResult found = search(request, devices, batch);
  // A small model on many devices: no division leaves every rank a sequence, so the batch must grow.
  while (found.best.empty() && !found.nothing_fits && request.global_batch == 0 && batch < devices) {
    batch *= 2;
    found = search(request, devices, batch);
  }
  if (found.best.empty() && !found.nothing_fits) {
    std::string reason;
    if (!found.rejected.empty()) {
      const spec::ParallelSpec& example = found.rejected.front().example;
      reason =
          fmt::format(": {} fails because {}", spec::describe(example), spec::layout_problem(example, request.model));
    }
    base::fail_usage("no layout of {} devices and {} sequences of {} tokens meets what was asked{}", devices, batch,
                     request.seq_len, reason);
  }
  plan.fits = !found.best.empty();
  plan.usable_bytes = found.usable_bytes;
  plan.layouts = std::move(found.best);
  plan.parallel = plan.fits ? plan.layouts.front().parallel : found.smallest;
  plan.memory = plan_memory(plan.shape, plan.parallel, request.software);
  plan.step = plan_step(plan.shape, plan.parallel, request.cluster, request.software,
                        find_efficiency(request.cluster.device, request.software.name, request.format), request.format);
  if (!plan.fits) plan.devices_needed = find_devices_needed(request, batch);
  plan.trained = find_trained(request, plan.parallel, batch);
  plan.tokens = request.tokens > 0 ? request.tokens : 20 * active;
  const double per_step = static_cast<double>(plan.parallel.global_batch) * static_cast<double>(plan.parallel.seq_len);
  plan.steps = std::ceil(plan.tokens / per_step);
  const StorageSystem& storage = request.cluster.storage;
  plan.checkpoint_bytes = parameters * kCheckpointBytesPerParameter;
  plan.reliability = plan_reliability(static_cast<double>(devices), plan.checkpoint_bytes, storage.write_bandwidth,
                                      storage.read_bandwidth, request.cluster.mtbf_hours);
  if (storage.read_bandwidth > 0) plan.weights_load_seconds = 2 * parameters / storage.read_bandwidth;
  const double hours =
      plan.steps * plan.step.seconds / 3600 * static_cast<double>(devices) / std::max(plan.reliability.goodput, 1e-3);
  plan.cost = run_cost({.gpu_hours = hours,
                        .num_devices = static_cast<double>(devices),
                        .price_per_hour = request.cluster.price_per_hour,
                        .power_watts = request.cluster.device.power_watts,
                        .pue = request.pue,
                        .kg_co2_per_kwh = request.kg_co2_per_kwh});
  return plan;
}

}  // namespace sinter::plan
