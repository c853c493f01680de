// GRPO: answers sampled by the engine over the weights that are trained, rewarded, and learned from.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/together.h"
#include "data/sample_order.h"
#include "engine/batch.h"
#include "engine/prompt.h"
#include "models/open_model.h"
#include "tune/rewards/reward.h"
#include "tune/run/log_probs.h"
#include "tune/run/policy_objective.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

// An answer as it was sampled.
struct Answer {
  size_t prompt = 0;  // among the run's prompts
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  bool is_finished = false;
  double reward = 0, advantage = 0;
};

class RolloutBatches : public train::BatchSource {
 public:
  RolloutBatches(std::vector<Prompt> prompts, const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& model,
                 const spec::TuneRecipe& recipe, const parallel::Mesh& mesh)
      : prompts_(std::move(prompts)),
        tokenizer_(tokenizer),
        recipe_(recipe),
        mesh_(mesh),
        stop_tokens_(engine::stop_tokens(tokenizer, model)),
        order_({static_cast<int64_t>(prompts_.size())}, {1.0}, static_cast<uint64_t>(recipe.base.train.seed),
               recipe.base.data.shuffle) {
    for (const std::string& name : recipe.tune.rewards) {
      RewardOptions options;
      options.kind = parse_reward_kind(name);
      options.field = recipe.tune.reward_field;
      options.extract = recipe.tune.reward_extract;
      options.pattern = recipe.tune.reward_pattern;
      options.schema = recipe.tune.reward_schema;
      options.command = recipe.tune.reward_command;
      options.longest = recipe.tune.max_new_tokens;
      options.cache = recipe.tune.max_new_tokens / 4;
      rewards_.push_back(make_reward(options));
    }
    const int64_t ranks = mesh.data().size();
    SINTER_CHECK(recipe.tune.prompts % ranks == 0, "tune.prompts is {}, no multiple of the {} ranks",
                 recipe.tune.prompts, ranks);
  }

  void attach(const models::Transformer& transformer) override { transformer_ = &transformer; }

  int64_t answers_of_a_rank() const { return recipe_.tune.prompts * recipe_.tune.group / mesh_.data().size(); }
  int64_t micro_batches() const {
    const int64_t B = recipe_.base.train.micro_batch;
    return (answers_of_a_rank() + B - 1) / B;
  }

  std::vector<data::MicroBatch> step(int64_t step) override {
    const int64_t set = step / recipe_.tune.iterations;
    if (set != set_) {
      sample(set);
      set_ = set;
    }
    return make_batches();
  }
  const std::vector<data::MicroBatch>& validation() const override { return validation_; }
  int64_t tokens_at(int64_t) const override {
    return recipe_.tune.prompts * recipe_.tune.group * recipe_.base.data.sequence_length;
  }

  // The answers of a set that later steps learn from too.
  std::string state() const override {
    if (recipe_.tune.iterations == 1 || set_ < 0) return "";
    nlohmann::json answers = nlohmann::json::array();
    for (const Answer& a : answers_)
      answers.push_back({a.prompt, a.tokens, a.logprobs, a.is_finished, a.reward, a.advantage});
    return nlohmann::json{{"set", set_}, {"answers", answers}}.dump();
  }
  void set_state(const std::string& text) override {
    if (text.empty()) return;
    const nlohmann::json state = nlohmann::json::parse(text, nullptr, false);
    SINTER_CHECK(state.is_object() && state.contains("set") && state.contains("answers"),
                 "'source' does not hold the answers of a set");
    if (mesh_.data().size() > 1) return;  // each rank's are its own: they are sampled again
    set_ = state["set"];
    answers_.clear();
    for (const auto& a : state["answers"]) answers_.push_back({a[0], a[1], a[2], a[3], a[4], a[5]});
  }

