#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "spec/trained_layouts.h"

namespace sinter::plan {
namespace {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    out.push_back(d);
    if (d != n / d) out.push_back(n / d);
  }
  std::sort(out.begin(), out.end());
  return out;
}

int64_t nearest_divisor(int64_t whole, int64_t wanted) {
  int64_t nearest = 1;
  for (int64_t d : divisors(whole)) {
    auto distance = [&](int64_t n) { return std::abs(std::log(double(n) / double(wanted))); };
    if (distance(d) < distance(nearest)) nearest = d;
  }
  return nearest;
}

// The part of a memory plan that takes most, for "does not fit" messages.
std::string_view largest_part(const MemoryParts& parts) {
  std::array<double, 8> values = part_values(parts);
  return kMemoryPartNames[static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin())];
}

class Search {
 public:
  explicit Search(const SearchRequest& request)
      : request_(request),
        model_(make_model_shape(request.model)),
        software_(find_software(request.software)),
        efficiency_(find_efficiency(request.cluster.device, request.software, request.format)) {
    result_.usable_bytes = request.memory_share * request.cluster.device.memory_bytes;
  }

  SearchResult run() {
    check_request();
    int64_t ranks = request_.cluster.num_devices;
    for (int64_t tp : divisors(ranks)) {
      if (!allowed(tp, request_.tp, request_.max_tp)) continue;
      for (int64_t pp : divisors(ranks / tp)) {
        if (!allowed(pp, request_.pp, request_.max_pp)) continue;
        for (int64_t cp : context_sizes(ranks / (tp * pp))) {
          for (int64_t ep : expert_sizes(ranks / (tp * pp))) visit_division(tp, pp, cp, ep);
        }
      }
    }
    finish();
    return std::move(result_);
  }

 private:
  static bool allowed(int64_t value, int64_t exact, int64_t largest) {
    return (exact == 0 || value == exact) && (largest == 0 || value <= largest);
  }

  void check_request() {
    const Cluster& cluster = request_.cluster;
    SINTER_CHECK(cluster.num_devices >= 1, "search: {} devices; expected at least 1", cluster.num_devices);
    SINTER_CHECK(request_.global_batch >= 1, "search: a global batch of {} sequences; expected at least 1",
                 request_.global_batch);
    SINTER_CHECK(request_.seq_len >= 1, "search: sequences of {} tokens; expected at least 1", request_.seq_len);
    // A width asked for by name must be possible at all: say so before searching.
    spec::ParallelSpec wanted;
    wanted.tp = std::max<int64_t>(1, request_.tp);
    wanted.pp = std::max<int64_t>(1, request_.pp);
    wanted.seq_len = request_.seq_len;
    std::string problem = spec::layout_problem(wanted, request_.model);
    if (!problem.empty()) base::fail_usage("search: {}", problem);
    for (auto [name, value] : {std::pair{"tp", request_.tp}, {"pp", request_.pp}, {"cp", request_.cp}}) {
      if (value <= 1 || cluster.num_devices % value == 0) continue;
      int64_t nearest = 1;
      for (int64_t d : divisors(cluster.num_devices)) {
        spec::ParallelSpec other = wanted;
        (name == std::string_view("tp") ? other.tp : name == std::string_view("pp") ? other.pp : other.cp) = d;
        if (!spec::layout_problem(other, request_.model).empty()) continue;
        if (std::abs(std::log(double(d) / double(value))) < std::abs(std::log(double(nearest) / double(value))))
          nearest = d;
      }
      base::fail_usage("search: {} {} does not divide {} devices; the nearest that does is {}", name, value,
                       cluster.num_devices, nearest);
    }
    check_division();
  }

  // Widths inside what tensor, pipeline and context parallelism leave.
  void check_division() const {
    const int64_t devices = request_.cluster.num_devices;
    const int64_t taken = std::max<int64_t>(1, request_.tp) * std::max<int64_t>(1, request_.pp);
    const int64_t cp = std::max<int64_t>(1, request_.cp);
    if (devices % (taken * cp) != 0) {
      base::fail_usage("search: tp x pp x cp = {} does not divide {} devices; the nearest that does is {}", taken * cp,
                       devices, nearest_divisor(devices, taken * cp));
    }
    const int64_t shard = request_.shard, ranks = devices / (taken * cp);
    if (shard > 0 && ranks % shard != 0) {
      base::fail_usage("search: shard {} does not divide {} data-parallel ranks; the nearest that does is {}", shard,
                       ranks, nearest_divisor(ranks, shard));
    }
    const int64_t ep = request_.ep, experts = model_.num_experts;
    if (ep > 1 && experts == 0) base::fail_usage("search: ep {}, but the model has no experts; leave ep out", ep);
    if (ep > 1 && experts % ep != 0) {
      base::fail_usage("search: ep {} does not divide {} experts; the nearest that does is {}", ep, experts,
                       nearest_divisor(experts, ep));
    }
    const int64_t micro = request_.micro_batch, batch = request_.global_batch;
    if (micro > 0 && batch % micro != 0) {
      base::fail_usage("search: micro-batch {} does not divide the batch of {} sequences; the nearest that does is {}",
                       micro, batch, nearest_divisor(batch, micro));
    }
  }

