#include "tune/run/reward_model.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "comm/together.h"
#include "core/host_copy.h"
#include "data/tokenize.h"
#include "io/tensor_folder.h"
#include "models/weights.h"
#include "spec/hf_config.h"
#include "tune/adapter/merge.h"
#include "tune/adapter/peft.h"
#include "tune/objectives/preference.h"
#include "tune/run/preference_batches.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {

namespace fs = std::filesystem;

namespace {

constexpr float kScoreDeviation = 0.02f;

}  // namespace

spec::ModelSpec reward_trunk(spec::ModelSpec model) {
  model.tied_head = true;
  model.mtp_heads = 0;
  return model;
}

std::vector<spec::ParameterSpec> make_reward_table(const spec::ModelSpec& trunk) {
  std::vector<spec::ParameterSpec> table = spec::make_parameter_table(trunk);
  for (spec::ParameterSpec& p : scalar_head_table(kScore, trunk, kScoreDeviation)) table.push_back(std::move(p));
  return table;
}

spec::ModelSpec read_classifier_spec(const std::string& folder) {
  nlohmann::json config = base::load_json(folder + "/config.json");
  auto name = config.at("architectures").at(0).get<std::string>();
  const size_t at = name.find("ForSequenceClassification");
  SINTER_CHECK(at != std::string::npos, "'{}': the architecture '{}' is no sequence classifier", folder, name);
  config["architectures"] = {name.substr(0, at) + "ForCausalLM"};
  config["tie_word_embeddings"] = true;  // there is no other head
  return reward_trunk(spec::parse_hf_config(config, folder + "/config.json"));
}

namespace {

// From a language model's folder, whose head is left out and a score is drawn, or from a reward model's.
void load_reward_weights(models::ParameterStore& store, const std::string& folder, uint64_t seed) {
  const io::TensorFolder tensors(folder);
  std::set<std::string> used;
  for (models::ParameterStore::Slot& slot : store.slots()) {
    if (slot.info.role != spec::ParameterRole::adapter) models::load_plain_slot(store, slot, tensors, used);
  }
  for (models::ParameterStore::Slot& slot : store.slots()) {
    if (slot.info.name == kScore.weight) store.draw(slot, seed);
  }
  if (!tensors.find(kScore.weight)) return;
  for (models::ParameterStore::Slot& slot : store.slots()) {
    if (slot.info.name == kScore.weight)
      store.set(slot, models::read_plain_part(slot.info, {kScore.weight, 0, 1}, tensors));
  }
}

class ModelReward final : public Reward {
 public:
  ModelReward(models::OpenModel model, int64_t batch_tokens) : model_(std::move(model)), batch_tokens_(batch_tokens) {}

  std::vector<double> score(std::span<const RewardInput> inputs) override {
    std::vector<double> rewards;
    for (size_t begin = 0; begin < inputs.size();) {
      data::MicroBatch batch;
      size_t end = begin;
      for (; end < inputs.size(); ++end) {
        std::vector<int32_t> ids(inputs[end].prompt_ids.begin(), inputs[end].prompt_ids.end());
        ids.insert(ids.end(), inputs[end].ids.begin(), inputs[end].ids.end());
        if (end > begin && batch.num_tokens() + static_cast<int64_t>(ids.size()) > batch_tokens_) break;
        batch.add_sequence(ids);
      }
      batch.targets.assign(static_cast<size_t>(batch.num_tokens()), -1);
      const std::vector<float> scores = token_scalars(kScore, *model_.transformer, batch);
      for (size_t i = begin; i < end; ++i)
        rewards.push_back(static_cast<double>(scores[static_cast<size_t>(batch.offsets[i - begin + 1]) - 1]));
      begin = end;
    }
    return rewards;
  }

 private:
  const models::OpenModel model_;
  const int64_t batch_tokens_;
};

}  // namespace

