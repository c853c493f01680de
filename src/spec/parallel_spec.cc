#include "spec/parallel_spec.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace sinter::spec {
namespace {

// The divisor of `whole` nearest to `wanted` by ratio.
int64_t nearest_divisor(int64_t whole, int64_t wanted) {
  int64_t best = 1;
  double best_distance = 1e300;
  for (int64_t divisor = 1; divisor * divisor <= whole; ++divisor) {
    if (whole % divisor != 0) continue;
    for (int64_t candidate : {divisor, whole / divisor}) {
      double distance = std::abs(std::log(static_cast<double>(candidate) / static_cast<double>(wanted)));
      if (distance < best_distance) best = candidate, best_distance = distance;
    }
  }
  return best;
}

bool splits_kv(const ModelSpec& model, int64_t tp) {
  return model.num_kv_heads % tp == 0 || tp % model.num_kv_heads == 0;
}

std::string tensor_problem(const ParallelSpec& p, const ModelSpec& model) {
  auto fits = [&](int64_t tp) {
    return model.num_heads % tp == 0 && splits_kv(model, tp) && (model.ffn == 0 || model.ffn % tp == 0);
  };
  if (fits(p.tp)) return "";
  int64_t nearest = 1;
  double best_distance = 1e300;
  for (int64_t tp = 1; tp <= model.num_heads; ++tp) {
    double distance = std::abs(std::log(static_cast<double>(tp) / static_cast<double>(p.tp)));
    if (fits(tp) && distance < best_distance) nearest = tp, best_distance = distance;
  }
  if (model.num_heads % p.tp != 0) {
    return fmt::format("tp {} does not divide the {} attention heads; the nearest that does is {}", p.tp,
                       model.num_heads, nearest);
  }
  if (!splits_kv(model, p.tp)) {
    return fmt::format("tp {} and the {} key/value heads do not divide each other; the nearest that does is {}", p.tp,
                       model.num_kv_heads, nearest);
  }
  return fmt::format("tp {} does not divide the MLP width {}; the nearest that does is {}", p.tp, model.ffn, nearest);
}

std::string pipeline_problem(const ParallelSpec& p, const ModelSpec& model) {
  if (p.interleave > 1 && p.schedule != PipelineKind::interleaved) {
    return fmt::format("interleave {} needs the schedule 'interleaved', found '{}'", p.interleave,
                       pipeline_name(p.schedule));
  }
  if (p.interleave > 1 && p.pp == 1) {
    return fmt::format("interleave {} needs a pipeline; pp is 1, use interleave 1", p.interleave);
  }
  int64_t chunks = p.pp * p.interleave;
  if (chunks > model.num_layers && p.pp <= model.num_layers && p.interleave > 1) {
    return fmt::format("pp {} x interleave {} is more pipeline chunks than the {} layers; use at most interleave {}",
                       p.pp, p.interleave, model.num_layers, model.num_layers / p.pp);
  }
  if (chunks > model.num_layers) {
    return fmt::format("pp {} x interleave {} is more pipeline chunks than the {} layers; use at most pp {}", p.pp,
                       p.interleave, model.num_layers, std::max<int64_t>(1, model.num_layers / p.interleave));
  }
  if (p.interleave > 1 && model.num_layers % chunks != 0) {
    return fmt::format("pp {} x interleave {} does not divide the {} layers; the nearest number of chunks is {}", p.pp,
                       p.interleave, model.num_layers, nearest_divisor(model.num_layers, chunks));
  }
  if (p.schedule == PipelineKind::interleaved && p.micro_batches() % p.pp != 0) {
    const int64_t step = p.micro_batch * p.dp() * p.pp;
    return fmt::format(
        "interleaved pipelines need a multiple of pp {} micro-batches; global batch {} gives {}, the nearest that fits "
        "is {}",
        p.pp, p.global_batch, p.micro_batches(), std::max<int64_t>(1, (p.global_batch + step / 2) / step) * step);
  }
  return "";
}

}  // namespace

const char* pipeline_name(PipelineKind kind) {
  switch (kind) {
    case PipelineKind::gpipe:
      return "gpipe";
    case PipelineKind::one_f_one_b:
      return "1f1b";
    case PipelineKind::interleaved:
      return "interleaved";
    case PipelineKind::zero_bubble:
      return "zb-h1";
  }
  return "?";
}

const char* recompute_name(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "?";
}

PipelineKind parse_pipeline(const std::string& text) {
  for (PipelineKind kind :
       {PipelineKind::gpipe, PipelineKind::one_f_one_b, PipelineKind::interleaved, PipelineKind::zero_bubble}) {
    if (text == pipeline_name(kind)) return kind;
  }
  base::fail("pipeline schedule '{}' is not known; expected gpipe, 1f1b, interleaved or zb-h1{}", text,
             base::did_you_mean(text, {"gpipe", "1f1b", "interleaved", "zb-h1"}));
}

