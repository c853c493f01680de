#include "plan/training_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "plan/inference.h"

namespace sinter::plan {
namespace {

using spec::ParallelSpec;

constexpr size_t kMaxKept = 12;

std::vector<int64_t> choices(int64_t wished, int64_t limit) {
  if (wished > 0) return {wished};
  std::vector<int64_t> out;
  for (int64_t n = 1; n <= limit; n *= 2) out.push_back(n);
  return out;
}

// Sizes of the group that shares state: all data-parallel ranks, or those of one node with copies across nodes.
std::vector<int64_t> shard_choices(const LayoutWish& wish, const ParallelSpec& p, int64_t dp, int64_t per_node) {
  if (wish.shard > 0) return {wish.shard};
  if (p.zero == 0) return {1};
  std::vector<int64_t> out{dp};
  const int64_t in_node = per_node / (p.tp * p.cp);
  if (in_node > 1 && in_node < dp && dp % in_node == 0 && p.pp == 1) out.push_back(in_node);
  return out;
}

class LayoutSearch {
 public:
  LayoutSearch(const TrainingRequest& request, const ModelShape& shape, int64_t devices, int64_t batch)
      : request_(request), shape_(shape), devices_(devices), batch_(batch),
        efficiency_(find_efficiency(request.cluster.device, request.software.name)) {}

  std::vector<RankedLayout> run() {
    const LayoutWish& wish = request_.wish;
    const int64_t layers = shape_.num_layers;
    for (int64_t tp : choices(wish.tp, request_.cluster.per_node)) {
      for (int64_t pp : choices(wish.pp, std::min<int64_t>(layers, 64))) {
        for (int64_t cp : choices(wish.cp, request_.seq_len >= 32768 ? 16 : 1)) {
          if (devices_ % (tp * pp * cp) != 0) continue;
          try_state(tp, pp, cp);
        }
      }
    }
    std::sort(found_.begin(), found_.end(), [](const RankedLayout& a, const RankedLayout& b) {
      if (a.fits != b.fits) return a.fits;
      return a.fits ? a.step.seconds < b.step.seconds : a.memory.worst().device.total() < b.memory.worst().device.total();
    });
    if (found_.size() > kMaxKept) found_.resize(kMaxKept);
    return std::move(found_);
  }
  const std::string& last_problem() const { return problem_; }

 private:
  void try_state(int64_t tp, int64_t pp, int64_t cp) {
    const LayoutWish& wish = request_.wish;
    const int64_t dp = devices_ / (tp * pp * cp);
    for (int zero : wish.zero >= 0 ? std::vector<int>{wish.zero} : dp > 1 ? std::vector<int>{1, 2, 3} : std::vector<int>{0}) {
      if (pp > 1 && zero > 1 && wish.zero < 0) continue;  // gathering for every micro-batch of a pipeline never pays
      ParallelSpec p;
      p.tp = tp;
      p.pp = pp;
      p.cp = cp;
      p.zero = zero;
      p.sequence_parallel = tp > 1;
      p.seq_len = request_.seq_len;
      p.global_batch = batch_;
      for (int64_t shard : shard_choices(wish, p, dp, request_.cluster.per_node)) {
        if (dp % shard != 0) {
          problem_ = fmt::format("shard {} does not divide the {} data-parallel ranks", shard, dp);
          continue;
        }
        p.shard = zero == 0 && wish.shard == 0 ? 1 : shard;
        p.replica = dp / p.shard;
        try_rest(p);
      }
    }
  }

  void try_rest(ParallelSpec p) {
    using enum spec::Recompute;
    const LayoutWish& wish = request_.wish;
    for (int64_t ep : wish.ep > 0 || shape_.num_experts == 0 ? std::vector<int64_t>{std::max<int64_t>(1, wish.ep)}
                                                             : choices(0, std::min<int64_t>(shape_.num_experts, p.dp() * p.cp))) {
      for (int64_t chunks : wish.interleave > 0 ? std::vector<int64_t>{wish.interleave} : p.pp > 1 ? std::vector<int64_t>{1, 2, 4} : std::vector<int64_t>{1}) {
        for (int64_t micro : wish.micro_batch > 0 ? std::vector<int64_t>{wish.micro_batch} : std::vector<int64_t>{1, 2, 4, 8}) {
          for (spec::Recompute recompute : wish.recompute ? std::vector{*wish.recompute} : std::vector{none, selective, full}) {
            p.ep = ep;
            p.interleave = chunks;
            p.schedule = chunks > 1 ? spec::PipelineKind::interleaved : spec::PipelineKind::one_f_one_b;
            p.micro_batch = micro;
            p.recompute = recompute;
            consider(p);
          }
        }
      }
    }
  }

