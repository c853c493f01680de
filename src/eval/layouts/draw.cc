#include "eval/layouts/draw.h"

#include <fmt/format.h>

#include <initializer_list>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "spec/trained_layouts.h"

namespace sinter::eval {
namespace {

constexpr int kMaxZero = 3;

// Axes that the trainer does, besides data parallelism, which takes the ranks that they leave.
struct Axis {
  const char* name;
  int64_t spec::ParallelSpec::*size;
};
constexpr Axis kAxes[] = {{"tp", &spec::ParallelSpec::tp},
                          {"pp", &spec::ParallelSpec::pp},
                          {"cp", &spec::ParallelSpec::cp},
                          {"replica", &spec::ParallelSpec::replica}};

class Dice {
 public:
  Dice(uint64_t seed, uint64_t stream) : rng_{seed, stream} {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(rng_.bits64(next_++) % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(int64_t percent) { return between(0, 99) < percent; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  base::CounterRng rng_;
  uint64_t next_ = 0;
};

int64_t divisor_of(Dice& dice, int64_t n) {
  int64_t d = dice.between(1, n);
  while (n % d != 0) --d;
  return d;
}

// 6 to 9 layers, so that few numbers of stages divide them; 8 heads over 2; a prime vocabulary.
void draw_model(Dice& dice, spec::ModelRecipe& m) {
  m.family = dice.one_of({"gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"});
  m.vocab_size = 509;
  m.layers = dice.between(6, 9);
  m.heads = 8;
  m.hidden = 64;
  m.kv_heads = m.family == "gpt2" ? 8 : dice.one_of({2, 2, 4, 1});
  if (m.family == "mistral" && dice.chance(50)) m.window = dice.between(5, 40);
  m.ffn = 96;
  m.tied_head = dice.chance(50);
  m.dropout = dice.chance(25) ? 0.1 : 0.0;
  m.mtp_heads = dice.chance(15) ? 1 : 0;
  if (m.family == "mixtral" || m.family == "qwen3_moe") {
    m.experts = 4;
    m.experts_per_token = 2;
    m.expert_ffn = 32;
  }
}

void draw_training(Dice& dice, spec::Recipe& r) {
  r.data.sequence_length = 32;
  r.data.packing = dice.chance(60) ? spec::Packing::documents : spec::Packing::stream;
  r.train.micro_batch = dice.between(1, 2);
  r.train.steps = 5;
  r.train.seed = dice.between(1, 1000000);
  r.train.threads = 1;
  r.train.precision = dice.chance(80) ? base::DType::f32 : dice.chance(70) ? base::DType::bf16 : base::DType::f16;
  if (r.train.precision == base::DType::bf16 && dice.chance(40)) r.train.gradients = base::DType::bf16;
  r.train.recompute =
      dice.one_of({spec::Recompute::none, spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full});
  using Kind = spec::OptimizerKind;
  r.optimizer.kind = dice.one_of({Kind::adamw, Kind::adamw, Kind::adam, Kind::sgd, Kind::muon});
  r.optimizer.lr = 1e-3;
  r.optimizer.eps = 1e-5;  // else the first steps are signs of gradients, where rounding decides
  r.optimizer.clip = dice.chance(70) ? 1.0 : 0.0;
  r.schedule.kind = spec::ScheduleKind::constant;
  r.checkpoint.exports = spec::ExportFormat::f32;
  r.checkpoint.background = dice.chance(50);
  r.parallel.bucket_mib = dice.one_of({0.01, 0.1, 4.0});
}

// What the rest of a case asks of its layouts.
struct Needs {
  const spec::ModelSpec& model;
  int64_t ranks, micro_batch, seq_len;
  spec::Recompute recompute;
  base::DType gradients;
};

spec::ParallelSpec draw_sizes(Dice& dice, const Needs& needs) {
  spec::ParallelSpec p;
  // Mostly all of them: the more divisors, the more axes.
  int64_t left = needs.ranks < 2 || dice.chance(60) ? needs.ranks : dice.between(2, needs.ranks);
  const int64_t first = dice.between(0, 3);  // else the first axes would be the widest
  for (int64_t i = 0; i < 4; ++i) {
    const Axis& axis = kAxes[(first + i) % 4];
    p.*axis.size = dice.chance(50) ? divisor_of(dice, left) : 1;
    left /= p.*axis.size;
  }
  p.shard = left;
  p.zero = static_cast<int>(dice.between(0, kMaxZero));
  p.sequence_parallel = p.tp > 1 && dice.chance(50);
  p.context = dice.one_of({spec::ContextKind::ring, spec::ContextKind::gather});
  if (p.pp > 1) {
    p.schedule = dice.one_of({spec::PipelineKind::one_f_one_b, spec::PipelineKind::gpipe,
                              spec::PipelineKind::interleaved, spec::PipelineKind::zero_bubble});
    if (p.schedule == spec::PipelineKind::interleaved) p.interleave = dice.between(1, 3);
  }
  if (needs.model.moe.num_experts > 0 && dice.chance(60)) p.ep = dice.one_of({2, 4});
  p.expert_capacity = dice.one_of({1.0, 1.25});
  p.micro_batch = needs.micro_batch;
  p.seq_len = needs.seq_len;
  // Sequences of a step: a multiple of this many micro-batches.
  p.global_batch = p.micro_batch * p.dp() * (p.pp > 1 ? p.pp : 1) * dice.between(1, 2);
  p.recompute = needs.recompute;
  p.main_gradients = needs.gradients;
  if (dice.chance(20)) {
    p.offload.optimizer = dice.chance(60);
    p.offload.gradients = dice.chance(50);
    p.offload.parameters = dice.chance(50);
    p.offload.activations = dice.chance(50);
  }
  return p;
}

// Draws until a layout is valid; notes why others were not.
spec::ParallelSpec draw_layout(Dice& dice, const Needs& needs, std::vector<std::string>& excluded) {
  for (;;) {
    const spec::ParallelSpec p = draw_sizes(dice, needs);
    std::string problem = spec::layout_problem(p, needs.model);
    if (problem.empty()) problem = spec::trained_problem(p, needs.model);
    if (problem.empty()) return p;
    excluded.push_back(spec::describe(p) + ": " + problem);
  }
}

struct NamedAxis {
  const char* name;
  bool (*is_used)(const spec::ParallelSpec& p);
};
constexpr NamedAxis kNamedAxes[] = {
    {"dp", [](const spec::ParallelSpec& p) { return p.dp() > 1; }},
    {"tp", [](const spec::ParallelSpec& p) { return p.tp > 1; }},
    {"sp", [](const spec::ParallelSpec& p) { return p.sequence_parallel; }},
    {"pp", [](const spec::ParallelSpec& p) { return p.pp > 1; }},
    {"cp", [](const spec::ParallelSpec& p) { return p.cp > 1; }},
    {"ep", [](const spec::ParallelSpec& p) { return p.ep > 1; }},
    {"zero", [](const spec::ParallelSpec& p) { return p.zero > 0 && p.shard > 1; }},
    {"replica", [](const spec::ParallelSpec& p) { return p.zero > 0 && p.shard > 1 && p.replica > 1; }},
    {"offload", [](const spec::ParallelSpec& p) { return p.offload.has_state() || p.offload.activations; }},
};

LayoutCase draw_any(Dice dice, int64_t ranks, bool in_pairs) {
  LayoutCase c;
  draw_model(dice, c.recipe.model);
  draw_training(dice, c.recipe);
  const spec::ModelSpec model = spec::make_model_spec(c.recipe, 0);
  const Needs needs{model,
                    ranks,
                    c.recipe.train.micro_batch,
                    c.recipe.data.sequence_length,
                    c.recipe.train.recompute,
                    c.recipe.train.gradients};
  c.layout = draw_layout(dice, needs, c.excluded);
  c.is_resumed = dice.chance(40) || in_pairs;
  std::vector<std::string> unused;
  c.second = draw_layout(dice, needs, c.is_resumed ? c.excluded : unused);
  // A batch that both divide, in whole micro-batches and, for pipelines, as many as they have stages.
  int64_t sequences = c.layout.global_batch;
  if (c.is_resumed) sequences = std::lcm(sequences, c.second.global_batch);
  c.recipe.train.batch_tokens = sequences * c.recipe.data.sequence_length;
  return c;
}

}  // namespace

std::vector<std::string> layout_axes() {
  std::vector<std::string> names;
  for (const NamedAxis& axis : kNamedAxes) names.emplace_back(axis.name);
  return names;
}

LayoutCase draw_layout_case(uint64_t seed, uint64_t index, int64_t ranks, const LayoutDraw& options) {
  constexpr uint64_t kMostDraws = 10000;
  for (uint64_t draw = 0; draw < kMostDraws; ++draw) {
    LayoutCase c = draw_any(Dice(seed, index + (draw << 32)), ranks, options.in_pairs);
    for (const NamedAxis& axis : kNamedAxes) {
      if (options.axis.empty() || (options.axis == axis.name && axis.is_used(c.layout))) return c;
    }
  }
  base::fail("no layout of {} rank{} uses {}; launch more", ranks, ranks == 1 ? "" : "s", options.axis);
}

std::string describe(const LayoutCase& c) {
  const spec::Recipe& r = c.recipe;
  constexpr const char* kKinds[] = {"sgd", "adam", "adamw", "muon"};
  std::string text = fmt::format("{} x{} {} {}{}{}{}, {} rank{}: {}", r.model.family, r.model.layers,
                                 base::dtype_name(r.train.precision), kKinds[static_cast<int>(r.optimizer.kind)],
                                 r.model.dropout > 0 ? " dropout" : "", r.model.tied_head ? " tied" : "",
                                 r.model.mtp_heads > 0 ? " mtp" : "", c.layout.ranks(),
                                 c.layout.ranks() == 1 ? "" : "s", spec::describe(c.layout));
  if (c.is_resumed) text += fmt::format(", then {}: {}", c.second.ranks(), spec::describe(c.second));
  return text;
}

}  // namespace sinter::eval
