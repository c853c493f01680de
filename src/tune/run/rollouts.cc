#include "tune/run/rollouts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/together.h"
#include "engine/batch.h"
#include "engine/prompt.h"
#include "tune/data/pack.h"
#include "tune/run/log_probs.h"
#include "tune/run/reward_model.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxRunning = 64;  // answers that are sampled at once
constexpr int64_t kRoom = 32;        // tokens of a sequence's last block, and what a step looks ahead

RewardOptions reward_options(const std::string& name, const spec::TuneSection& tune) {
  RewardOptions options;
  options.kind = parse_reward_kind(name);
  options.field = tune.reward_field;
  options.extract = tune.reward_extract;
  options.pattern = tune.reward_pattern;
  options.schema = tune.reward_schema;
  options.command = tune.reward_command;
  options.longest = tune.max_new_tokens;
  options.cache = std::max<int64_t>(1, tune.max_new_tokens / 4);
  return options;
}

Json to_json(const Answer& a) {
  return {a.prompt,    a.tokens,    a.logprobs, a.is_finished, a.reward,
          a.advantage, a.reference, a.values,   a.advantages,  a.returns};
}
Answer from_json(const Json& a) { return {a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9]}; }

}  // namespace

RolloutBatches::RolloutBatches(std::vector<Prompt> prompts, const tokenizer::Tokenizer& tokenizer,
                               const spec::ModelSpec& model, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh)
    : prompts_(std::move(prompts)),
      tokenizer_(tokenizer),
      recipe_(recipe),
      mesh_(mesh),
      stop_tokens_(engine::stop_tokens(tokenizer, model)),
      order_({static_cast<int64_t>(prompts_.size())}, {1.0}, static_cast<uint64_t>(recipe.base.train.seed),
             recipe.base.data.shuffle) {
  for (const std::string& name : recipe.tune.rewards) {
    // A model's waits for the device: attach().
    const RewardOptions options = reward_options(name, recipe.tune);
    rewards_.push_back(options.kind == RewardKind::model ? nullptr : make_reward(options));
  }
  const int64_t ranks = mesh.data().size();
  SINTER_CHECK(recipe.tune.prompts % ranks == 0, "tune.prompts is {}, no multiple of the {} ranks", recipe.tune.prompts,
               ranks);
}

void RolloutBatches::attach(const models::Transformer& transformer) {
  transformer_ = &transformer;
  const models::StoreOptions& options = transformer.store().options();
  for (std::unique_ptr<Reward>& reward : rewards_) {
    if (!reward)
      reward = make_model_reward(recipe_.tune.reward_model, {.device = options.device, .compute = options.compute},
                                 tokenizer_, recipe_.base.train.micro_batch * recipe_.base.data.sequence_length);
  }
  if (recipe_.tune.kl > 0 && !has_adapter_reference(recipe_)) reference_ = open_reference(recipe_, transformer);
}

int64_t RolloutBatches::micro_batches() const {
  const int64_t B = recipe_.base.train.micro_batch;
  return (answers_of_a_rank() + B - 1) / B;
}

int64_t RolloutBatches::tokens_at(int64_t) const {
  return recipe_.tune.prompts * recipe_.tune.group * recipe_.base.data.sequence_length;
}

std::vector<data::MicroBatch> RolloutBatches::step(int64_t step) {
  const int64_t set = step / recipe_.tune.iterations;
  if (set != set_) {
    sample(set);
    set_ = set;
  }
  int64_t tokens = 0;
  for (const Answer& answer : answers_) tokens += is_learned(answer) ? static_cast<int64_t>(answer.tokens.size()) : 0;
  tokens = mesh_.data().sum(tokens);
  std::vector<data::MicroBatch> batches;
  for_batches([&](data::MicroBatch batch, size_t begin, const std::vector<int64_t>& firsts) {
    auto extra = std::make_shared<AnswerBatch>();
    extra->step_answers = recipe_.tune.prompts * recipe_.tune.group;
    extra->step_tokens = tokens;
    for (size_t i = 0; i < firsts.size(); ++i) {
      const Answer& answer = answers_[begin + i];
      extra->answers.push_back({firsts[i], answer, is_learned(answer)});
    }
    batch.extra = std::move(extra);
    batches.push_back(std::move(batch));
  });
  return batches;
}

