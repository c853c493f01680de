#include "eval/recipes/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "base/rng.h"
#include "data/token_shard.h"

namespace sinter::eval {
namespace {

// A sequence of draws from one counter-based stream.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t stream) : rng_{seed, stream} {}
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(rng_.bits64(next_++) % static_cast<uint64_t>(most - least + 1));
  }
  bool chance(double share) { return static_cast<double>(rng_.uniform(4 * next_++)) < share; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  base::CounterRng rng_;
  uint64_t next_ = 0;
};

int64_t divisor_of(Dice& dice, int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors[static_cast<size_t>(dice.between(0, static_cast<int64_t>(divisors.size()) - 1))];
}

// A GPU's tiles want larger shapes than the plain loops of the reference take in a second.
void draw_model(Dice& dice, bool is_large, spec::ModelRecipe& m) {
  m.family = dice.one_of({"gpt2", "llama", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"});
  const bool is_gpt2 = m.family == "gpt2", has_experts = m.family == "mixtral" || m.family == "qwen3_moe";
  m.vocab_size = is_large ? dice.one_of<int64_t>({97, 128, 509, 1031}) : dice.one_of<int64_t>({61, 97, 128, 257});
  m.layers = dice.between(1, is_large ? 3 : 2);
  m.heads = dice.one_of<int64_t>({1, 2, 3, 4, 6, 8});
  m.head_dim = dice.one_of<int64_t>({8, 16, 32, 48, 64, 96, 128});
  const int64_t most = is_large ? 512 : 256;
  if (m.heads * m.head_dim > most) m.heads = most / m.head_dim;
  m.hidden = is_gpt2 ? m.heads * m.head_dim : dice.one_of<int64_t>({32, 48, 64, 96, 128, is_large ? 192 : 80});
  m.kv_heads = is_gpt2 ? m.heads : divisor_of(dice, m.heads);
  m.ffn = dice.one_of<int64_t>({48, 64, 96, 160, is_large ? 256 : 80});
  m.tied_head = dice.chance(0.5);
  m.dropout = dice.chance(0.25) ? 0.1 : 0.0;
  m.mtp_heads = dice.chance(0.2) ? dice.between(1, 2) : 0;
  if ((m.family == "mistral" || m.family == "mixtral") && dice.chance(0.7)) m.window = dice.between(3, 90);
  if (has_experts) {
    m.experts = dice.between(2, 6);
    m.experts_per_token = dice.between(1, std::min<int64_t>(m.experts, 3));
    m.expert_ffn = dice.one_of<int64_t>({32, 48, 80});
    m.balance_loss = dice.one_of({0.01, 0.01, 0.0, 0.1});
  }
  m.norm_eps = dice.one_of({1e-5, 1e-6});
  if (!is_gpt2) m.rope_theta = dice.one_of({1e4, 1e4, 5e5, 100.0});
  m.init_std = dice.one_of({0.02, 0.02, 0.05});
  if (m.mtp_heads > 0) m.mtp_weight = dice.one_of({0.3, 1.0});
}

void draw_batch(Dice& dice, bool is_cpu, spec::Recipe& r) {
  r.data.sequence_length =
      is_cpu ? dice.one_of<int64_t>({16, 33, 48, 64, 100}) : dice.one_of<int64_t>({33, 64, 100, 128, 200, 512});
  r.data.packing = dice.chance(0.6) ? spec::Packing::documents : spec::Packing::stream;
  r.data.shuffle = dice.chance(0.7);
  if (dice.chance(0.3)) {
    r.data.validation_share = 0.1;
    r.log.eval_every = dice.between(1, 3);
    r.log.eval_batches = dice.between(1, 2);
  }
  r.train.micro_batch = dice.between(1, 3);
  const int64_t micro_batches = dice.between(1, 3), micro_tokens = r.data.sequence_length * r.train.micro_batch;
  r.train.batch_tokens = micro_tokens * micro_batches;
  if (micro_batches > 1 && dice.chance(0.4)) {
    r.train.ramp_from_tokens = micro_tokens;
    r.train.ramp_steps = dice.between(1, 4);
  }
  r.train.steps = 4;
  r.train.seed = dice.between(1, 1000000);
  // Longer than what is trained on, so that generation may go on.
  r.model.max_positions = r.data.sequence_length + (dice.chance(0.5) ? 60 : 0);
}

void draw_optimizer(Dice& dice, spec::OptimizerRecipe& o) {
  using Kind = spec::OptimizerKind;
  o.kind = dice.one_of({Kind::adamw, Kind::adamw, Kind::adam, Kind::sgd, Kind::muon});
  o.lr = 1e-3;
  // Else the first steps are signs of gradients, where rounding decides.
  if (o.kind != Kind::sgd) o.eps = 1e-5;
  o.clip = dice.one_of({1.0, 1.0, 0.1, 0.0});
  if (o.kind == Kind::sgd) {
    o.momentum = dice.one_of({0.9, 0.0});
  } else {
    o.beta1 = dice.one_of({0.9, 0.8});
    o.beta2 = dice.one_of({0.95, 0.999});
    if (dice.chance(0.15)) o.states = base::DType::bf16;
  }
  if (o.kind != Kind::adam) o.weight_decay = dice.one_of({0.1, 0.0});
  const bool is_adam = o.kind == Kind::adamw || o.kind == Kind::adam;
  if (is_adam && dice.chance(0.15)) o.states = base::DType::u8;
  if (o.kind == Kind::muon) o.muon_iterations = dice.between(3, 6);
}

void draw_training(Dice& dice, const DrawOptions& options, spec::Recipe& r) {
  draw_batch(dice, options.device == "cpu", r);
  const bool has_fp8 = options.device != "cpu";
  r.train.precision = dice.one_of({base::DType::f32, base::DType::f32, base::DType::bf16, base::DType::bf16,
                                   base::DType::f16, has_fp8 ? base::DType::f8e4m3 : base::DType::bf16});
  if (r.train.precision == base::DType::f16) r.train.loss_scale = 1024;
  if (r.train.precision == base::DType::bf16 && dice.chance(0.2)) r.train.gradients = base::DType::bf16;
  r.train.recompute =
      dice.one_of({spec::Recompute::none, spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full});
  draw_optimizer(dice, r.optimizer);
  using Schedule = spec::ScheduleKind;
  r.schedule.kind = dice.one_of({Schedule::cosine, Schedule::constant, Schedule::linear, Schedule::wsd});
  r.schedule.warmup = dice.between(0, 2);
  if (r.schedule.kind != Schedule::constant) r.schedule.final_ratio = dice.one_of({0.1, 0.0, 1.0});
  if (r.schedule.kind == Schedule::wsd) r.schedule.decay_share = dice.one_of({0.2, 0.6});
}

// fp8's products want multiples of 16 everywhere.
void round_for_fp8(spec::Recipe& r) {
  auto up = [](int64_t n) { return (n + 15) / 16 * 16; };
  r.model.head_dim = up(r.model.head_dim);
  r.model.hidden = r.model.family == "gpt2" ? r.model.heads * r.model.head_dim : up(r.model.hidden);
  r.data.sequence_length = up(r.data.sequence_length);
  r.train.batch_tokens = r.data.sequence_length * r.train.micro_batch;
  r.train.ramp_from_tokens = r.train.ramp_steps = 0;
  r.model.max_positions = r.data.sequence_length;
}

}  // namespace

spec::Recipe draw_recipe(const DrawOptions& options) {
  Dice dice(options.seed, options.index);
  spec::Recipe r;
  draw_model(dice, options.device != "cpu", r.model);
  draw_training(dice, options, r);
  if (r.train.precision == base::DType::f8e4m3) round_for_fp8(r);
  return r;
}

bool draws_two_sources(const spec::Recipe& recipe) { return recipe.train.seed % 4 == 0; }

std::string describe(const spec::Recipe& r) {
  const spec::ModelRecipe& m = r.model;
  std::string text = fmt::format("{} {}x{} H {}/{} D {} V {} T {}x{} {} {}", m.family, m.layers, m.hidden, m.heads,
                                 m.kv_heads, m.head_dim, m.vocab_size, r.train.micro_batch, r.data.sequence_length,
                                 r.data.packing == spec::Packing::documents ? "documents" : "stream",
                                 base::dtype_name(r.train.precision));
  if (m.experts > 0) text += fmt::format(" experts {}/{}", m.experts_per_token, m.experts);
  if (m.window > 0) text += fmt::format(" window {}", m.window);
  if (m.dropout > 0) text += " dropout";
  if (m.mtp_heads > 0) text += fmt::format(" mtp {}", m.mtp_heads);
  if (r.train.recompute != spec::Recompute::none)
    text += r.train.recompute == spec::Recompute::full ? " full" : " selective";
  if (r.train.batch_tokens > r.train.micro_batch * r.data.sequence_length)
    text += fmt::format(" x{}", r.train.batch_tokens / (r.train.micro_batch * r.data.sequence_length));
  if (r.train.ramp_steps > 0) text += fmt::format(" ramp {}", r.train.ramp_steps);
  if (r.train.gradients != base::DType::f32) text += " short gradients";
  constexpr const char* kKinds[] = {"sgd", "adam", "adamw", "muon"};
  constexpr const char* kSchedules[] = {"constant", "cosine", "linear", "wsd"};
  text += fmt::format(" {}", kKinds[static_cast<int>(r.optimizer.kind)]);
  if (r.optimizer.states != base::DType::f32) text += fmt::format(" {}", base::dtype_name(r.optimizer.states));
  return text + fmt::format(" {}", kSchedules[static_cast<int>(r.schedule.kind)]);
}

void write_random_shard(const std::string& path, int64_t vocab_size, uint64_t seed) {
  Dice dice(seed, 0x7ab1e5);
  data::TokenShardWriter writer(path, vocab_size, 0);
  while (writer.num_tokens() < 20000) {
    std::vector<int32_t> document(static_cast<size_t>(dice.chance(0.5) ? dice.between(1, 40) : dice.between(30, 400)));
    // Skewed, and each token leans on the one before, so that there is something to learn.
    int64_t last = 0;
    for (int32_t& token : document) {
      last = dice.chance(0.5) ? (last * 7 + 3) % vocab_size : dice.between(0, vocab_size - 1);
      token = static_cast<int32_t>(last);
    }
    writer.add_document(document);
  }
  writer.commit();
}

}  // namespace sinter::eval