Recompute parse_recompute(const std::string& text) {
  for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    if (text == recompute_name(recompute)) return recompute;
  }
  base::fail("recompute '{}' is not known; expected none, selective or full{}", text,
             base::did_you_mean(text, {"none", "selective", "full"}));
}

std::string describe(const ParallelSpec& p) {
  std::string text = fmt::format("dp{}", p.dp());
  if (p.shard > 1 && p.replica > 1) text += fmt::format(" (shard {} x replica {})", p.shard, p.replica);
  if (p.zero > 0 && p.dp() > 1) text += fmt::format(" zero{}", p.zero);
  if (p.tp > 1) text += fmt::format(" tp{}{}", p.tp, p.sequence_parallel ? "+sp" : "");
  if (p.pp > 1) {
    text += fmt::format(" pp{}", p.pp);
    if (p.interleave > 1) text += fmt::format("x{}", p.interleave);
    if (p.schedule == PipelineKind::gpipe || p.schedule == PipelineKind::zero_bubble)
      text += fmt::format(" {}", pipeline_name(p.schedule));
  }
  if (p.cp > 1) text += fmt::format(" cp{}{}", p.cp, p.context == ContextKind::gather ? " gather" : "");
  if (p.ep > 1) text += fmt::format(" ep{}", p.ep);
  text += fmt::format(" mb{}", p.micro_batch);
  if (p.recompute != Recompute::none) text += fmt::format(" recompute-{}", recompute_name(p.recompute));
  if (p.offload.optimizer || p.offload.gradients || p.offload.parameters || p.offload.activations) text += " offload";
  return text;
}

std::string layout_problem(const ParallelSpec& p, const ModelSpec& model) {
  struct Count {
    const char* name;
    int64_t value;
  };
  for (const Count& count :
       {Count{"shard", p.shard}, Count{"replica", p.replica}, Count{"tp", p.tp}, Count{"pp", p.pp},
        Count{"interleave", p.interleave}, Count{"cp", p.cp}, Count{"ep", p.ep}, Count{"micro_batch", p.micro_batch},
        Count{"global_batch", p.global_batch}, Count{"seq_len", p.seq_len}}) {
    if (count.value < 1) return fmt::format("{} is {}; expected at least 1", count.name, count.value);
    if (count.value > (int64_t{1} << 40)) return fmt::format("{} is {}, which is too large", count.name, count.value);
  }
  if (p.zero < 0 || p.zero > 3) return fmt::format("zero is {}; expected 0, 1, 2 or 3", p.zero);
  if (std::string problem = tensor_problem(p, model); !problem.empty()) return problem;
  if (p.sequence_parallel && p.seq_len % (p.tp * p.cp) != 0) {
    return fmt::format("sequence parallelism splits {} tokens among tp {} x cp {} ranks; make seq_len a multiple of {}",
                       p.seq_len, p.tp, p.cp, p.tp * p.cp);
  }
  int64_t batch_step = p.micro_batch * p.dp();
  if (p.global_batch % batch_step != 0) {
    const int64_t below = std::max<int64_t>(1, p.global_batch / batch_step) * batch_step;
    return fmt::format(
        "global batch {} (sequences of a step) is not a multiple of micro-batch {} x dp {}; the nearest{} is {}",
        p.global_batch, p.micro_batch, p.dp(), below < p.global_batch ? " below" : "", below);
  }
  if (std::string problem = pipeline_problem(p, model); !problem.empty()) return problem;
  if (p.cp > 1 && p.seq_len % (2 * p.cp) != 0) {
    return fmt::format("cp {} needs seq_len in 2 x cp pieces; {} is not a multiple of {}", p.cp, p.seq_len, 2 * p.cp);
  }
  if (p.ep > 1) {
    if (model.moe.num_experts == 0) return fmt::format("ep {} needs a mixture of experts; this model is dense", p.ep);
    if (model.moe.num_experts % p.ep != 0) {
      return fmt::format("ep {} does not divide the {} experts; the nearest that does is {}", p.ep,
                         model.moe.num_experts, nearest_divisor(model.moe.num_experts, p.ep));
    }
    if (p.dp() * p.cp * p.tp % p.ep != 0) {
      return fmt::format("ep {} does not divide dp {} x cp {} x tp {}; the nearest that does is {}", p.ep, p.dp(), p.cp,
                         p.tp, nearest_divisor(p.dp() * p.cp * p.tp, p.ep));
    }
  }
  return "";
}

void check_parallel_spec(const ParallelSpec& parallel, const ModelSpec& model) {
  std::string problem = layout_problem(parallel, model);
  SINTER_CHECK(problem.empty(), "layout {}: {}", describe(parallel), problem);
}

}  // namespace sinter::spec
