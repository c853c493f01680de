#include "spec/recipe_check.h"

#include <sstream>

#include "base/error.h"

namespace sinter::spec {
namespace {

// With a path the model is its folder's: a key that would change it is not to be passed over in silence.
void check_model_of_path(const Recipe& recipe, const std::string& origin) {
  Recipe plain = recipe;
  plain.model = {.path = recipe.model.path, .random = recipe.model.random, .mtp_weight = recipe.model.mtp_weight};
  std::istringstream given_lines(recipe_to_toml(recipe)), plain_lines(recipe_to_toml(plain));
  std::string given, expected;
  while (std::getline(given_lines, given) && std::getline(plain_lines, expected)) {
    SINTER_CHECK(given == expected,
                 "{}: model.{} is given, but with model.path the model is that of '{}/config.json'; remove the key, or "
                 "model.path for a model of your own",
                 origin, given, recipe.model.path);
  }
}

// A key that is given, and that nothing reads beside the other keys, is a misunderstanding.
void check_idle_keys(const Recipe& r, const std::string& origin) {
  const Recipe plain;
  auto check = [&](bool is_read, const char* key, bool is_default, const char* reader) {
    SINTER_CHECK(is_read || is_default, "{}: {} is given, but only {} reads it; remove one of the two", origin, key,
                 reader);
  };
  const OptimizerRecipe &o = r.optimizer, &p = plain.optimizer;
  const bool is_muon = o.kind == OptimizerKind::muon, is_sgd = o.kind == OptimizerKind::sgd;
  check(is_sgd, "optimizer.momentum", o.momentum == p.momentum, "kind = \"sgd\"");
  check(is_muon, "optimizer.muon_lr", o.muon_lr == p.muon_lr, "kind = \"muon\"");
  check(is_muon, "optimizer.muon_momentum", o.muon_momentum == p.muon_momentum, "kind = \"muon\"");
  check(is_muon, "optimizer.muon_iterations", o.muon_iterations == p.muon_iterations, "kind = \"muon\"");
  check(!is_sgd, "optimizer.beta1", o.beta1 == p.beta1, "an optimizer other than sgd");
  check(!is_sgd, "optimizer.beta2", o.beta2 == p.beta2, "an optimizer other than sgd");
  check(!is_sgd, "optimizer.eps", o.eps == p.eps, "an optimizer other than sgd");
  check(o.kind != OptimizerKind::adam, "optimizer.weight_decay",
        o.weight_decay == p.weight_decay || o.weight_decay == 0, "an optimizer other than adam (adamw decays weights)");
  SINTER_CHECK(o.states != base::DType::u8 || o.kind == OptimizerKind::adam || o.kind == OptimizerKind::adamw,
               "{}: optimizer.states = \"8bit\" is of adam and adamw only; use \"bf16\", or another optimizer.kind",
               origin);
  const bool is_wsd = r.schedule.kind == ScheduleKind::wsd;
  check(is_wsd, "schedule.decay_share", r.schedule.decay_share == plain.schedule.decay_share, "kind = \"wsd\"");
  check(r.schedule.kind != ScheduleKind::constant, "schedule.final_ratio",
        r.schedule.final_ratio == plain.schedule.final_ratio, "a kind other than constant");
  const bool is_f16 = r.train.precision == base::DType::f16;
  check(is_f16, "train.loss_scale", r.train.loss_scale == plain.train.loss_scale, "train.precision = \"fp16\"");
  check(is_f16, "train.loss_scale_interval", r.train.loss_scale_interval == plain.train.loss_scale_interval,
        "train.precision = \"fp16\"");
  check(r.guard.on_outlier != GuardAction::off, "guard.max_z", r.guard.max_z == plain.guard.max_z,
        "an on_outlier other than off");
  if (r.model.path.empty()) {
    check(r.model.family != "gpt2", "model.rope_theta", r.model.rope_theta == plain.model.rope_theta,
          "a family with rotary positions (gpt2 learns its own)");
  }
  SINTER_CHECK(r.data.validation_share == 0 || r.data.validation.empty(),
               "{}: data.validation_share and data.validation are both given; keep one", origin);
}

}  // namespace

void check_recipe(const Recipe& r, const std::string& origin) {
  SINTER_CHECK(r.model.path.empty() != r.model.family.empty(),
               "{}: [model] needs either path (a Hugging Face folder) or family (an architecture written out){}",
               origin, r.model.path.empty() ? "" : ", not both");
  if (!r.model.path.empty()) check_model_of_path(r, origin);
  check_idle_keys(r, origin);
  SINTER_CHECK(r.train.steps > 0 || r.train.tokens > 0, "{}: [train] needs steps or tokens", origin);
  SINTER_CHECK(r.train.steps == 0 || r.train.tokens == 0, "{}: [train] has both steps and tokens; keep one", origin);
  SINTER_CHECK(!r.data.sources.empty(), "{}: [data] needs sources, a token shard or a text file", origin);
  SINTER_CHECK(!r.checkpoint.dir.empty(), "{}: checkpoint.dir is empty", origin);
  SINTER_CHECK((r.train.ramp_from_tokens > 0) == (r.train.ramp_steps > 0),
               "{}: a batch-size ramp needs both train.ramp_from_tokens and train.ramp_steps", origin);
  SINTER_CHECK(r.train.ramp_from_tokens <= r.train.batch_tokens || r.train.batch_tokens == 0,
               "{}: train.ramp_from_tokens is {}, above train.batch_tokens {}; a ramp begins with smaller batches",
               origin, r.train.ramp_from_tokens, r.train.batch_tokens);
  const bool has_validation = !r.data.validation.empty() || r.data.validation_share > 0;
  SINTER_CHECK(r.train.patience == 0 || (has_validation && r.log.eval_every > 0),
               "{}: train.patience counts validations, and there are none during the run; it needs data.validation or "
               "data.validation_share, and log.eval_every",
               origin);
  const EvalRecipe plain;
  SINTER_CHECK(!r.eval.tasks.empty() || (r.eval.every == 0 && r.eval.limit == 0 && r.eval.few_shot == plain.few_shot &&
                                         !r.eval.chat && !r.eval.allow_code && r.eval.data.empty()),
               "{}: [eval] names no tasks, such as tasks = [\"hellaswag\"]", origin);
  SINTER_CHECK(r.checkpoint.time_limit == 0 || r.checkpoint.time_limit > r.checkpoint.time_margin,
               "{}: checkpoint.time_limit is {} s, of which checkpoint.time_margin, {} s, is kept for the last "
               "checkpoint: no time is left to train; give it more, or less margin",
               origin, r.checkpoint.time_limit, r.checkpoint.time_margin);
}

}  // namespace sinter::spec