models::OpenModel open_reward_model(const std::string& folder, const models::StoreOptions& options) {
  const bool is_adapter = is_adapter_folder(folder);
  const PeftConfig config = is_adapter ? read_peft_config(folder) : PeftConfig{};
  SINTER_CHECK(!is_adapter || config.is_classifier,
               "'{}' is an adapter of a language model; expected a sequence classifier's (task_type SEQ_CLS)", folder);
  const std::string base = is_adapter ? base_of(folder) : folder;
  models::OpenModel model;
  model.spec = is_adapter ? reward_trunk(models::load_model_spec(base)) : read_classifier_spec(base);
  std::vector<spec::ParameterSpec> table = make_reward_table(model.spec);
  if (is_adapter) {
    spec::AdapterSpec adapter = resolve_targets(config, model.spec);
    std::erase(adapter.modules_to_save, "score");
    table = spec::make_adapter_table(model.spec, adapter);
    for (spec::ParameterSpec& p : scalar_head_table(kScore, model.spec, 0, spec::kPeftPrefix))
      table.push_back(std::move(p));
  }
  model.store = std::make_unique<models::ParameterStore>(spec::whole_table(table), options);
  if (is_adapter) {
    load_base(*model.store, models::load_model_spec(base), base);  // its head is left out
    load_adapter(*model.store, folder);
  } else {
    load_reward_weights(*model.store, folder, 0);
  }
  model.transformer = std::make_unique<models::Transformer>(model.spec, *model.store);
  return model;
}

std::unique_ptr<Reward> make_model_reward(const std::string& folder, const models::StoreOptions& options,
                                          const tokenizer::Tokenizer& tokenizer, int64_t batch_tokens) {
  SINTER_CHECK(!folder.empty(), "a reward of kind model needs tune.reward_model, the folder of a sequence classifier");
  models::OpenModel model = open_reward_model(folder, options);
  SINTER_CHECK(tokenizer.vocab_size() <= model.spec.vocab_size,
               "tune.reward_model '{}' has {} tokens; the tokenizer has {}", folder, model.spec.vocab_size,
               tokenizer.vocab_size());
  if (fs::exists(folder + "/tokenizer.json")) {
    SINTER_CHECK(data::tokenizer_hash(tokenizer::Tokenizer::load(folder)) == data::tokenizer_hash(tokenizer),
                 "tune.reward_model '{}' has another tokenizer than the model that is tuned; it must be trained on the "
                 "same tokens",
                 folder);
  }
  return std::make_unique<ModelReward>(std::move(model), batch_tokens);
}

std::string reward_config(const spec::ModelSpec& model, const std::string& dtype, int32_t pad_token) {
  nlohmann::json config = spec::make_hf_config(model, dtype);
  auto name = config.at("architectures").at(0).get<std::string>();
  for (const char* end : {"ForCausalLM", "LMHeadModel"}) {
    if (const size_t at = name.find(end); at != std::string::npos) name.resize(at);
  }
  config["architectures"] = {name + "ForSequenceClassification"};
  config["id2label"] = {{"0", "LABEL_0"}};
  config["label2id"] = {{"LABEL_0", 0}};
  if (pad_token >= 0) config["pad_token_id"] = pad_token;
  return config.dump(2) + "\n";
}