  // Context parallelism pays only when one sequence is too long for a device; short ones are not cut.
  std::vector<int64_t> context_sizes(int64_t room) const {
    if (request_.cp > 0) return {request_.cp};
    std::vector<int64_t> sizes{1};
    for (int64_t cp = 2; cp <= 64 && room % cp == 0 && request_.seq_len / cp >= 4096; cp *= 2) sizes.push_back(cp);
    return sizes;
  }

  std::vector<int64_t> expert_sizes(int64_t room) const {
    if (request_.ep > 0) return {request_.ep};
    std::vector<int64_t> sizes{1};
    for (int64_t ep = 2; ep <= model_.num_experts && room % ep == 0; ep *= 2) {
      if (model_.num_experts % ep == 0) sizes.push_back(ep);
    }
    return sizes;
  }

  // ZeRO groups: all data-parallel ranks, or only those that share a node with the rest as replicas.
  std::vector<int64_t> shard_sizes(int64_t dp, int64_t tp, int64_t cp) const {
    if (request_.shard > 0) return {request_.shard};
    std::vector<int64_t> sizes{dp};
    int64_t in_node = std::max<int64_t>(1, request_.cluster.per_node / (tp * cp));
    if (in_node > 1 && in_node < dp && dp % in_node == 0) sizes.push_back(in_node);
    return sizes;
  }

  void visit_division(int64_t tp, int64_t pp, int64_t cp, int64_t ep) {
    spec::ParallelSpec p = request_.base;
    p.tp = tp;
    p.pp = pp;
    p.cp = cp;
    p.ep = ep;
    p.sequence_parallel = tp > 1;
    p.seq_len = request_.seq_len;
    p.global_batch = request_.global_batch;
    p.interleave = 1;
    p.schedule = spec::PipelineKind::one_f_one_b;
    int64_t dp = request_.cluster.num_devices / (tp * pp * cp);
    if (dp < 1 || request_.cluster.num_devices % (tp * pp * cp) != 0) return;
    for (int zero = 0; zero <= 3; ++zero) {
      if (request_.zero >= 0 && zero != request_.zero) continue;
      if (zero > 0 && dp * cp == 1) continue;
      if (zero >= 2 && pp > 1) continue;  // gradients stay whole between the micro-batches of a pipeline
      for (int64_t shard : shard_sizes(dp, tp, cp)) {
        if (dp % shard != 0 || (zero == 0 && shard != dp)) continue;
        p.zero = zero;
        p.shard = zero == 0 ? 1 : shard;
        p.replica = dp / p.shard;
        visit_variants(p);
      }
    }
  }

  // Micro-batch, recompute and interleaving of one division; only the best stays.
  void visit_variants(spec::ParallelSpec p) {
    std::optional<Candidate> best;
    for (int64_t micro : {1, 2, 4, 8, 16}) {
      if (request_.micro_batch > 0 && micro != 1) continue;
      p.micro_batch = request_.micro_batch > 0 ? request_.micro_batch : micro;
      for (spec::Recompute recompute : recompute_modes()) {
        p.recompute = recompute;
        for (int64_t interleave : interleaves(p)) {
          p.interleave = interleave;
          p.schedule = interleave > 1 ? spec::PipelineKind::interleaved : spec::PipelineKind::one_f_one_b;
          visit(p, best);
        }
      }
    }
    if (best) result_.best.push_back(*best);
  }

  std::vector<spec::Recompute> recompute_modes() const {
    if (!request_.recompute.empty()) return request_.recompute;
    if (software_.flash_attention && software_.selective_matmul_share == 0 && !software_.selective_drops_norms) {
      return {spec::Recompute::none, spec::Recompute::full};  // selective has nothing left to drop
    }
    return {spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full};
  }

  std::vector<int64_t> interleaves(const spec::ParallelSpec& p) const {
    std::vector<int64_t> out{1};
    if (p.pp == 1 || model_.num_layers % p.pp != 0) return out;
    int64_t per_rank = model_.num_layers / p.pp, step = p.micro_batch * p.dp();
    if (p.global_batch % step != 0 || p.global_batch / step % p.pp != 0) return out;
    for (int64_t v : {2, 3, 4, 5, 6, 8}) {
      if (per_rank % v == 0) out.push_back(v);
    }
    return out;
  }

