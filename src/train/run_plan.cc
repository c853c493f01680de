#include "train/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/together.h"
#include "core/host_memory.h"
#include "data/tokenize.h"
#include "plan/flops.h"
#include "spec/trained_layouts.h"
#include "train/agreement.h"
#include "train/optimizer.h"
#include "train/run_plan_memory.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;
using base::format_grouped;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_tokenizer(const std::string& folder) {
  return fs::exists(folder + "/tokenizer.json") || fs::exists(folder + "/tokenizer.model");
}

// Shards for all sources. Only one rank writes the cache.
data::LoaderOptions prepare_data(const spec::Recipe& recipe, const tokenizer::Tokenizer* tokenizer,
                                 const parallel::Mesh& mesh) {
  const std::string cache = recipe.data.cache.empty() ? recipe.checkpoint.dir + "/tokens" : recipe.data.cache;
  data::TokenizeOptions options;
  options.separator = recipe.data.separator;
  options.text_key = recipe.data.text_key;
  data::LoaderOptions loader;
  auto prepare = [&] {
    data::check_sources(recipe.data.validation, tokenizer);  // before hours of tokenizing
    loader.sources = data::prepare_sources(recipe.data.sources, cache, tokenizer, options);
    loader.validation = data::prepare_sources(recipe.data.validation, cache, tokenizer, options);
  };
  const double deadline = mesh.all().deadline();
  mesh.all().set_deadline(0);  // the others wait as long as it takes
  comm::together(mesh.all(), [&] {
    if (mesh.is_first()) prepare();
  });
  mesh.all().set_deadline(deadline);
  comm::together(mesh.all(), [&] {
    if (!mesh.is_first()) prepare();
  });
  loader.validation_share = recipe.data.validation_share;
  loader.validation_micro_batches = recipe.log.eval_batches;
  loader.window = recipe.data.sequence_length;
  loader.micro_batch = recipe.train.micro_batch;
  loader.packing = recipe.data.packing;
  loader.shuffle = recipe.data.shuffle;
  loader.seed = static_cast<uint64_t>(recipe.train.seed);
  loader.rank = mesh.data().rank();
  loader.ranks = mesh.data().size();
  return loader;
}

data::BatchSchedule make_batches(const spec::Recipe& recipe, int ranks) {
  const int64_t T = recipe.data.sequence_length, granularity = recipe.train.micro_batch * ranks;
  const int64_t tokens = recipe.train.batch_tokens ? recipe.train.batch_tokens : granularity * T;
  SINTER_CHECK(
      tokens % (granularity * T) == 0,
      "train.batch_tokens {} is not a multiple of micro_batch {} x sequence_length {} x {} rank{} = {}; nearest is {}",
      tokens, recipe.train.micro_batch, T, ranks, ranks == 1 ? "" : "s", granularity * T,
      std::max<int64_t>(1, (tokens + granularity * T / 2) / (granularity * T)) * granularity * T);
  SINTER_CHECK(recipe.train.ramp_from_tokens <= tokens,
               "train.ramp_from_tokens is {}, above a batch of {} tokens (micro_batch {} x sequence_length {} x {} "
               "ranks); a ramp begins with smaller batches: raise train.batch_tokens",
               recipe.train.ramp_from_tokens, tokens, recipe.train.micro_batch, T, ranks);
  const int64_t first = recipe.train.ramp_steps ? recipe.train.ramp_from_tokens / T : tokens / T;
  return data::BatchSchedule(first, tokens / T, recipe.train.ramp_steps, granularity);
}

// Token ids that the exported config names, from the tokenizer where the model itself does not say.
void set_special_tokens(spec::ModelSpec& model, const tokenizer::Tokenizer* tokenizer) {
  if (!tokenizer) return;
  const tokenizer::SpecialIds& ids = tokenizer->special_ids();
  if (model.bos_token < 0) model.bos_token = ids.bos;
  if (model.pad_token < 0) model.pad_token = ids.pad;
  if (model.eos_tokens.empty() && ids.eos >= 0) model.eos_tokens = {ids.eos};
}

