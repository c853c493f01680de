#include "spec/trained_layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "spec/local_table.h"

namespace sinter::spec {
namespace {

struct Key {
  std::string text;  // "tp = 4"
  bool is_set = false, is_trained = false;
};

std::vector<Key> keys_of(const ParallelSpec& p) {
  auto number = [](const char* name, int64_t value, int64_t usual, bool is_trained) {
    return Key{fmt::format("{} = {}", name, value), value != usual, is_trained};
  };
  auto flag = [](const char* name, bool value, bool is_trained) {
    return Key{fmt::format("{} = true", name), value, is_trained};
  };
  return {
      number("dp", p.dp(), 0, true),
      number("replica", p.replica, p.zero == 0 ? p.replica : 1, true),
      number("zero", p.zero, 0, true),
      number("tp", p.tp, 1, true),
      flag("sequence_parallel", p.sequence_parallel, true),
      number("pp", p.pp, 1, true),
      {fmt::format("schedule = \"{}\"", pipeline_name(p.schedule)), p.schedule != PipelineKind::one_f_one_b, true},
      number("interleave", p.interleave, 1, true),
      number("cp", p.cp, 1, true),
      number("ep", p.ep, 1, p.dp() * p.cp % p.ep == 0),
      flag("offload_optimizer", p.offload.optimizer, true),
      flag("offload_gradients", p.offload.gradients, true),
      flag("offload_parameters", p.offload.parameters, true),
      flag("offload_activations", p.offload.activations, true),
  };
}

// The divisor of `whole` nearest below `wanted`.
int64_t divisor_below(int64_t whole, int64_t wanted) {
  while (whole % wanted != 0) --wanted;
  return wanted;
}

double octaves(int64_t a, int64_t b) {
  return std::abs(
      std::log2(static_cast<double>(std::max<int64_t>(a, 1)) / static_cast<double>(std::max<int64_t>(b, 1))));
}

// How much a user gives up with another layout.
double difference(const ParallelSpec& a, const ParallelSpec& b) {
  double sum = 0;
  for (const auto axis : {&ParallelSpec::tp, &ParallelSpec::pp, &ParallelSpec::cp, &ParallelSpec::ep,
                          &ParallelSpec::replica, &ParallelSpec::interleave})
    sum += 4 * octaves(a.*axis, b.*axis);
  sum += 4 * octaves(a.dp(), b.dp()) + 2 * std::abs(a.zero - b.zero) + (a.schedule != b.schedule);
  sum += 0.5 * (a.sequence_parallel != b.sequence_parallel);
  for (const auto part :
       {&OffloadSpec::optimizer, &OffloadSpec::gradients, &OffloadSpec::parameters, &OffloadSpec::activations})
    sum += a.offload.*part != b.offload.*part;
  return sum + octaves(a.micro_batch, b.micro_batch) + octaves(a.global_batch, b.global_batch);
}

// The multiple of `step` nearest to `wanted`.
int64_t nearest_multiple(int64_t wanted, int64_t step) {
  return std::max<int64_t>(1, (wanted + step / 2) / step) * step;
}

class NearestLayout {
 public:
  NearestLayout(const ParallelSpec& wanted, const ModelSpec& model) : wanted_(wanted), model_(model) {}

  std::optional<ParallelSpec> find() {
    const int64_t ranks = wanted_.ranks();
    for (int64_t tp = 1; tp <= ranks; ++tp) {
      if (ranks % tp != 0) continue;
      for (int64_t pp = 1; pp <= ranks / tp; ++pp) {
        if (ranks / tp % pp != 0) continue;
        for (int64_t cp = 1; cp <= ranks / tp / pp; ++cp) {
          if (ranks / tp / pp % cp == 0) divide_data(tp, pp, cp, ranks / tp / pp / cp);
        }
      }
    }
    std::stable_sort(axes_.begin(), axes_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [away, p] : axes_) {
      if (best_ && away >= distance_) break;
      choose_rest(p);
    }
    return best_;
  }

 private:
  void divide_data(int64_t tp, int64_t pp, int64_t cp, int64_t dp) {
    ParallelSpec p = wanted_;
    p.tp = tp, p.pp = pp, p.cp = cp;
    if (pp == 1) p.interleave = 1;
    for (p.replica = 1; p.replica <= dp; ++p.replica) {
      if (dp % p.replica != 0) continue;
      p.shard = dp / p.replica;
      for (p.ep = 1; p.ep <= std::max<int64_t>(model_.moe.num_experts, 1); ++p.ep) {
        if (p.ep == 1 || dp * cp % p.ep == 0) axes_.emplace_back(difference(p, wanted_), p);
      }
    }
  }

  // Schedule, ZeRO, offload and batch.
  void choose_rest(ParallelSpec p) {
    for (const PipelineKind schedule : {wanted_.schedule, PipelineKind::one_f_one_b}) {
      p.schedule = schedule;
      for (const int64_t interleave : {wanted_.interleave, int64_t{2}, int64_t{1}}) {
        p.interleave = schedule == PipelineKind::interleaved && p.pp > 1 ? interleave : 1;
        for (p.zero = 0; p.zero <= 3; ++p.zero) {
          for (const bool splits : {wanted_.sequence_parallel, false}) {
            p.sequence_parallel = splits;
            choose_offload(p);
          }
        }
      }
    }
  }