 private:
  // The prompts of a set on this rank.
  std::vector<size_t> prompts_of(int64_t set) const {
    const int64_t own = recipe_.tune.prompts / mesh_.data().size(),
                  first = set * recipe_.tune.prompts + mesh_.data().rank() * own;
    std::vector<size_t> chosen;
    for (int64_t i = 0; i < own; ++i) chosen.push_back(static_cast<size_t>(order_(first + i).index));
    return chosen;
  }

  void sample(int64_t set) {
    const spec::TuneSection& tune = recipe_.tune;
    std::vector<engine::Request> requests;
    answers_.clear();
    int64_t tokens = 0;
    for (const size_t prompt : prompts_of(set)) {
      for (int64_t g = 0; g < tune.group; ++g) {
        engine::Request request;
        request.prompt = prompts_[prompt].ids;
        request.max_new_tokens = std::min(
            tune.max_new_tokens, recipe_.base.data.sequence_length - static_cast<int64_t>(request.prompt.size()));
        request.logprobs = 0;
        request.sampling.temperature = static_cast<float>(tune.temperature);
        // Of (seed, set, prompt's row, place in the group): the same on any number of ranks.
        request.sampling.seed =
            base::mix_bits(base::mix_bits(static_cast<uint64_t>(recipe_.base.train.seed), static_cast<uint64_t>(set)),
                           base::mix_bits(prompt, static_cast<uint64_t>(g)));
        tokens += static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens + 32;
        answers_.push_back({.prompt = prompt});
        requests.push_back(std::move(request));
      }
    }
    run_engine(std::move(requests), tokens);
    score();
  }