void check_data(const RunPlan& plan) {
  const data::TokenSource& first = *plan.loader->sources().front();
  SINTER_CHECK(first.vocab_size() <= plan.model.vocab_size, "'{}' was made with a vocabulary of {}, the model's is {}",
               first.path(), first.vocab_size(), plan.model.vocab_size);
  SINTER_CHECK(plan.recipe.data.sequence_length <= plan.model.max_positions || !plan.model.learned_positions,
               "data.sequence_length {} is longer than the model's {} positions", plan.recipe.data.sequence_length,
               plan.model.max_positions);
  if (!plan.tokenizer) return;
  const uint64_t own = data::tokenizer_hash(*plan.tokenizer);
  const uint64_t told = plan.loader->tokenizer_hash();
  SINTER_CHECK(told == 0 || told == own, "'{}' was made with another tokenizer than '{}'; tokenize it again",
               plan.loader->tokenizer_told_by(), plan.tokenizer_path);
}

void check_fp8(core::Device device) {
  core::DeviceRuntime& runtime = core::runtime(device);
  SINTER_CHECK(
      runtime.has_fp8_products(),
      "train.precision = \"fp8\" needs a GPU with fp8 products (NVIDIA Ada or Hopper: sm_89, sm_90 and newer), "
      "but train.device is {} ({}); use precision = \"bf16\"",
      device.to_string(), runtime.description());
}

void check_precision(const RunPlan& plan) {
  core::DeviceRuntime& runtime = core::runtime(plan.device);
  SINTER_CHECK(
      runtime.supports(plan.shape.compute),
      "train.precision = \"{}\" is not possible on {}; use train.precision = \"fp16\", which scales the loss by "
      "itself so that small gradients survive, or \"f32\"",
      base::dtype_name(plan.shape.compute), runtime.description());
  if (plan.shape.gradients == core::DType::f32) return;
  SINTER_CHECK(plan.shape.compute == plan.shape.gradients,
               "train.gradients = \"bf16\" needs train.precision = \"bf16\"; here it is {}",
               base::dtype_name(plan.shape.compute));
}

// The recipe's word on CUDA graphs, and what stands in their way.
bool wants_graphs(const RunPlan& plan, int ranks) {
  const spec::CudaGraphs wanted = plan.recipe.train.cuda_graphs;
  if (wanted == spec::CudaGraphs::off) return false;
  const std::string obstacle = plan.device.kind == core::DeviceKind::cuda
                                   ? graph_obstacle(plan.model, plan.device, ranks)
                                   : fmt::format("train.device is '{}'", plan.recipe.train.device);
  SINTER_CHECK(wanted != spec::CudaGraphs::on || obstacle.empty(),
               "train.cuda_graphs is 'on', but {}; use 'auto' or 'off'", obstacle);
  return obstacle.empty();
}

void warn_of_data(const RunPlan& plan) {
  for (size_t s = 0; s < plan.loader->sources().size(); ++s) {
    const data::TokenSource& source = *plan.loader->sources()[s];
    const double epochs = plan.epochs_of(s);
    if (epochs > 4)  // beyond some four, more passes teach less and less (Muennighoff et al. 2023)
      base::log_warning("the run passes over '{}' {:.0f} times: beyond 4 times more data serve better than more steps",
                        plan.recipe.data.sources[s].path, epochs);
    if (source.num_documents() == 1 && source.num_windows() > 16)
      base::log_warning("'{}' is one document of {}: is data.separator what stands between its documents?",
                        plan.recipe.data.sources[s].path, format_grouped(source.num_tokens()) + " tokens");
  }
}

// What can be meant and mostly is not.
void warn_of_oddities(const RunPlan& plan) {
  const spec::Recipe& recipe = plan.recipe;
  if (recipe.schedule.warmup >= plan.steps)
    base::log_warning("schedule.warmup is {} of {} steps: the learning rate never gets to its full height",
                      recipe.schedule.warmup, plan.steps);
  if (recipe.data.sequence_length > plan.model.max_positions)
    base::log_warning("data.sequence_length is {}, but the model says that it has {} positions (model.max_positions)",
                      recipe.data.sequence_length, plan.model.max_positions);
}

}  // namespace

std::string RunPlan::tokenizer_hash() const {
  const uint64_t hash = tokenizer ? data::tokenizer_hash(*tokenizer) : loader ? loader->tokenizer_hash() : 0;
  return hash == 0 ? "" : fmt::format("{:016x}", hash);
}

