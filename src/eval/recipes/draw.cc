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
  }
}

void draw_training(Dice& dice, const DrawOptions& options, spec::Recipe& r) {
  r.data.sequence_length = options.device == "cpu" ? dice.one_of<int64_t>({16, 33, 48, 64, 100})
                                                   : dice.one_of<int64_t>({33, 64, 100, 128, 200, 512});
  r.data.packing = dice.chance(0.6) ? spec::Packing::documents : spec::Packing::stream;
  r.train.micro_batch = dice.between(1, 3);
  r.train.batch_tokens = r.data.sequence_length * r.train.micro_batch * dice.between(1, 2);
  r.train.steps = 4;
  r.train.seed = dice.between(1, 1000000);
  const bool has_fp8 = options.device != "cpu";
  r.train.precision = dice.one_of({base::DType::f32, base::DType::f32, base::DType::bf16, base::DType::bf16,
                                   base::DType::f16, has_fp8 ? base::DType::f8e4m3 : base::DType::bf16});
  if (r.train.precision == base::DType::f16) r.train.loss_scale = 1024;
  if (r.train.precision == base::DType::bf16 && dice.chance(0.2)) r.train.gradients = base::DType::bf16;
  r.train.recompute =
      dice.one_of({spec::Recompute::none, spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full});
  using Kind = spec::OptimizerKind;
  r.optimizer.kind = dice.one_of({Kind::adamw, Kind::adamw, Kind::adam, Kind::sgd, Kind::muon});
  r.optimizer.lr = 1e-3;
  // Else the first steps are signs of gradients, where rounding decides.
  if (r.optimizer.kind != Kind::sgd) r.optimizer.eps = 1e-5;
  r.optimizer.clip = dice.chance(0.7) ? 1.0 : 0.0;
  if (r.optimizer.kind != Kind::sgd && dice.chance(0.15)) r.optimizer.states = base::DType::bf16;
  r.schedule.kind = dice.one_of({spec::ScheduleKind::cosine, spec::ScheduleKind::constant, spec::ScheduleKind::wsd});
}

// fp8's products want multiples of 16 everywhere.
void round_for_fp8(spec::Recipe& r) {
  auto up = [](int64_t n) { return (n + 15) / 16 * 16; };
  r.model.head_dim = up(r.model.head_dim);
  r.model.hidden = r.model.family == "gpt2" ? r.model.heads * r.model.head_dim : up(r.model.hidden);
  r.data.sequence_length = up(r.data.sequence_length);
  r.train.batch_tokens = r.data.sequence_length * r.train.micro_batch;
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
  constexpr const char* kKinds[] = {"sgd", "adam", "adamw", "muon"};
  return text + fmt::format(" {}", kKinds[static_cast<int>(r.optimizer.kind)]);
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