  void choose_offload(ParallelSpec p) {
    for (const bool keeps : {true, false}) {
      p.offload = keeps ? wanted_.offload : OffloadSpec{};
      for (const int64_t micro_batch : {wanted_.micro_batch, int64_t{1}}) {
        p.micro_batch = micro_batch;
        const int64_t passes = p.schedule == PipelineKind::interleaved ? p.pp : 1;
        p.global_batch = nearest_multiple(wanted_.global_batch, micro_batch * p.dp() * passes);
        consider(p);
      }
    }
  }

  void consider(const ParallelSpec& p) {
    const double away = difference(p, wanted_);
    if (best_ && away >= distance_) return;
    if (!layout_problem(p, model_).empty() || !trained_problem(p, model_).empty()) return;
    best_ = p;
    distance_ = away;
  }

  const ParallelSpec& wanted_;
  const ModelSpec& model_;
  std::vector<std::pair<double, ParallelSpec>> axes_;  // with how far they are from what is wanted
  std::optional<ParallelSpec> best_;
  double distance_ = 0;
};

}  // namespace

std::optional<ParallelSpec> nearest_layout(const ParallelSpec& layout, const ModelSpec& model) {
  constexpr int64_t kMostRanks = 4096;  // beyond it the search takes seconds
  if (layout.ranks() < 1 || layout.ranks() > kMostRanks) return std::nullopt;
  return NearestLayout(layout, model).find();
}

void check_trained(const ParallelSpec& layout, const ModelSpec& model) {
  std::string problem = layout_problem(layout, model);
  if (problem.empty()) problem = trained_problem(layout, model);
  if (problem.empty()) return;
  const std::optional<ParallelSpec> nearest = nearest_layout(layout, model);
  if (!nearest) base::fail("layout {}: {}", describe(layout), problem);
  std::string text = describe(*nearest);
  if (nearest->global_batch != layout.global_batch)
    text += fmt::format(" with train.batch_tokens = {}", nearest->global_batch * nearest->seq_len);
  base::fail("layout {}: {}. The nearest on {} rank{} that trains: {}", describe(layout), problem, layout.ranks(),
             layout.ranks() == 1 ? "" : "s", text);
}

std::string trained_problem(const ParallelSpec& p, const ModelSpec& model) {
  if (p.ep > 1 && p.dp() * p.cp % p.ep != 0) {
    return fmt::format("ep {} must divide dp {} x cp {} (experts are cut inside by tp); the nearest that does is {}",
                       p.ep, p.dp(), p.cp, divisor_below(p.dp() * p.cp, p.ep));
  }
  if (p.tp > 1 && vocab_range(model.vocab_size, p.tp, p.tp - 1).count <= 0) {
    return fmt::format("tp {} leaves a rank none of the {} tokens of the vocabulary; use tp 1", p.tp, model.vocab_size);
  }
  if (p.tp > 1 && model.moe.num_experts > 0 && model.moe.ffn % p.tp != 0) {
    return fmt::format("tp {} does not divide the experts' width {}; the nearest that does is {}", p.tp, model.moe.ffn,
                       divisor_below(model.moe.ffn, p.tp));
  }
  const int least_zero = p.offload.parameters ? 3 : p.offload.gradients ? 2 : p.offload.optimizer ? 1 : 0;
  if (p.dp() > 1 && p.zero < least_zero) {
    return fmt::format("what is offloaded is divided among the dp {} ranks first: zero {} does not, use zero {}",
                       p.dp(), p.zero, least_zero);
  }
  if (p.offload.activations && p.recompute != Recompute::full)
    return "offload_activations moves the inputs of blocks, which recompute = \"full\" keeps alone; use that";
  const bool divides_gradients = p.zero >= 2 || p.offload.gradients;
  if (p.schedule == PipelineKind::zero_bubble && p.pp > 1 && p.ep > 1 && divides_gradients) {
    return fmt::format(
        "zb-h1 with ep {} makes the experts' gradients out of turn, which {} divides after every pass; the nearest "
        "that works is schedule 1f1b, or zero 1",
        p.ep, p.offload.gradients ? "offload_gradients" : fmt::format("zero {}", p.zero));
  }
  if (p.sequence_parallel && p.micro_batch * p.seq_len / p.cp % p.tp != 0) {
    return fmt::format("sequence parallelism splits {} tokens of a micro-batch among tp {} x cp {} ranks; leave it out",
                       p.micro_batch * p.seq_len, p.tp, p.cp);
  }
  return "";
}

std::vector<std::string> untrained_keys(const ParallelSpec& layout) {
  std::vector<std::string> out;
  for (const Key& key : keys_of(layout)) {
    if (key.is_set && !key.is_trained) out.push_back(key.text);
  }
  return out;
}

std::vector<std::string> layout_keys(const ParallelSpec& layout) {
  std::vector<std::string> out;
  for (const Key& key : keys_of(layout)) {
    if (key.is_set) out.push_back(key.text);
  }
  return out;
}

}  // namespace sinter::spec
