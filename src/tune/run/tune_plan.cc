#include "tune/run/tune_plan.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "io/tensor_folder.h"
#include "models/open_model.h"
#include "models/quantized/quantized_folder.h"
#include "models/weights.h"
#include "spec/hf_config.h"
#include "tune/adapter/peft.h"

namespace sinter::tune {

namespace fs = std::filesystem;

namespace {

// The adapter a run trains: the recipe's, or that of the folder it goes on from.
spec::AdapterSpec adapter_of(const spec::TuneRecipe& recipe) {
  return recipe.adapter_from.empty() ? recipe.adapter : read_peft_config(recipe.adapter_from).adapter;
}

// A path that still leads to the base from a checkpoint's folder.
std::string lasting_path(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

using QuantizedBase = std::unique_ptr<models::QuantizedFolder>;
QuantizedBase open_quantized(const std::string& base, const io::TensorFolder& folder) {
  const std::string path = base + "/config.json";
  return models::QuantizedFolder::open(nlohmann::json::parse(base::read_file(path)), path, folder);
}

}  // namespace

std::set<std::string> tensors_apart(const std::string& base, const spec::ModelSpec& model) {
  const io::TensorFolder folder(base);
  const QuantizedBase quantized = open_quantized(base, folder);
  return quantized ? quantized->tensors_apart(model) : std::set<std::string>();
}

void load_base(models::ParameterStore& store, const spec::ModelSpec& model, const std::string& base) {
  const io::TensorFolder folder(base);
  const QuantizedBase quantized = open_quantized(base, folder);
  if (quantized) return quantized->load(store, model);
  models::load_weights(store, model, folder);
}

namespace {

void plan_adapter(train::RunPlan& plan, const spec::TuneRecipe& recipe) {
  plan.model.moe.balance_loss = 0;  // of a frozen router there is nothing to balance
  const spec::AdapterSpec adapter = adapter_of(recipe);
  const std::vector<spec::Parameter> table = spec::make_adapter_table(plan.model, adapter);
  plan.table = spec::whole_table(table);
  const std::string base = recipe.base.model.path, from = recipe.adapter_from;
  plan.apart = tensors_apart(base, plan.model);  // a quantized base (QLoRA) stays as it is
  plan.load_weights = [model = plan.model, base, from,
                       seed = static_cast<uint64_t>(recipe.base.train.seed)](models::ParameterStore& store) {
    load_base(store, model, base);
    initialize_adapter(store, seed);
    if (!from.empty()) load_adapter(store, from);
  };
  plan.model_file = "adapter_config.json";
  plan.export_model = [model = plan.model, table, config = PeftConfig{adapter, lasting_path(base)},
                       files = plan.tokenizer_files](const std::string& folder,
                                                     const std::vector<core::Tensor>& trained,
                                                     const models::ParameterStore&, core::DType) {
    write_adapter_tensors(folder, table, trained);
    write_peft_config(folder, config, model);
    for (const train::NamedFile& file : files) {
      base::create_folders((fs::path(folder) / file.name).parent_path().string());
      base::write_file_atomic((fs::path(folder) / file.name).string(), file.bytes);
    }
  };
  int64_t trained = 0, all = 0;
  for (const spec::Parameter& p : table) {
    (spec::is_adapter_tensor(p) ? trained : all) += p.num_elements();
  }
  plan.data_text +=
      fmt::format("trains     {} of {} parameters ({}{}, rank {}, alpha {:g})\n", base::format_grouped(trained),
                  base::format_grouped(all + trained), adapter.dora ? "DoRA" : "LoRA",
                  adapter.rslora ? " by sqrt(rank)" : "", adapter.rank, adapter.alpha);
}

}  // namespace

train::RunPlan begin_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  plan.recipe = recipe.base;
  plan.more_recipe = spec::tune_sections_to_toml(recipe);
  SINTER_CHECK(!is_adapter_folder(recipe.base.model.path) || fs::exists(recipe.base.model.path + "/config.json"),
               "model.path '{}' is an adapter; name its base there, and the adapter as adapter.from",
               recipe.base.model.path);
  train::plan_device(plan, mesh);
  SINTER_CHECK(plan.tokenizer, "'{}' has no tokenizer; name one as data.tokenizer", recipe.base.model.path);
  plan.model = models::load_model_spec(recipe.base.model.path);
  return plan;
}

void end_plan(train::RunPlan& plan, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh,
              const BatchSizes& sizes) {
  SINTER_CHECK(!recipe.has_adapter() || (!base::is_fp8(recipe.base.train.precision)),
               "train.precision = \"fp8\" does not go with an adapter; use \"bf16\"");
  if (recipe.has_adapter()) plan_adapter(plan, recipe);
  plan.shape = {.num_tokens = sizes.num_tokens,
                .num_sequences = sizes.num_sequences,
                .max_micro_batches = sizes.micro_batches,
                .has_weights = sizes.has_weights};
  train::plan_passes(plan, mesh);
}

int64_t micro_batches_of(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  const int64_t granularity = recipe.base.train.micro_batch * recipe.base.data.sequence_length * mesh.data().size();
  const int64_t tokens = recipe.base.train.batch_tokens > 0 ? recipe.base.train.batch_tokens : granularity;
  SINTER_CHECK(tokens % granularity == 0,
               "train.batch_tokens {} is not a multiple of micro_batch {} x sequence_length {} x {} ranks = {}", tokens,
               recipe.base.train.micro_batch, recipe.base.data.sequence_length, mesh.data().size(), granularity);
  return tokens / granularity;
}

std::vector<Record> read_sources(const std::vector<spec::SourceRecipe>& sources, const spec::TuneRecipe& recipe) {
  std::vector<Record> records;
  for (const spec::SourceRecipe& source : sources) {
    std::vector<Record> own;
    int64_t bad = 0;
    std::string first;
    RecordSource from{.path = source.path, .format = parse_format(recipe.tune.format)};
    read_records(from, {.record = [&](Record&& record) { own.push_back(std::move(record)); },
                        .bad =
                            [&](BadRow&& row) {
                              if (bad++ == 0) first = row.origin + ": " + row.problem;
                            }});
    if (bad > 0)
      base::log_warning("'{}': {} of {} rows are left out, the first: {}", source.path, bad,
                        bad + static_cast<int64_t>(own.size()), first);
    SINTER_CHECK(source.weight > 0, "'{}': a weight of {}; expected more than 0", source.path, source.weight);
    // Rows k with floor((k + 1) weight) > floor(k weight), so often.
    double sum = 0;
    int64_t taken = 0;
    for (const Record& record : own) {
      sum += source.weight;
      for (; taken < static_cast<int64_t>(sum + 1e-9); ++taken) records.push_back(record);
    }
  }
  return records;
}

RecipeRenderer::RecipeRenderer(const tokenizer::Tokenizer& tokenizer, const spec::TuneRecipe& recipe) {
  const std::string& path = recipe.tune.chat_template;
  const std::string folder =
      fs::is_directory(recipe.base.data.tokenizer) ? recipe.base.data.tokenizer : recipe.base.model.path;
  if (!path.empty()) {
    std::map<std::string, std::string> special;
    if (tokenizer::ChatTemplate::exists(folder)) special = tokenizer::ChatTemplate::load(folder).special_tokens();
    chat_ = std::make_unique<tokenizer::ChatTemplate>(base::read_file(path), path, special);
  } else if (tokenizer::ChatTemplate::exists(folder)) {
    chat_ = std::make_unique<tokenizer::ChatTemplate>(tokenizer::ChatTemplate::load(folder));
  }
  RenderOptions options;
  options.train_on = recipe.tune.train_on == "last"  ? TrainOn::last
                     : recipe.tune.train_on == "all" ? TrainOn::all
                                                     : TrainOn::assistant;
  renderer_ = std::make_unique<Renderer>(tokenizer, chat_.get(), options);
}

}  // namespace sinter::tune