double RunPlan::epochs_of(size_t s) const {
  const data::TokenSource& source = *loader->sources()[s];
  return loader->share(s) * static_cast<double>(tokens()) / static_cast<double>(source.num_windows() * shape.window);
}

int64_t RunPlan::tokens() const {
  if (batches) return batches->sequences_before(steps) * shape.window;
  int64_t sum = 0;
  for (int64_t step = 0; step < steps; ++step) sum += source->tokens_at(step);
  return sum;
}

void RunPlan::continue_after(int64_t done, int64_t tokens_seen) {
  if (!batches) return;
  const int64_t T = shape.window, planned = batches->sequences_before(done) * T;
  if (planned == tokens_seen) return;
  batches->continue_at(done, tokens_seen / T);
  loader->set_schedule(*batches);
  const int64_t before = steps;
  if (!recipe.train.steps) steps = std::max(done, batches->steps_for(divide_up(recipe.train.tokens, T)));
  base::log_info("the {} steps so far saw {} tokens ({} in batches as they are now): the data go on after them{}",
                 format_grouped(done), format_grouped(tokens_seen), format_grouped(planned),
                 steps == before ? "" : fmt::format(", {} steps in all instead of {}", steps, before));
}

namespace {

void check_layout(const spec::ParallelSpec& layout) {
  const std::vector<std::string> missing = spec::untrained_keys(layout);
  SINTER_CHECK(missing.empty(), "[parallel] {} is not trained yet: leave it out (docs/parallelism.md)",
               fmt::join(missing, ", "));
}

void load_tokenizer(RunPlan& plan, const parallel::Mesh& mesh) {
  const spec::Recipe& recipe = plan.recipe;
  plan.tokenizer_path = recipe.data.tokenizer;
  if (plan.tokenizer_path.empty() && !recipe.model.path.empty() && has_tokenizer(recipe.model.path)) {
    plan.tokenizer_path = recipe.model.path;
  }
  for (const spec::SourceRecipe& source : recipe.data.sources) {
    if (plan.tokenizer_path.empty() && !data::stands_for_text(source.path))
      plan.tokenizer_path = data::tokenizer_beside(source.path);
  }
  if (plan.tokenizer_path.empty()) {
    if (mesh.is_first())
      base::log_warning(
          "no tokenizer: the model's folder will have none, so `generate` and transformers cannot read text with it; "
          "name "
          "it with data.tokenizer{}",
          recipe.log.sample_prompts.empty() ? "" : ", without which log.sample_prompts are left out");
    return;
  }
  SINTER_CHECK(fs::exists(plan.tokenizer_path), "data.tokenizer '{}' does not exist; expected a folder or a file",
               plan.tokenizer_path);
  plan.tokenizer = std::make_unique<tokenizer::Tokenizer>(tokenizer::Tokenizer::load(plan.tokenizer_path));
  if (mesh.is_first()) plan.tokenizer_files = read_tokenizer_files(plan.tokenizer_path);
}

// What can be refused without the data is refused before time is spent on tokenizing it.
void plan_without_data(RunPlan& plan, const parallel::Mesh& mesh) {
  plan_device(plan, mesh);
  plan.batches = std::make_unique<data::BatchSchedule>(make_batches(plan.recipe, mesh.data().size()));
  if (plan.tokenizer) spec::make_model_spec(plan.recipe, plan.tokenizer->vocab_size());
}

}  // namespace

void plan_device(RunPlan& plan, const parallel::Mesh& mesh) {
  const spec::Recipe& recipe = plan.recipe;
  plan.device = comm::local_device(recipe.train.device, comm::launch());
  if (base::is_fp8(recipe.train.precision)) check_fp8(plan.device);
  check_layout(mesh.layout());
  load_tokenizer(plan, mesh);
  const std::string& dir = recipe.checkpoint.dir;
  SINTER_CHECK(!std::filesystem::exists(dir) || std::filesystem::is_directory(dir),
               "checkpoint.dir '{}' is a file; expected a folder, or a name for a new one", dir);
  core::runtime(plan.device);
}