  void consider(const ParallelSpec& p) {
    if (std::string problem = spec::layout_problem(p, request_.model); !problem.empty()) {
      problem_ = problem;
      return;
    }
    RankedLayout layout{p, plan_memory(shape_, p, request_.software), {}, false};
    layout.fits = layout.memory.fits(request_.cluster.device.memory_bytes);
    // A layout that lacks memory is only told about when nothing fits: keep the one that lacks least.
    if (!layout.fits) {
      if (!found_.empty() && (found_.back().fits || found_.back().memory.worst().device.total() <= layout.memory.worst().device.total())) return;
      std::erase_if(found_, [](const RankedLayout& other) { return !other.fits; });
    } else if (found_.size() == 1 && !found_[0].fits) {
      found_.clear();
    }
    layout.step = plan_step(shape_, p, request_.cluster, request_.software, efficiency_, request_.format);
    found_.push_back(std::move(layout));
  }

  const TrainingRequest& request_;
  const ModelShape& shape_;
  const int64_t devices_, batch_;
  const Efficiency efficiency_;
  std::vector<RankedLayout> found_;
  std::string problem_;
};

int64_t find_devices_needed(const TrainingRequest& request, const ModelShape& shape, int64_t batch) {
  for (int64_t devices = 2 * request.cluster.num_devices; devices <= 64 * request.cluster.num_devices && devices <= 32768; devices *= 2) {
    int64_t larger = std::max(batch, (devices + batch - 1) / batch * batch);
    std::vector<RankedLayout> found = LayoutSearch(request, shape, devices, larger).run();
    if (!found.empty() && found.front().fits) return devices;
  }
  return 0;
}

// Refuses widths that cannot be, naming the nearest that can, before any layout is tried.
void check_wish(const TrainingRequest& request) {
  const LayoutWish& wish = request.wish;
  if (wish.tp > 0) check_tp(request.model, static_cast<int>(std::min<int64_t>(wish.tp, 1 << 20)));
  const int64_t product = std::max<int64_t>(1, wish.tp) * std::max<int64_t>(1, wish.pp) * std::max<int64_t>(1, wish.cp);
  const int64_t devices = request.cluster.num_devices;
  if (product <= devices && devices % product == 0) return;
  int64_t above = (devices + product - 1) / product * product;
  base::fail_usage("tp x pp x cp = {} does not divide {} devices; take {}x{}, or widths whose product divides {}", product, devices,
                   std::max(above, product), request.cluster.device.name, devices);
}

}  // namespace

int64_t usual_global_batch(double parameters, int64_t seq_len, int64_t devices) {
  const double tokens = parameters < 1e9 ? 0.5e6 : parameters < 5e9 ? 1e6 : parameters < 30e9 ? 2e6 : parameters < 200e9 ? 4e6 : 16e6;
  int64_t odd = devices;  // data-parallel ranks are the devices over powers of two
  while (odd % 2 == 0) odd /= 2;
  int64_t sequences = odd;
  while (static_cast<double>(sequences * seq_len) < tokens * 0.95) sequences *= 2;
  return sequences;
}

TrainingPlan make_training_plan(const TrainingRequest& request) {
  TrainingPlan plan;
  plan.shape = make_model_shape(request.model);
  const double parameters = static_cast<double>(plan.shape.total_parameters());
  const double active = static_cast<double>(plan.shape.active_parameters());
  const int64_t devices = request.cluster.num_devices;
  check_wish(request);
  int64_t batch = request.global_batch > 0 ? request.global_batch : usual_global_batch(active, request.seq_len, devices);
  LayoutSearch search(request, plan.shape, devices, batch);
  plan.others = search.run();
  while (plan.others.empty() && request.global_batch == 0 && batch < devices) {  // a small model on many devices
    batch *= 2;
    plan.others = LayoutSearch(request, plan.shape, devices, batch).run();
  }
  if (plan.others.empty()) base::fail_usage("no layout of {} devices meets what was asked: {}", devices, search.last_problem());
  const RankedLayout& best = plan.others.front();
  plan.parallel = best.parallel;
  plan.memory = best.memory;
  plan.step = best.step;
  plan.fits = best.fits;
  if (!plan.fits) plan.devices_needed = find_devices_needed(request, plan.shape, batch);
  plan.tokens = request.tokens > 0 ? request.tokens : 20 * active;
  const double per_step = static_cast<double>(plan.parallel.global_batch) * static_cast<double>(plan.parallel.seq_len);
  plan.steps = std::ceil(plan.tokens / per_step);
  const Storage& storage = request.cluster.storage;
  plan.checkpoint_bytes = parameters * kCheckpointBytesPerParameter;
  plan.reliability = plan_reliability(static_cast<double>(devices), plan.checkpoint_bytes, storage.write_bandwidth, storage.read_bandwidth,
                                      request.cluster.mtbf_hours);
  if (storage.read_bandwidth > 0) plan.weights_load_seconds = 2 * parameters / storage.read_bandwidth;
  const double hours = plan.steps * plan.step.seconds / 3600 * static_cast<double>(devices) / std::max(plan.reliability.goodput, 1e-3);
  plan.cost = run_cost({.gpu_hours = hours, .num_devices = static_cast<double>(devices), .price_per_hour = request.cluster.price_per_hour,
                        .power_watts = request.cluster.device.power_watts, .pue = request.pue, .kg_co2_per_kwh = request.kg_co2_per_kwh});
  return plan;
}

}  // namespace sinter::plan