std::string RolloutBatches::state() const {
  if (recipe_.tune.iterations == 1 || set_ < 0) return "";
  Json own = Json::array(), all = Json::array();
  for (const Answer& answer : answers_) own.push_back(to_json(answer));
  for (const std::string& text : mesh_.data().gather_texts(own.dump())) {
    for (Json& answer : Json::parse(text)) all.push_back(std::move(answer));
  }
  return Json{{"set", set_}, {"answers", std::move(all)}}.dump();
}

void RolloutBatches::set_state(const std::string& text) {
  if (text.empty()) return;
  const Json state = Json::parse(text, nullptr, false);
  SINTER_CHECK(state.is_object() && state.contains("set") && state.contains("answers"),
               "'source' does not hold the answers of a set");
  const Json& all = state["answers"];
  if (static_cast<int64_t>(all.size()) != recipe_.tune.prompts * recipe_.tune.group) return;  // another recipe's
  set_ = state["set"];
  answers_.clear();
  const auto own = static_cast<size_t>(answers_of_a_rank()), first = static_cast<size_t>(mesh_.data().rank()) * own;
  for (size_t i = first; i < first + own; ++i) answers_.push_back(from_json(all[i]));
}

// The prompts of a set on this rank.
std::vector<size_t> RolloutBatches::prompts_of(int64_t set) const {
  const int64_t own = recipe_.tune.prompts / mesh_.data().size(),
                first = set * recipe_.tune.prompts + mesh_.data().rank() * own;
  std::vector<size_t> chosen;
  for (int64_t i = 0; i < own; ++i) chosen.push_back(static_cast<size_t>(order_(first + i).index));
  return chosen;
}

void RolloutBatches::sample(int64_t set) {
  const spec::TuneSection& tune = recipe_.tune;
  std::vector<engine::Request> requests;
  answers_.clear();
  set_ = -1;
  int64_t tokens = 0;
  for (const size_t prompt : prompts_of(set)) {
    for (int64_t g = 0; g < tune.group; ++g) {
      engine::Request request;
      request.prompt = prompts_[prompt].ids;
      request.max_new_tokens = std::min(
          tune.max_new_tokens, recipe_.base.data.sequence_length - static_cast<int64_t>(request.prompt.size()));
      request.logprobs = 0;
      request.sampling.temperature = static_cast<float>(tune.temperature);
      request.sampling.seed =
          base::mix_bits(base::mix_bits(static_cast<uint64_t>(recipe_.base.train.seed), static_cast<uint64_t>(set)),
                         base::mix_bits(prompt, static_cast<uint64_t>(g)));
      tokens += static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens + kRoom;
      answers_.push_back({});
      answers_.back().prompt = prompt;
      requests.push_back(std::move(request));
    }
  }
  std::vector<double> rewards;
  // A reward that fails on one rank ends the run on all of them.
  comm::together(mesh_.data(), [&] {
    run_engine(std::move(requests), tokens);
    if (tune.kl > 0) refer();
    rewards = score();
  });
  judge(answers_, rewards, static_cast<int64_t>(rewards_.size()));
}

// Ends an answer behind its stop token, which is a token of it: the model learns to stop.
void RolloutBatches::run_engine(std::vector<engine::Request> requests, int64_t tokens) {
  engine::EngineOptions options;
  options.max_running = std::min<int64_t>(kMaxRunning, static_cast<int64_t>(requests.size()));
  options.kv_tokens = std::min<int64_t>(tokens, options.max_running * (recipe_.base.data.sequence_length + kRoom));
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
                 "[rollouts] {} log-probabilities of {} tokens", answer.logprobs.size(), answer.tokens.size());
    answer.is_finished =
        std::find(stop_tokens_.begin(), stop_tokens_.end(), answer.tokens.back()) != stop_tokens_.end();
  }
}

