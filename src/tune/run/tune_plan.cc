#include "tune/run/tune_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "core/host_copy.h"
#include "io/safetensors.h"
#include "io/tensor_folder.h"
#include "models/open_model.h"
#include "models/quantized/quantized_folder.h"
#include "models/weights.h"
#include "parallel/axes.h"
#include "spec/hf_config.h"
#include "spec/trained_layouts.h"
#include "train/export.h"
#include "tune/adapter/four_bit.h"
#include "tune/adapter/merge.h"
#include "tune/adapter/peft.h"

namespace sinter::tune {

namespace fs = std::filesystem;

namespace {

// The adapter a run trains: the recipe's, or that of the folder it goes on from.
spec::AdapterSpec adapter_of(const spec::TuneRecipe& recipe, const spec::ModelSpec& model) {
  return recipe.adapter_from.empty() ? recipe.adapter : resolve_targets(read_peft_config(recipe.adapter_from), model);
}

// A path that still leads to the base from a checkpoint's folder.
std::string lasting_path(const std::string& path) { return fs::absolute(path).lexically_normal().string(); }

using QuantizedBase = std::unique_ptr<models::QuantizedFolder>;
QuantizedBase open_quantized(const std::string& base, const io::TensorFolder& folder) {
  const std::string path = base + "/config.json";
  return models::QuantizedFolder::open(nlohmann::json::parse(base::read_file(path)), path, folder);
}

}  // namespace

std::set<std::string> tensors_apart(const std::string& base, const spec::ModelSpec& model, BaseFormat format) {
  const io::TensorFolder folder(base);
  const QuantizedBase quantized = open_quantized(base, folder);
  if (quantized) return quantized->tensors_apart(model);
  return format == BaseFormat::nf4 ? four_bit_tensors(model) : std::set<std::string>();
}

void load_base(models::ParameterStore& store, const spec::ModelSpec& model, const std::string& base,
               BaseFormat format) {
  const io::TensorFolder folder(base);
  const QuantizedBase quantized = open_quantized(base, folder);
  if (quantized) return quantized->load(store, model);
  if (format == BaseFormat::nf4) return load_in_four_bits(store, model, folder);
  models::load_weights(store, model, folder);
}

size_t model_bytes(const std::string& folder, const train::RunPlan& plan) {
  const std::string base = is_adapter_folder(folder) && !fs::exists(folder + "/config.json") ? base_of(folder) : folder;
  const size_t width = plan.recipe.train.precision == base::DType::f32 ? 4 : 2;
  return static_cast<size_t>(spec::count_parameters(models::load_model_spec(base)).total) * width;
}

namespace {

// As NF4 with a scale for 64 numbers.
size_t four_bit_bytes(const spec::ParameterSpec& p) { return static_cast<size_t>(p.num_elements()) * 9 / 16; }
size_t four_bit_bytes(const spec::ModelSpec& model, const std::set<std::string>& apart) {
  size_t bytes = 0;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(model))
    bytes += apart.contains(p.name) ? four_bit_bytes(p) : 0;
  return bytes;
}

// Of the tensors that stand apart: as they lie in a quantized folder, or as NF4.
size_t apart_bytes(const std::string& base, const spec::ModelSpec& model, const std::set<std::string>& apart,
                   BaseFormat format) {
  const io::TensorFolder folder(base);
  const bool is_stored = open_quantized(base, folder) != nullptr;
  size_t bytes = 0;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(model)) {
    if (!apart.contains(p.name)) continue;
    if (!is_stored && format == BaseFormat::nf4) bytes += four_bit_bytes(p);
    for (const spec::ParameterPart& part : p.parts) {
      const std::string module = part.hf_name.substr(0, part.hf_name.rfind('.') + 1);
      for (const io::TensorEntry& entry : folder.entries()) {
        if (is_stored && entry.name.starts_with(module)) bytes += entry.bytes.size();
      }
    }
  }
  return bytes;
}

// Of the tensors that stand apart, those of this rank's layers.
std::set<std::string> names_here(const train::RunPlan& plan, const parallel::Mesh& mesh) {
  std::set<std::string> names;
  for (const spec::LocalParameter& p : parallel::Axes(mesh, plan.model).table(plan.model, plan.tensors)) {
    if (plan.apart.contains(p.info.name)) names.insert(p.info.name);
  }
  return names;
}

constexpr const char* kValueFile = "/value_head.safetensors";