  // Ends an answer behind its stop token, which is a token of it: the model learns to stop.
  void run_engine(std::vector<engine::Request> requests, int64_t tokens) {
    engine::EngineOptions options;
    options.max_running = std::min<int64_t>(64, static_cast<int64_t>(requests.size()));
    options.kv_tokens = std::min<int64_t>(tokens, options.max_running * (recipe_.base.data.sequence_length + 32));
    options.tokenizer = &tokenizer_;
    options.vocab_limit = tokenizer_.vocab_size();
    engine::Engine engine(*transformer_, options);
    engine::BatchCallbacks callbacks;
    callbacks.on_token = [&](size_t, int32_t, int32_t token) {
      return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) == stop_tokens_.end();
    };
    const auto results = engine::run_batch(engine, std::move(requests), callbacks);
    for (size_t i = 0; i < results.size(); ++i) {
      const engine::Completion& completion = results[i].at(0);
      Answer& answer = answers_[i];
      SINTER_CHECK(completion.reason != engine::FinishReason::error, "an answer could not be sampled: {}",
                   completion.error);
      answer.tokens = completion.tokens;
      answer.logprobs.assign(completion.logprobs.begin(), completion.logprobs.end());
      SINTER_CHECK(!answer.tokens.empty() && answer.logprobs.size() == answer.tokens.size(),
                   "[grpo] {} log-probabilities of {} tokens", answer.logprobs.size(), answer.tokens.size());
      answer.is_finished =
          std::find(stop_tokens_.begin(), stop_tokens_.end(), answer.tokens.back()) != stop_tokens_.end();
    }
  }

  void score() {
    std::vector<std::string> texts;
    for (const Answer& answer : answers_) {
      std::vector<int32_t> ids = answer.tokens;
      if (answer.is_finished) ids.pop_back();
      texts.push_back(engine::continuation_text(tokenizer_, prompts_[answer.prompt].ids, ids));
    }
    std::vector<RewardInput> inputs;
    for (size_t i = 0; i < answers_.size(); ++i) {
      const Prompt& prompt = prompts_[answers_[i].prompt];
      inputs.push_back({prompt.text, texts[i], prompt.row, static_cast<int64_t>(answers_[i].tokens.size()),
                        answers_[i].is_finished});
    }
    const size_t functions = rewards_.size();
    std::vector<double> all(answers_.size() * functions);
    for (size_t f = 0; f < functions; ++f) {
      const std::vector<double> own = rewards_[f]->score(inputs);
      for (size_t i = 0; i < own.size(); ++i) all[i * functions + f] = own[i];
    }
    AdvantageOptions options;
    options.group = recipe_.tune.group;
    options.scale = recipe_.tune.advantages == "none"    ? RewardScale::none
                    : recipe_.tune.advantages == "batch" ? RewardScale::batch
                                                         : RewardScale::group;
    const std::vector<double> advantages = group_advantages(options, all, static_cast<int64_t>(functions));
    for (size_t i = 0; i < answers_.size(); ++i) {
      answers_[i].advantage = advantages[i];
      answers_[i].reward = 0;
      for (size_t f = 0; f < functions; ++f)
        if (!std::isnan(all[i * functions + f])) answers_[i].reward += all[i * functions + f];
    }
  }

  std::vector<data::MicroBatch> make_batches() const {
    const int64_t B = recipe_.base.train.micro_batch, T = recipe_.base.data.sequence_length;
    int64_t tokens = 0;
    for (const Answer& answer : answers_) tokens += static_cast<int64_t>(answer.tokens.size());
    tokens = mesh_.data().sum(tokens);
    std::vector<data::MicroBatch> batches;
    for (size_t begin = 0; begin < answers_.size(); begin += static_cast<size_t>(B)) {
      data::MicroBatch batch;
      auto extra = std::make_shared<AnswerBatch>();
      extra->step_answers = recipe_.tune.prompts * recipe_.tune.group;
      extra->step_tokens = tokens;
      for (size_t i = begin; i < std::min(answers_.size(), begin + static_cast<size_t>(B)); ++i)
        add_answer(batch, *extra, answers_[i]);
      if (const int64_t rest = B * T - batch.num_tokens(); rest > 0) {
        batch.add_sequence(std::vector<int32_t>(static_cast<size_t>(rest), 0));
        batch.targets.resize(static_cast<size_t>(B * T), -1);
      }
      batch.pad_sequences(B + 1);
      batch.weights.assign(static_cast<size_t>(B * T), 0.0f);
      if (recipe_.tune.kl > 0) add_reference(batch, *extra);
      batch.extra = std::move(extra);
      batches.push_back(std::move(batch));
    }
    return batches;
  }

  void add_answer(data::MicroBatch& batch, AnswerBatch& extra, const Answer& answer) const {
    std::vector<int32_t> ids = prompts_[answer.prompt].ids;
    const int64_t begin = batch.num_tokens(), first = begin + static_cast<int64_t>(ids.size()) - 1;
    ids.insert(ids.end(), answer.tokens.begin(), answer.tokens.end());
    batch.add_sequence(ids);
    batch.targets.resize(static_cast<size_t>(batch.num_tokens()), -1);
    for (size_t t = 0; t < answer.tokens.size(); ++t) batch.targets[static_cast<size_t>(first) + t] = answer.tokens[t];
    batch.num_supervised += static_cast<int64_t>(answer.tokens.size());
    extra.answers.push_back({first, answer.logprobs, {}, answer.advantage, answer.reward, answer.is_finished});
  }

  void add_reference(const data::MicroBatch& batch, AnswerBatch& extra) const {
    const std::vector<float> logprobs = reference_logprobs(*transformer_, batch);
    for (AnswerPlace& answer : extra.answers) {
      for (size_t i = 0; i < answer.old.size(); ++i)
        answer.reference.push_back(static_cast<double>(logprobs[static_cast<size_t>(answer.first) + i]));
    }
  }

  const std::vector<Prompt> prompts_;
  const tokenizer::Tokenizer& tokenizer_;
  const spec::TuneRecipe recipe_;
  const parallel::Mesh& mesh_;
  const std::vector<int32_t> stop_tokens_;
  const data::SampleOrder order_;
  std::vector<std::unique_ptr<Reward>> rewards_;
  const models::Transformer* transformer_ = nullptr;
  int64_t set_ = -1;  // whose answers are here
  std::vector<Answer> answers_;
  std::vector<data::MicroBatch> validation_;
};