namespace {

// What this rank has of the model.
void plan_layout(RunPlan& plan, const parallel::Mesh& mesh) {
  const spec::ParallelSpec& layout = mesh.layout();
  spec::check_trained(layout, plan.model);
  plan.axes = std::make_unique<parallel::Axes>(mesh, plan.model);
  plan.division = division_of(mesh, plan.model);
  if (plan.division.gradients) plan.shape.gradients = core::DType::f32;  // as spec::make_layout says
  const spec::OffloadSpec& offload = layout.offload;
  if (offload.has_state() || offload.activations) {
    SINTER_CHECK(plan.export_model == nullptr, "[parallel] offload_... is for pretraining so far: leave it out");
    plan.host = core::make_host_memory(offload.folder, plan.device);
    plan.host_plan = std::make_shared<core::RecordingAllocator>();
  }
  if (offload.activations) plan.shape.host = plan.host.get();
  const bool is_tuned = !plan.tensors.empty();
  if (is_tuned || !plan.axes->is_whole())
    plan.table = is_tuned ? plan.axes->table(plan.model, plan.tensors) : plan.axes->table(plan.model);
  if (plan.axes->is_whole()) return;
  plan.shape.pipeline = spec::pipeline_shape(layout);
  plan.shape.pipeline.micro_batches = plan.shape.max_micro_batches;
}

}  // namespace

void plan_passes(RunPlan& plan, const parallel::Mesh& mesh) {
  const spec::Recipe& recipe = plan.recipe;
  if (plan.tokenizer) set_special_tokens(plan.model, plan.tokenizer.get());
  if (mesh.is_first()) warn_of_oddities(plan);
  const bool is_fp8 = base::is_fp8(recipe.train.precision);
  plan.shape.window = recipe.data.sequence_length;
  plan.shape.recompute = recipe.train.recompute;
  plan.shape.compute = is_fp8 ? core::DType::bf16 : recipe.train.precision;
  plan.shape.fp8 = is_fp8;
  plan.shape.gradients = recipe.train.gradients;
  plan.shape.mtp_weight = recipe.model.mtp_weight;
  plan.shape.seed = static_cast<uint64_t>(recipe.train.seed);
  plan.shape.graphs = wants_graphs(plan, mesh.all().is_trivial() ? 1 : 2);
  plan.flops_per_token =
      plan::train_flops_per_token(plan::make_flop_basis(plan.model), static_cast<double>(plan.shape.window),
                                  plan::flop_convention("palm-causal"))
          .total();
  check_precision(plan);
  plan_layout(plan, mesh);
  plan_memory_rows(plan, mesh);
  check_memory(plan, mesh);
  const std::string& dir = recipe.checkpoint.dir;
  if (mesh.is_first()) check_disk_of(plan.disk, dir);
}

namespace {

void plan_with_data(RunPlan& plan, const data::LoaderOptions& options, const parallel::Mesh& mesh) {
  const spec::Recipe& recipe = plan.recipe;
  plan.loader = std::make_unique<data::Loader>(options, *plan.batches);
  plan.source = std::make_unique<ShardBatches>(*plan.loader, *plan.batches, recipe.data.sequence_length);
  const int64_t vocab = plan.tokenizer ? plan.tokenizer->vocab_size() : plan.loader->sources().front()->vocab_size();
  plan.model = spec::make_model_spec(recipe, vocab);
  check_data(plan);

  const int64_t T = recipe.data.sequence_length;
  plan.steps = recipe.train.steps ? recipe.train.steps : plan.batches->steps_for(divide_up(recipe.train.tokens, T));
  // Of the ramp's end, though the run may end before: resumed with more tokens it would get there.
  const int64_t most = std::max<int64_t>(1, plan.loader->micro_batches_at(recipe.train.ramp_steps));
  plan.shape = {.num_tokens = plan.loader->max_tokens(),
                .num_sequences = plan.loader->max_sequences(),
                .max_micro_batches = most};
  plan_passes(plan, mesh);
}

}  // namespace

RunPlan make_run_plan(const spec::Recipe& recipe, const parallel::Mesh& mesh) {
  RunPlan plan;
  plan.recipe = recipe;
  comm::together(mesh.all(), [&] { plan_without_data(plan, mesh); });
  const data::LoaderOptions options = prepare_data(recipe, plan.tokenizer.get(), mesh);
  comm::together(mesh.all(), [&] { plan_with_data(plan, options, mesh); });
  check_same_data(mesh.all(), *plan.loader);
  if (mesh.is_first()) warn_of_data(plan);
  return plan;
}

}  // namespace sinter::train