void write_tokenizer(const std::string& folder, const std::vector<train::NamedFile>& files) {
  for (const train::NamedFile& file : files) {
    base::create_folders((fs::path(folder) / file.name).parent_path().string());
    base::write_file_atomic((fs::path(folder) / file.name).string(), file.bytes);
  }
}

// What trains beside the model or adapter, at the end of what trains.
void write_more(const std::string& folder, const MoreTensors& more, std::span<const core::Tensor> values) {
  std::vector<float> scratch;
  io::SafetensorsWriter writer(folder + kValueFile);
  for (const spec::ParameterSpec& p : more.table)
    writer.declare(p.name, base::DType::f32, models::part_shape(p, p.parts[0]));
  for (size_t i = 0; i < more.table.size(); ++i)
    writer.write(more.table[i].name, std::as_bytes(std::span(core::host_floats(values[i], scratch))));
  writer.commit();
}

// From the folder that the run goes on from, where it holds them.
void load_more(models::ParameterStore& store, const MoreTensors& more, const std::string& from) {
  if (more.is_classifier || more.table.empty() || !fs::exists(from + kValueFile)) return;
  const io::SafetensorsFile file(from + kValueFile);
  for (auto& slot : store.slots()) {
    const io::TensorEntry* entry = file.find(slot.info.name);
    if (!entry) continue;
    SINTER_CHECK(entry->dtype == base::DType::f32 && entry->num_elements() == slot.info.num_elements(),
                 "'{}': tensor '{}' is {} {}; expected f32 of {} elements", file.path(), entry->name,
                 base::dtype_name(entry->dtype), io::shape_to_string(entry->shape), slot.info.num_elements());
    const auto* values = reinterpret_cast<const float*>(entry->bytes.data());
    store.set(slot, {values, values + entry->num_elements()});
  }
}

// What of an adapter's run is not divided by some axis, with the nearest that is.
void check_layout(const train::RunPlan& plan, const spec::AdapterSpec& adapter, const spec::ParallelSpec& layout,
                  bool is_qlora) {
  SINTER_CHECK(
      adapter.dropout == 0 || (layout.tp == 1 && layout.cp == 1),
      "layout {}: adapter.dropout = {} draws whole rows of one rank; use 0, or parallel.tp and cp 1 (parallel.pp = "
      "{} divides as much)",
      spec::describe(layout), adapter.dropout, layout.tp * layout.cp * layout.pp);
  if (layout.tp == 1 && layout.ep == 1) return;
  const bool has_table = std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const spec::ParameterSpec& p) {
    return p.adapter.term == spec::AdapterTerm::a && p.parts[0].transposed;
  });
  const std::string nearest =
      fmt::format("use parallel.tp and ep 1 (parallel.pp = {} divides as much)", layout.tp * layout.ep * layout.pp);
  SINTER_CHECK(plan.apart.empty(), "layout {}: a base {} is not cut inside; {}", spec::describe(layout),
               is_qlora ? "in 4 bits (qlora)" : "that is quantized", nearest);
  SINTER_CHECK(layout.tp == 1 || !adapter.dora, "layout {}: DoRA takes norms of whole rows; {}", spec::describe(layout),
               nearest);
  SINTER_CHECK(layout.tp == 1 || !has_table, "layout {}: an adapter of the token table is not cut; {}",
               spec::describe(layout), nearest);
}