GroupOptions group_options(const spec::TuneRecipe& recipe) {
  GroupOptions options;
  options.sequence_ratio = recipe.tune.rl_loss == "gspo";
  options.loss = parse_group_loss(options.sequence_ratio ? "grpo" : recipe.tune.rl_loss);
  options.epsilon = recipe.tune.clip_low;
  options.epsilon_high = recipe.tune.clip_high;
  options.beta = recipe.tune.kl;
  options.longest = recipe.tune.max_new_tokens;
  return options;
}

std::vector<Prompt> read_prompts(const Renderer& renderer, const spec::TuneRecipe& recipe) {
  std::vector<Prompt> prompts;
  int64_t bad = 0, too_long = 0;
  std::string first;
  for (const Record& record : read_sources(recipe.base.data.sources, recipe)) {
    try {
      Prompt prompt = renderer.prompt(record);
      if (static_cast<int64_t>(prompt.ids.size()) + recipe.tune.max_new_tokens > recipe.base.data.sequence_length) {
        ++too_long;
        continue;
      }
      prompts.push_back(std::move(prompt));
    } catch (const base::Error& e) {
      if (bad++ == 0) first = e.what();
    }
  }
  if (bad > 0) base::log_warning("{} rows are left out, the first: {}", bad, first);
  if (too_long > 0)
    base::log_warning("{} prompts leave no room for {} tokens in data.sequence_length {} and are left out", too_long,
                      recipe.tune.max_new_tokens, recipe.base.data.sequence_length);
  SINTER_CHECK(!prompts.empty(), "no prompt of data.sources can be used{}{}",
               first.empty() ? "" : ", the first: ", first);
  return prompts;
}

}  // namespace

train::RunPlan make_grpo_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  comm::together(mesh.all(), [&] {
    SINTER_CHECK(recipe.base.data.validation.empty() && recipe.base.data.validation_share == 0,
                 "grpo does not read data.validation: the reward of every step is in the metrics");
    SINTER_CHECK(recipe.tune.kl == 0 || recipe.has_adapter(),
                 "tune.kl needs a reference: tune an adapter, whose base it is, or set tune.kl = 0");
    SINTER_CHECK(!recipe.counts_epochs || recipe.tune.epochs > 0, "grpo needs train.steps or tune.epochs");
    plan = begin_plan(recipe, mesh);
    const RecipeRenderer renderer(*plan.tokenizer, recipe);
    std::vector<Prompt> prompts = read_prompts(*renderer, recipe);
    const auto count = static_cast<int64_t>(prompts.size());
    auto source = std::make_unique<RolloutBatches>(std::move(prompts), *plan.tokenizer, plan.model, recipe, mesh);
    const int64_t sets = std::max<int64_t>(
        1, std::llround(recipe.tune.epochs * static_cast<double>(count) / static_cast<double>(recipe.tune.prompts)));
    plan.steps = recipe.base.train.steps > 0 ? recipe.base.train.steps : sets * recipe.tune.iterations;
    plan.objective = std::make_shared<GroupPolicy>(group_options(recipe));
    plan.data_text = fmt::format("steps      {} of {} prompts x {} answers of up to {} tokens\ndata       {} prompts\n",
                                 base::format_grouped(plan.steps), recipe.tune.prompts, recipe.tune.group,
                                 recipe.tune.max_new_tokens, base::format_grouped(count));
    const int64_t B = recipe.base.train.micro_batch;
    const BatchSizes sizes{B * recipe.base.data.sequence_length, B + 1, source->micro_batches(), true};
    plan.source = std::move(source);
    end_plan(plan, recipe, mesh, sizes);
  });
  return plan;
}

}  // namespace sinter::tune