std::vector<double> RolloutBatches::score() {
  std::vector<std::string> texts;
  for (const Answer& answer : answers_) {
    std::vector<int32_t> ids = answer.tokens;
    if (answer.is_finished) ids.pop_back();
    texts.push_back(engine::continuation_text(tokenizer_, prompts_[answer.prompt].ids, ids));
  }
  std::vector<RewardInput> inputs;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const Prompt& prompt = prompts_[answers_[i].prompt];
    inputs.push_back({.prompt = prompt.text,
                      .completion = texts[i],
                      .row = prompt.row,
                      .prompt_ids = prompt.ids,
                      .ids = answers_[i].tokens,
                      .tokens = static_cast<int64_t>(answers_[i].tokens.size()),
                      .is_finished = answers_[i].is_finished});
  }
  const size_t functions = rewards_.size();
  std::vector<double> all(answers_.size() * functions);
  for (size_t f = 0; f < functions; ++f) {
    const std::vector<double> own = rewards_[f]->score(inputs);
    for (size_t i = 0; i < own.size(); ++i) all[i * functions + f] = own[i];
  }
  for (size_t i = 0; i < answers_.size(); ++i) {
    answers_[i].reward = 0;
    for (size_t f = 0; f < functions; ++f) {
      if (!std::isnan(all[i * functions + f])) answers_[i].reward += all[i * functions + f];
    }
  }
  return all;
}

void RolloutBatches::refer() {
  for_batches([&](const data::MicroBatch& batch, size_t begin, const std::vector<int64_t>& firsts) {
    const std::vector<float> logprobs = reference_.transformer ? token_logprobs(*reference_.transformer, batch)
                                                               : reference_logprobs(*transformer_, batch);
    for (size_t i = 0; i < firsts.size(); ++i) {
      Answer& answer = answers_[begin + i];
      const auto from = logprobs.begin() + firsts[i];
      answer.reference.assign(from, from + static_cast<ptrdiff_t>(answer.tokens.size()));
    }
  });
}

data::MicroBatch RolloutBatches::lay_out(size_t begin, size_t end, std::vector<int64_t>& firsts) const {
  const int64_t B = recipe_.base.train.micro_batch, T = recipe_.base.data.sequence_length;
  data::MicroBatch batch;
  for (size_t i = begin; i < end; ++i) {
    const Answer& answer = answers_[i];
    std::vector<int32_t> ids = prompts_[answer.prompt].ids;
    const int64_t first = batch.num_tokens() + static_cast<int64_t>(ids.size()) - 1;
    ids.insert(ids.end(), answer.tokens.begin(), answer.tokens.end());
    batch.add_sequence(ids);
    batch.targets.resize(static_cast<size_t>(batch.num_tokens()), -1);
    for (size_t t = 0; t < answer.tokens.size(); ++t) batch.targets[static_cast<size_t>(first) + t] = answer.tokens[t];
    batch.num_supervised += static_cast<int64_t>(answer.tokens.size());
    firsts.push_back(first);
  }
  pad_tokens(batch, B * T);
  batch.pad_sequences(B + 1);
  batch.weights.assign(static_cast<size_t>(B * T), 0.0f);
  return batch;
}

