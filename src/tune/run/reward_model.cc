#include "tune/run/reward_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/together.h"
#include "core/host_copy.h"
#include "io/tensor_folder.h"
#include "models/weights.h"
#include "ops/linear.h"
#include "spec/hf_config.h"
#include "tune/objectives/preference.h"
#include "tune/run/preference_batches.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

constexpr float kScoreDeviation = 0.02f;
constexpr uint64_t kScoreStream = 0x73636f7265;  // "score"

}  // namespace

spec::ModelSpec reward_trunk(spec::ModelSpec model) {
  model.tied_head = true;
  model.mtp_heads = 0;
  return model;
}

std::vector<spec::Parameter> make_reward_table(spec::ModelSpec spec) {
  const spec::ModelSpec trunk = reward_trunk(std::move(spec));
  std::vector<spec::Parameter> table = spec::make_parameter_table(trunk);
  spec::Parameter score;
  score.name = kScoreName;
  score.shape = {1, trunk.hidden};
  score.parts = {{kScoreName, 0, 1}};
  score.role = spec::ParameterRole::head;
  score.init_std = kScoreDeviation;
  score.layer = trunk.num_layers;
  table.push_back(std::move(score));
  return table;
}

void load_reward_weights(models::ParameterStore& store, const spec::ModelSpec& model, const std::string& folder,
                         uint64_t seed) {
  const io::TensorFolder tensors(folder);
  std::set<std::string> used{"lm_head.weight"};
  for (models::ParameterStore::Slot& slot : store.slots()) {
    if (slot.info.name != kScoreName || tensors.find(kScoreName)) {
      models::load_plain_slot(store, slot, tensors, used);
      continue;
    }
    std::vector<float> values(static_cast<size_t>(model.hidden));
    const base::CounterRng random{seed, kScoreStream};
    for (size_t i = 0; i < values.size(); ++i) values[i] = kScoreDeviation * random.normal(i);
    store.set(slot, values);
  }
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
  autograd::Parameter& score = pass.transformer.store().get(kScoreName);
  const autograd::Variable hidden =
      pass.transformer.forward(context, pass.batch, pass.dropout, nullptr, pass.places.balance);
  const int64_t T = pass.batch.num_tokens;
  const core::Tensor rewards = context.make({T, 1}, core::DType::f32);
  ops::linear_forward(context, hidden.value, score, nullptr, {}, rewards);
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
    if (learns) {
      bytes.resize(slopes.bytes());
      base::convert_elements(core::DType::f32, d_rewards.data(), slopes.dtype(), bytes.data(), d_rewards.size());
      device.copy_to_device(slopes.raw(), bytes.data(), bytes.size(), device.stream());
    }
    device.synchronize(device.stream());  // the vectors live until the copies are done
  }
  if (!learns) return;
  context.tape->record([context, hidden, slopes, &score] {
    const core::Tensor gradient = context.make(hidden.value.shape(), hidden.value.dtype());
    ops::linear_backward(context, slopes, hidden.value, score, nullptr, {}, gradient);
    ops::accumulate(context, hidden, gradient);
  });
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

train::RunPlan make_reward_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  comm::together(mesh.all(), [&] {
    SINTER_CHECK(!recipe.has_adapter(), "a reward model trains whole: set adapter.kind = \"full\" (found \"{}\")",
                 recipe.adapter_kind);
    plan = begin_plan(recipe, mesh);
    const spec::ModelSpec model = plan.model;
    plan.model = reward_trunk(model);
    plan.objective = std::make_shared<RewardObjective>();
    const BatchSizes sizes = plan_preferences(plan, recipe, mesh, {});
    const std::vector<spec::Parameter> table = make_reward_table(model);
    plan.table = spec::whole_table(table);
    plan.load_weights = [model, path = recipe.base.model.path, seed = static_cast<uint64_t>(recipe.base.train.seed)](
                            models::ParameterStore& store) { load_reward_weights(store, model, path, seed); };
    plan.export_model = [model, table, pad = plan.tokenizer->special_ids().pad, files = plan.tokenizer_files](
                            const std::string& folder, const std::vector<core::Tensor>& trained,
                            const models::ParameterStore&, core::DType dtype) {
      base::create_folders(folder);
      models::save_weights(table, trained, folder, dtype);
      const char* name = dtype == core::DType::bf16 ? "bfloat16" : dtype == core::DType::f16 ? "float16" : "float32";
      for (const train::NamedFile& file : files) base::write_file_atomic(folder + "/" + file.name, file.bytes);
      base::write_file_atomic(folder + "/config.json", reward_config(model, name, pad));
    };
    end_plan(plan, recipe, mesh, sizes);
  });
  return plan;
}

}  // namespace sinter::tune