void RewardObjective::forward(const train::ObjectivePass& pass) {
  const auto* batch = pass.host ? dynamic_cast<const PairBatch*>(pass.host->extra.get()) : nullptr;
  const ops::Context& context = pass.context;
  const bool learns = context.is_recording();
  if (batch && !learns && !is_validating_) validation_ = {};
  if (batch) is_validating_ = !learns;
  const autograd::Variable hidden =
      pass.transformer.forward(context, pass.batch, pass.dropout, nullptr, pass.places.balance);
  const int64_t T = pass.batch.num_tokens;
  const core::Tensor rewards = scalar_forward(context, kScore, pass.transformer, hidden);
  const core::Tensor slopes = learns ? context.make({T, 1}, hidden.value.dtype()) : core::Tensor();
  core::DeviceRuntime& device = core::runtime(context.stream.device);
  if (batch) {
    const std::vector<float> values = core::to_host<float>(rewards);
    const float scale = learns ? core::to_host<float>(pass.places.scale)[0] : 0;
    std::vector<float> losses(values.size(), 0.0f), d_rewards(values.size(), 0.0f);
    Sums& sums = learns ? sums_ : validation_;
    for (const PairBatch::Pair& pair : batch->pairs) {
      // The last token stands behind the last target's place.
      const auto good = static_cast<size_t>(pair.chosen.first + pair.chosen.count),
                 bad = static_cast<size_t>(pair.rejected.first + pair.rejected.count);
      const RewardTerms terms = reward_loss(values[good], values[bad], pair.margin, 0);
      losses[good] = static_cast<float>(terms.loss);
      d_rewards[good] = static_cast<float>(terms.d_chosen) * scale;
      d_rewards[bad] = static_cast<float>(terms.d_rejected) * scale;
      sums.pairs += 1;
      sums.right += values[good] > values[bad] ? 1 : 0;
      sums.margin += static_cast<double>(values[good]) - values[bad];
    }
    device.copy_to_device(pass.places.losses.raw(), losses.data(), pass.places.losses.bytes(), device.stream());
    std::vector<std::byte> bytes;
    if (learns) bytes = write_slopes(d_rewards, slopes);
    device.synchronize(device.stream());  // the vectors live until the copies are done
  }
  if (learns) record_scalar_backward(context, kScore, pass.transformer, hidden, slopes);
}

double RewardObjective::count(const data::MicroBatch& batch) const {
  const auto* pairs = dynamic_cast<const PairBatch*>(batch.extra.get());
  return pairs ? static_cast<double>(pairs->pairs.size()) : 0;
}

std::vector<train::Objective::Metric> RewardObjective::take_metrics() {
  const Sums s = std::exchange(sums_, {});
  return {{"accuracy", s.right, s.pairs},
          {"validation_accuracy", validation_.right, validation_.pairs},
          {"reward_margin", s.margin, s.pairs}};
}

namespace {

// All of the model trains: a sequence classifier's folder.
void plan_whole(train::RunPlan& plan, const spec::TuneRecipe& recipe) {
  const std::vector<spec::ParameterSpec> table = make_reward_table(plan.model);
  plan.tensors = table;
  plan.load_weights = [path = recipe.base.model.path, seed = static_cast<uint64_t>(recipe.base.train.seed)](
                          models::ParameterStore& store) { load_reward_weights(store, path, seed); };
  plan.export_model = [model = plan.model, table, pad = plan.tokenizer->special_ids().pad,
                       files = plan.tokenizer_files](const std::string& folder,
                                                     const std::vector<core::Tensor>& trained,
                                                     const models::ParameterStore&, core::DType dtype) {
    base::create_folders(folder);
    models::save_weights(table, trained, folder, dtype);
    const char* name = dtype == core::DType::bf16 ? "bfloat16" : dtype == core::DType::f16 ? "float16" : "float32";
    for (const train::NamedFile& file : files) base::write_file_atomic(folder + "/" + file.name, file.bytes);
    base::write_file_atomic(folder + "/config.json", reward_config(model, name, pad));
  };
}

}  // namespace

train::RunPlan make_reward_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  comm::together(mesh.all(), [&] {
    SINTER_CHECK(recipe.base.eval.tasks.empty() && recipe.base.log.sample_prompts.empty(),
                 "a reward model says nothing: leave out eval.tasks and log.sample_prompts");
    plan = begin_plan(recipe, mesh);
    plan.model = reward_trunk(plan.model);
    plan.objective = std::make_shared<RewardObjective>();
    const BatchSizes sizes = plan_preferences(plan, recipe, mesh, {});
    if (!recipe.has_adapter()) plan_whole(plan, recipe);
    // PEFT trains a classifier's score whole beside its adapter, and keeps it in the same file.
    MoreTensors score{.table = scalar_head_table(kScore, plan.model, kScoreDeviation, spec::kPeftPrefix),
                      .is_classifier = true};
    end_plan(plan, recipe, mesh, sizes, score);
  });
  return plan;
}

}  // namespace sinter::tune