std::vector<Prompt> read_prompts(const Renderer& renderer, const spec::TuneRecipe& recipe) {
  std::vector<Prompt> prompts;
  int64_t bad = 0, too_long = 0, shortest = std::numeric_limits<int64_t>::max();
  std::string first;
  for (const Record& record : read_sources(recipe.base.data.sources, recipe)) {
    try {
      Prompt prompt = renderer.prompt(record);
      const int64_t tokens = static_cast<int64_t>(prompt.ids.size()) + recipe.tune.max_new_tokens;
      shortest = std::min(shortest, tokens);
      if (tokens > recipe.base.data.sequence_length) {
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
  check_any_learned(prompts.empty(), "prompt with tune.max_new_tokens", first, shortest, recipe);
  return prompts;
}

BatchSizes plan_rollouts(train::RunPlan& plan, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh,
                         const std::function<std::unique_ptr<RolloutBatches>(RolloutParts parts)>& make) {
  const spec::ParallelSpec& layout = mesh.layout();
  SINTER_CHECK(
      layout.tp == 1 && layout.pp == 1 && layout.cp == 1 && layout.ep == 1,
      "answers are sampled by ranks that have the whole model: use parallel.tp, pp, cp and ep 1 (found {}, {}, {} "
      "and {}), and ranks for data",
      layout.tp, layout.pp, layout.cp, layout.ep);
  // Divided weights are brought together by all ranks at once, and each samples as long as its own answers take.
  SINTER_CHECK(layout.zero < 3 || mesh.data().size() == 1,
               "answers are sampled by ranks that have the whole model: use parallel.zero 2 or less (found {})",
               layout.zero);
  SINTER_CHECK(recipe.base.data.validation.empty() && recipe.base.data.validation_share == 0,
               "verbs that sample answers do not read data.validation: the reward of every step is in the metrics");
  SINTER_CHECK(!recipe.tune.rewards.empty(),
               "tune.rewards is empty: answers that earn nothing teach nothing; rewards are {}",
               fmt::join(reward_names(), ", "));
  SINTER_CHECK(!recipe.counts_epochs || recipe.tune.epochs > 0, "sampling answers needs train.steps or tune.epochs");
  const RecipeRenderer renderer(*plan.tokenizer, recipe);
  std::vector<Prompt> prompts = read_prompts(*renderer, recipe);
  const auto count = static_cast<int64_t>(prompts.size());
  std::unique_ptr<RolloutBatches> source = make({std::move(prompts), *plan.tokenizer, plan.model});
  const spec::TuneSection& tune = recipe.tune;
  const int64_t sets =
      std::max<int64_t>(1, std::llround(tune.epochs * static_cast<double>(count) / static_cast<double>(tune.prompts)));
  plan.steps = recipe.base.train.steps > 0 ? recipe.base.train.steps : sets * tune.iterations;
  plan.data_text = fmt::format("steps      {} of {} prompts x {} answers of up to {} tokens\ndata       {} prompts\n",
                               base::format_grouped(plan.steps), tune.prompts, tune.group, tune.max_new_tokens,
                               base::format_grouped(count));
  const int64_t B = recipe.base.train.micro_batch;
  const BatchSizes sizes{B * recipe.base.data.sequence_length, B + 1, source->micro_batches(), true};
  plan.source = std::move(source);
  const std::string reference = tune.reference.empty() ? recipe.base.model.path : tune.reference;
  if (tune.kl > 0 && !has_adapter_reference(recipe))
    plan.more_memory.push_back({"weights of the reference", model_bytes(reference, plan)});
  if (std::find(tune.rewards.begin(), tune.rewards.end(), "model") != tune.rewards.end() && !tune.reward_model.empty())
    plan.more_memory.push_back({"weights of the reward model", model_bytes(tune.reward_model, plan)});
  const spec::ModelSpec& m = plan.model;
  const int64_t running = std::min<int64_t>(kMaxRunning, tune.prompts * tune.group / mesh.data().size());
  const int64_t width = recipe.base.train.precision == base::DType::f32 ? 4 : 2;
  plan.more_memory.push_back({"keys and values of answers, while they are sampled",
                              static_cast<size_t>(running * (recipe.base.data.sequence_length + kRoom) * 2 *
                                                  m.num_layers * m.num_kv_heads * m.head_dim * width)});
  return sizes;
}

}  // namespace sinter::tune