void plan_adapter(train::RunPlan& plan, const spec::TuneRecipe& recipe, const MoreTensors& more,
                  const parallel::Mesh& mesh) {
  plan.model.moe.balance_loss = 0;  // of a frozen router there is nothing to balance
  spec::AdapterSpec adapter = adapter_of(recipe, plan.model);
  if (more.is_classifier) std::erase(adapter.modules_to_save, "score");
  std::vector<spec::ParameterSpec> table = spec::make_adapter_table(plan.model, adapter);
  const size_t own = table.size() + (more.is_classifier ? more.table.size() : 0);  // kept in the adapter's file
  table.insert(table.end(), more.table.begin(), more.table.end());
  plan.tensors = table;
  const std::string base = recipe.base.model.path, from = recipe.adapter_from;
  const BaseFormat format = recipe.is_qlora() ? BaseFormat::nf4 : BaseFormat::as_stored;
  const bool is_random = recipe.base.model.random;  // only config.json is there: of the shape alone
  plan.apart = !is_random                  ? tensors_apart(base, plan.model, format)  // a quantized base stays as it is
               : format == BaseFormat::nf4 ? four_bit_tensors(plan.model)
                                           : std::set<std::string>();
  check_layout(plan, adapter, mesh.layout(), recipe.is_qlora());
  const std::set<std::string> here = names_here(plan, mesh);
  if (!here.empty())
    plan.more_memory.push_back({"weights (frozen, in few bits)", is_random
                                                                     ? four_bit_bytes(plan.model, here)
                                                                     : apart_bytes(base, plan.model, here, format)});
  // A reward model leaves the head of its base out; the folder still has it.
  const spec::ModelSpec stored = more.is_classifier ? models::load_model_spec(base) : plan.model;
  plan.load_weights = [stored, table, base, format, from, more, is_random,
                       seed = static_cast<uint64_t>(recipe.base.train.seed)](models::ParameterStore& store) {
    if (is_random) {
      draw_in_four_bits(store, seed);
    } else {
      load_base(store, stored, base, format);
    }
    initialize_adapter(store, seed);
    if (!from.empty()) load_adapter(store, from, table);
    if (!from.empty()) load_more(store, more, from);
  };
  plan.model_file = "adapter_config.json";
  PeftConfig config{.adapter = adapter, .base_model = lasting_path(base), .is_classifier = more.is_classifier};
  if (more.is_classifier) config.adapter.modules_to_save.push_back("score");
  plan.export_model = [model = plan.model, table, own, more, config, files = plan.tokenizer_files](
                          const std::string& folder, const std::vector<core::Tensor>& trained,
                          const models::ParameterStore&, core::DType) {
    const std::vector<spec::ParameterSpec> kept(table.begin(), table.begin() + static_cast<ptrdiff_t>(own));
    const size_t beside = table.size() - own;
    const std::span<const core::Tensor> values(trained);
    write_adapter_tensors(folder, kept, values.first(values.size() - beside));
    if (beside > 0) write_more(folder, more, values.last(beside));
    write_peft_config(folder, config, model);
    write_tokenizer(folder, files);
  };
  int64_t trained = 0, all = 0;
  for (const spec::ParameterSpec& p : table) {
    (spec::is_adapter_tensor(p) ? trained : all) += p.num_elements();
  }
  plan.data_text += fmt::format("trains     {} of {} parameters ({}{}, rank {}, alpha {:g})\n",
                                base::format_grouped(trained), base::format_grouped(all + trained),
                                adapter.dora        ? "DoRA"
                                : recipe.is_qlora() ? "QLoRA"
                                                    : "LoRA",
                                adapter.rslora ? " by sqrt(rank)" : "", adapter.rank, adapter.alpha);
}

// All of the model trains, and more beside it.
void plan_whole(train::RunPlan& plan, const spec::TuneRecipe& recipe, const MoreTensors& more) {
  std::vector<spec::ParameterSpec> table = spec::make_parameter_table(plan.model);
  const size_t own = table.size();
  table.insert(table.end(), more.table.begin(), more.table.end());
  plan.tensors = table;
  plan.load_weights = [model = plan.model, base = recipe.base.model.path, more,
                       seed = static_cast<uint64_t>(recipe.base.train.seed)](models::ParameterStore& store) {
    models::load_weights(store, model, io::TensorFolder(base));
    initialize_adapter(store, seed);
    load_more(store, more, base);
  };
  plan.export_model = [model = plan.model, own, more, files = plan.tokenizer_files](
                          const std::string& folder, const std::vector<core::Tensor>& trained,
                          const models::ParameterStore&, core::DType dtype) {
    const auto end = trained.begin() + static_cast<ptrdiff_t>(own);
    train::export_model(folder, model, {trained.begin(), end}, dtype, files);
    write_more(folder, more, {end, trained.end()});
  };
}

}  // namespace

train::RunPlan begin_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  plan.recipe = recipe.base;
  plan.is_stand_in = recipe.is_stand_in;
  plan.more_recipe = spec::tune_sections_to_toml(recipe);
  SINTER_CHECK(fs::exists(recipe.base.model.path),
               "model.path '{}' is no folder; expected that of a Hugging Face model (config.json, tokenizer.json, "
               "*.safetensors)",
               recipe.base.model.path);
  SINTER_CHECK(!is_adapter_folder(recipe.base.model.path) || fs::exists(recipe.base.model.path + "/config.json"),
               "model.path '{}' is an adapter; name its base there, and the adapter as adapter.from",
               recipe.base.model.path);
  train::plan_device(plan, mesh);
  SINTER_CHECK(plan.tokenizer, "'{}' has no tokenizer; name one as data.tokenizer", recipe.base.model.path);
  plan.model = models::load_model_spec(recipe.base.model.path);
  return plan;
}