  void visit(const spec::ParallelSpec& p, std::optional<Candidate>& best) {
    if (request_.trained_only && !spec::untrained_keys(p).empty()) return;
    ++result_.considered;
    if (std::string problem = spec::layout_problem(p, request_.model); !problem.empty()) {
      reject(problem_class(problem), p);
      return;
    }
    StageMemory memory = plan_stage_memory(model_, p, software_, 0);
    if (p.pp > 1) {
      StageMemory last = plan_stage_memory(model_, p, software_, p.pp - 1);
      if (last.device.total() > memory.device.total()) memory = last;
    }
    if (memory.device.total() < result_.smallest_memory.device.total() || result_.smallest_memory.device.total() == 0) {
      result_.smallest = p;
      result_.smallest_memory = memory;
    }
    if (memory.device.total() > result_.usable_bytes) {
      reject(fmt::format("does not fit in memory, mostly {}", largest_part(memory.device)), p);
      return;
    }
    ++result_.fitting;
    StepEstimate step = plan_step(model_, p, request_.cluster, software_, efficiency_, request_.format);
    if (!best || step.seconds < best->step.seconds) best = Candidate{p, step, memory, ""};
  }

  // Messages that differ only in numbers are one reason.
  static std::string problem_class(const std::string& problem) {
    std::string head = problem.substr(0, problem.find(';'));
    std::string out;
    for (const char c : head) {
      const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
      if (is_digit && out.ends_with(' ')) out.pop_back();  // "tp 3 does not divide the 32 heads": without both numbers
      if (!is_digit) out += c;
    }
    return out;
  }

  void reject(const std::string& reason, const spec::ParallelSpec& p) {
    Rejection& entry = rejections_[reason];
    if (entry.count++ == 0) entry.example = p;
    entry.reason = reason;
  }

  void finish() {
    std::sort(result_.best.begin(), result_.best.end(),
              [](const Candidate& a, const Candidate& b) { return a.step.seconds < b.step.seconds; });
    prefer_fewer_nodes();
    // Without a layout that came as far as its memory, none is valid.
    result_.nothing_fits = result_.best.empty() && result_.smallest_memory.device.total() > 0;
    for (size_t i = 1; i < result_.best.size(); ++i) explain(result_.best[0], result_.best[i]);
    if (static_cast<int>(result_.best.size()) > request_.top) result_.best.resize(static_cast<size_t>(request_.top));
    for (auto& [reason, entry] : rejections_) result_.rejected.push_back(entry);
    std::stable_sort(result_.rejected.begin(), result_.rejected.end(),
                     [](const Rejection& a, const Rejection& b) { return a.count > b.count; });
  }

  void prefer_fewer_nodes() {
    std::vector<Ranked> ranked;
    for (const Candidate& c : result_.best) {
      ranked.push_back({c.step.seconds, tensor_nodes(c.parallel, request_.cluster)});
    }
    if (ranked.empty()) return;
    auto chosen = result_.best.begin() + static_cast<std::ptrdiff_t>(choose_layout(ranked));
    std::rotate(result_.best.begin(), chosen, chosen + 1);
  }

  // Which part of the step grew most against the best layout.
  void explain(const Candidate& best, Candidate& loser) const {
    if (loser.step.seconds < best.step.seconds) {
      loser.why =
          fmt::format("{:.1f} % faster by prediction, but tp over {} nodes, not {}: less certain than that",
                      100 * (1 - loser.step.seconds / best.step.seconds),
                      tensor_nodes(loser.parallel, request_.cluster), tensor_nodes(best.parallel, request_.cluster));
      return;
    }
    std::array<double, kNumTimeParts> a = part_values(best.step.time), b = part_values(loser.step.time);
    size_t worst = 0;
    for (size_t i = 1; i < a.size(); ++i) {
      if (b[i] - a[i] > b[worst] - a[worst]) worst = i;
    }
    double slower = loser.step.seconds / best.step.seconds - 1;
    loser.why = fmt::format("{:.1f} % slower: {} {} against {}", 100 * slower, kTimePartNames[worst],
                            base::format_duration(b[worst]), a[worst] > 0 ? base::format_duration(a[worst]) : "none");
  }

  const SearchRequest& request_;
  ModelShape model_;
  const Software& software_;
  Efficiency efficiency_;
  SearchResult result_;
  std::map<std::string, Rejection> rejections_;
};

}  // namespace

SearchResult search_layouts(const SearchRequest& request) { return Search(request).run(); }

int64_t tensor_nodes(const spec::ParallelSpec& parallel, const Cluster& cluster) {
  return (parallel.tp + cluster.per_node - 1) / std::max(1, cluster.per_node);
}

size_t choose_layout(const std::vector<Ranked>& layouts) {
  double fastest = 1e300;
  for (const Ranked& r : layouts) fastest = std::min(fastest, r.seconds);
  size_t chosen = 0;
  bool any = false;
  for (size_t i = 0; i < layouts.size(); ++i) {
    const Ranked &a = layouts[i], &b = layouts[chosen];
    if (a.seconds > (1 + kNodeMargin) * fastest) continue;
    if (!any || std::pair(a.tensor_nodes, a.seconds) < std::pair(b.tensor_nodes, b.seconds)) chosen = i, any = true;
  }
  return chosen;
}

}  // namespace sinter::plan