void end_plan(train::RunPlan& plan, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh, const BatchSizes& sizes,
              const MoreTensors& more) {
  SINTER_CHECK(!recipe.has_adapter() || (!base::is_fp8(recipe.base.train.precision)),
               "train.precision = \"fp8\" does not go with an adapter; use \"bf16\"");
  SINTER_CHECK(recipe.tune.neftune_alpha == 0 || sizes.has_noise,
               "tune.neftune_alpha is {:g}: noise on the embeddings is sft's; leave it out", recipe.tune.neftune_alpha);
  const spec::ParallelSpec& layout = mesh.layout();
  spec::check_trained(layout, plan.model);
  SINTER_CHECK(!plan.objective->reads_values() || (layout.pp == 1 && layout.cp == 1),
               "this objective looks at whole answers at once: use parallel.pp and cp 1 (found {} and {})", layout.pp,
               layout.cp);
  SINTER_CHECK(more.table.empty() || layout.tp * layout.pp * layout.cp * layout.ep == 1,
               "layout {}: a score or a value is read by ranks that have the whole model: use parallel.tp, pp, cp and "
               "ep 1, and parallel.zero to divide its state",
               spec::describe(layout));
  SINTER_CHECK(!recipe.base.model.random || recipe.has_adapter() || (more.table.empty() && !plan.load_weights),
               "model.random draws a model at random, to try a shape: this verb goes on from weights; leave it out");
  SINTER_CHECK(
      recipe.has_adapter() || recipe.base.model.random || tensors_apart(recipe.base.model.path, plan.model).empty(),
      "model.path '{}' is quantized: weights in few bits do not train; use an adapter (adapter.kind = "
      "\"lora\"), or the plain model",
      recipe.base.model.path);
  if (recipe.has_adapter()) {
    plan_adapter(plan, recipe, more, mesh);
  } else if (!more.table.empty() && !more.is_classifier) {
    plan_whole(plan, recipe, more);
  }
  plan.shape = {.num_tokens = sizes.num_tokens,
                .num_sequences = sizes.num_sequences,
                .max_micro_batches = sizes.micro_batches,
                .has_weights = sizes.has_weights,
                .has_noise = sizes.has_noise};
  train::plan_passes(plan, mesh);
}

int64_t micro_batches_of(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  const int64_t granularity = recipe.base.train.micro_batch * recipe.base.data.sequence_length * mesh.data().size();
  const int64_t tokens = recipe.base.train.batch_tokens > 0 ? recipe.base.train.batch_tokens : granularity;
  SINTER_CHECK(tokens % granularity == 0,
               "train.batch_tokens {} is not a multiple of micro_batch {} x sequence_length {} x {} rank{} = {}",
               tokens, recipe.base.train.micro_batch, recipe.base.data.sequence_length, mesh.data().size(),
               mesh.data().size() == 1 ? "" : "s", granularity);
  return tokens / granularity;
}

std::vector<Record> read_sources(const std::vector<spec::SourceRecipe>& sources, const spec::TuneRecipe& recipe) {
  std::vector<Record> records;
  for (const spec::SourceRecipe& source : sources) {
    std::vector<Record> own;
    int64_t bad = 0;
    std::string first;
    const RecordSource from{
        .path = source.path, .format = parse_format(recipe.tune.format), .fields = recipe.tune.fields};
    read_records(from, {.record = [&](Record&& record) { own.push_back(std::move(record)); },
                        .bad =
                            [&](BadRow&& row) {
                              if (bad++ == 0) first = row.problem;
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

std::vector<Record> hold_out(std::vector<Record>& records, double share) {
  std::vector<Record> rest, held_out;
  double sum = 0;
  for (Record& record : records) {
    sum += share;
    (sum >= 1 ? held_out : rest).push_back(std::move(record));
    if (sum >= 1) sum -= 1;
  }
  if (held_out.empty())
    base::log_warning("data.validation_share {:g} of {} rows is none: there is no validation", share, rest.size());
  records = std::move(rest);
  return held_out;
}

void check_any_learned(bool is_none, const char* what, const std::string& first_problem, int64_t shortest,
                       const spec::TuneRecipe& recipe) {
  if (!is_none) return;
  SINTER_CHECK(first_problem.empty(), "no row of data.sources can be learned, the first: {}", first_problem);
  base::fail(
      "no row of data.sources can be learned: the shortest {} has {} tokens, and data.sequence_length is {}; expected "
      "at "
      "least so many, or shorter rows",
      what, shortest, recipe.base.data.sequence_length);
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
