#include "train/run_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/together.h"
#include "core/host_memory.h"
#include "data/tokenize.h"
#include "kernels/backend.h"
#include "plan/flops.h"
#include "spec/parameters.h"
#include "spec/trained_layouts.h"
#include "train/agreement.h"
#include "train/checkpoint_writer.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/peak.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;
using base::format_bytes;
using base::format_count;
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
      "train.batch_tokens {} is not a multiple of micro_batch {} x sequence_length {} x {} ranks = {}; nearest is {}",
      tokens, recipe.train.micro_batch, T, ranks, granularity * T,
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

std::vector<spec::LocalParameter> table_of(const RunPlan& plan) {
  return plan.table.empty() ? spec::whole_table(plan.model) : plan.table;
}

StepPlan plan_step_of(const RunPlan& plan, const StepShape& shape) {
  return plan_step(plan.model, shape, plan.table, plan.objective.get(), plan.apart, plan.axes.get());
}

size_t optimizer_bytes(const RunPlan& plan, const spec::OptimizerRecipe& recipe) {
  models::ParameterStore store(table_of(plan), plan.store_options({core::DeviceKind::shapes, 0}));
  return Optimizer(recipe, store).state_bytes();
}

// What a run that does not fit would need with one thing changed, one line each.
std::string suggest_less_memory(const RunPlan& plan) {
  std::string text;
  const double all = static_cast<double>(plan.memory_bytes());
  auto add = [&](const std::string& change, size_t before, size_t after) {
    if (after >= before) return;
    text += fmt::format("\n  {}: {}", change, format_bytes(all - static_cast<double>(before - after)));
  };
  for (autograd::Recompute mode : {autograd::Recompute::selective, autograd::Recompute::full}) {
    if (mode <= plan.shape.recompute) continue;
    StepShape shape = plan.shape;
    shape.recompute = mode;
    add(fmt::format("train.recompute = \"{}\"", spec::recompute_name(mode)), plan.memory.arena_bytes(),
        plan_step_of(plan, shape).arena_bytes());
  }
  for (int64_t part = 2; part <= plan.recipe.train.micro_batch; part *= 4) {
    StepShape shape = plan.shape;
    shape.num_tokens /= part;
    shape.num_sequences = std::max<int64_t>(1, shape.num_sequences / part);
    add(fmt::format("train.micro_batch = {}", plan.recipe.train.micro_batch / part), plan.memory.arena_bytes(),
        plan_step_of(plan, shape).arena_bytes());
  }
  if (plan.device.kind == core::DeviceKind::cpu) add("checkpoint.background = false", plan.checkpoint_copy_bytes, 0);
  if (plan.recipe.optimizer.states == base::DType::f32) {
    spec::OptimizerRecipe shorter = plan.recipe.optimizer;
    shorter.states = base::DType::bf16;
    add("optimizer.states = \"bf16\"", optimizer_bytes(plan, plan.recipe.optimizer), optimizer_bytes(plan, shorter));
  }
  return text;
}

// A rank's part of the machine's memory, which its ranks share.
size_t host_bytes(const parallel::Mesh& mesh) {
  const auto neighbours = static_cast<size_t>(mesh.all().size() == 1 ? 1 : comm::launch().local_ranks);
  return core::runtime({core::DeviceKind::cpu, 0}).total_memory_bytes() / std::max<size_t>(neighbours, 1);
}

// The ranks of one machine share its memory; those of one GPU are not counted apart.
void check_memory(const RunPlan& plan, const parallel::Mesh& mesh) {
  if (plan.is_stand_in) return;
  core::DeviceRuntime& runtime = core::runtime(plan.device);
  const bool is_cpu = plan.device.kind == core::DeviceKind::cpu;
  const auto neighbours = static_cast<size_t>(mesh.all().size() == 1 ? 1 : comm::launch().local_ranks);
  const size_t host = host_bytes(mesh);
  const auto limit = static_cast<size_t>(mesh.layout().device_memory_gib * 0x1p30);
  size_t there = is_cpu ? host : runtime.free_memory_bytes();
  if (limit > 0) there = std::min(there, limit);
  const bool is_in_files = !mesh.layout().offload.folder.empty();
  const size_t on_host = (is_in_files ? 0 : plan.host_state_bytes) + (is_cpu ? plan.memory_bytes() : 0);
  SINTER_CHECK(
      !plan.host || on_host <= host,
      "what is offloaded takes {} of the host's memory, {} with the rank's own; it has {}: name a folder for it "
      "with parallel.offload_folder",
      format_bytes(double(plan.host_state_bytes)), format_bytes(double(on_host)), format_bytes(double(host)));
  SINTER_CHECK(
      is_cpu || plan.checkpoint_copy_bytes <= host,
      "the copy of a checkpoint that is written in the background needs {} of the host's memory, which has {}; "
      "use checkpoint.background = false",
      format_bytes(double(plan.checkpoint_copy_bytes)), format_bytes(double(host)));
  if (plan.memory_bytes() <= there) return;
  std::string parts;
  for (const MemoryRow& row : plan.memory_rows)
    parts += fmt::format("\n  {}: {}", row.what, format_bytes(double(row.bytes)));
  base::fail("this run needs {} on {}, which has {} {}:{}\nwhat it would need with one change:{}",
             format_bytes(double(plan.memory_bytes())), plan.device.to_string(), format_bytes(double(there)),
             limit > 0 && there == limit ? "to give (parallel.device_memory_gib)"
             : !is_cpu                   ? "free"
             : neighbours > 1            ? fmt::format("for each of the machine's {} ranks", neighbours)
                                         : std::string("in all"),
             parts, suggest_less_memory(plan));
}

kernels::PassSizes sizes_of(const RunPlan& plan) {
  return {.compute = plan.shape.compute,
          .tokens = plan.shape.num_tokens,
          .window = plan.shape.window,
          .packs_documents = plan.recipe.data.packing == spec::Packing::documents,
          .is_deterministic = plan.recipe.train.deterministic,
          .hidden = plan.model.hidden,
          .vocab_size = plan.model.vocab_size,
          .num_heads = plan.model.num_heads,
          .num_kv_heads = plan.model.num_kv_heads,
          .head_dim = plan.model.head_dim};
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

// Whether a checkpoint is due before the end, so that training has something to do while it is written.
bool saves_in_background(const RunPlan& plan) {
  const spec::CheckpointRecipe& recipe = plan.recipe.checkpoint;
  return recipe.background &&
         (recipe.initial || (recipe.every > 0 && recipe.every < plan.steps) || saves_by_time(recipe));
}

int64_t num_trained(const std::vector<spec::ParameterSpec>& tensors) {
  int64_t sum = 0;
  for (const spec::ParameterSpec& p : tensors) sum += p.trainable ? p.num_elements() : 0;
  return sum;
}

// Of all ranks together: they write one folder.
void plan_disk(RunPlan& plan) {
  models::StoreOptions options = plan.store_options({core::DeviceKind::shapes, 0});
  options.division = {};
  models::ParameterStore store(table_of(plan), options);
  const Optimizer whole(plan.recipe.optimizer, store);
  const auto own = static_cast<double>(store.master().bytes() / sizeof(float));
  const double all = std::max(own, plan.tensors.empty() ? static_cast<double>(spec::count_parameters(plan.model).total)
                                                        : static_cast<double>(num_trained(plan.tensors)));
  const auto scaled = [&](double bytes) { return static_cast<size_t>(bytes * all / std::max(own, 1.0)); };
  plan.disk.state_bytes = scaled(static_cast<double>(store.master().bytes() + whole.state_bytes()));
  const bool is_f32 = plan.recipe.checkpoint.exports == spec::ExportFormat::f32;
  plan.disk.model_bytes = static_cast<size_t>(all) * (is_f32 ? 4 : base::dtype_bytes(plan.shape.compute));
  plan.disk.kept = plan.recipe.checkpoint.keep;
}

size_t largest_tensor(const RunPlan& plan) {
  int64_t elements = 0;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(plan.model))
    elements = std::max(elements, p.num_elements());
  return static_cast<size_t>(elements) * sizeof(float);
}

void plan_memory_rows(RunPlan& plan, const parallel::Mesh& mesh) {
  models::ParameterStore store(table_of(plan), plan.store_options({core::DeviceKind::shapes, 0}));
  plan.memory = plan_step_of(plan, plan.shape);
  plan.memory_rows = {{"weights (f32 masters)", store.master_bytes()}};
  if (store.weight_bytes() > 0)
    plan.memory_rows.push_back({fmt::format("weights ({}{})", base::dtype_name(plan.shape.compute),
                                            plan.division.weights ? ", of two blocks" : ""),
                                store.weight_bytes()});
  if (plan.shape.fp8) plan.memory_rows.push_back({"weights (fp8, both orders) and scales", plan.memory.fp8_bytes});
  plan.memory_rows.insert(plan.memory_rows.end(), plan.more_memory.begin(), plan.more_memory.end());
  size_t gradient_bytes = 0;
  for (const core::Tensor& grad : store.gradients()) gradient_bytes += grad.bytes();
  gradient_bytes += GradientSync::buffer_bytes(store, plan.shape.max_micro_batches);
  plan.memory_rows.push_back(
      {plan.shape.gradients == core::DType::f32 ? "gradients (f32)" : "gradients (matrices bf16, rest f32)",
       gradient_bytes});
  const Optimizer optimizer(plan.recipe.optimizer, store, 0, optimizer_shard(mesh));
  plan.memory_rows.push_back(
      {fmt::format("optimizer ({})", base::dtype_name(plan.recipe.optimizer.states)), optimizer.state_bytes()});
  if (plan.host_plan) plan.host_state_bytes = plan.host_plan->stats().current_bytes + plan.memory.host_bytes;
  plan.memory_rows.push_back({"activations", plan.memory.arena_bytes()});
  const auto T = static_cast<size_t>(local_tokens(plan.shape, plan.axes ? plan.axes->context() : nullptr)),
             S = static_cast<size_t>(plan.shape.num_sequences);
  const auto heads = static_cast<size_t>(plan.model.mtp_heads), A = static_cast<size_t>(plan.shape.max_micro_batches);
  const size_t batches = plan.shape.pipeline.pp > 1 ? A : 1;
  plan.memory_rows.push_back(
      {"batch and losses", 4 * (batches * (T * 5 + 2 * S + 1) + A * T * (1 + heads) + 2 * batches * heads * T)});
  if (mesh.all().size() > 1 && plan.device.kind == core::DeviceKind::cpu) {
    const GradientSync sync(store, mesh, plan.axes.get(), plan.shape.max_micro_batches);
    size_t bytes = sync.communicator_bytes();
    if (mesh.tensor().size() > 1)  // sums of the residual stream
      bytes += T * static_cast<size_t>(plan.model.hidden) * base::dtype_bytes(plan.shape.compute);
    plan.memory_rows.push_back({"communicator buffers", bytes});
    // At another time: where no rank has all masters the first one reads them back tensor by tensor.
    const size_t read_back = mesh.is_first() && !plan.has_masters() && !plan.export_model ? largest_tensor(plan) : 0;
    if (read_back > bytes) plan.memory_rows.push_back({"more, while a model folder is written", read_back - bytes});
  }
  plan_disk(plan);
  if (saves_in_background(plan) && !plan.host) {  // what is offloaded has no room for a second copy
    plan.checkpoint_copy_bytes = StateCopy::bytes(state_tensors(store, optimizer, plan.is_whole()), mesh.all().rank(),
                                                  mesh.all().size(), plan.copies_masters(mesh.all().size()));
  }
  // Nobody asked for checkpoints by time: where their copy does not fit they are written without one.
  const bool is_asked_for = plan.recipe.checkpoint.initial || plan.recipe.checkpoint.every > 0;
  const size_t besides = plan.device.kind == core::DeviceKind::cpu ? plan.memory_bytes() : 0;
  if (!is_asked_for && besides + plan.checkpoint_copy_bytes > host_bytes(mesh)) plan.checkpoint_copy_bytes = 0;
  if (plan.device.kind == core::DeviceKind::cpu && plan.checkpoint_copy_bytes > 0)
    plan.memory_rows.push_back({kCheckpointCopyRow, plan.checkpoint_copy_bytes});
  const size_t workspaces = kernels::workspace_bytes(plan.device, sizes_of(plan));
  if (workspaces > 0) plan.memory_rows.push_back({"workspaces of the kernels (estimate)", workspaces});
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

size_t RunPlan::memory_bytes() const {
  size_t sum = 0;
  for (const MemoryRow& row : memory_rows) sum += row.bytes;
  return sum;
}

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

void check_layout(const spec::ParallelSpec& layout, core::Device device) {
  const char* untried = std::getenv("SINTER_UNTRIED");  // 1: try what has never run on a GPU
  const bool on_gpu = device.kind == core::DeviceKind::cuda && !(untried && std::string_view(untried) == "1");
  const std::vector<std::string> missing = spec::untrained_keys(layout, on_gpu);
  SINTER_CHECK(missing.empty(), "[parallel] {} is not trained{} yet: leave it out (docs/parallelism.md)",
               fmt::join(missing, ", "), on_gpu ? " on GPUs" : "");
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
  check_layout(mesh.layout(), plan.device);
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
    plan.host = core::make_host_memory(offload.folder);
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
  plan.shape.graphs = wants_graphs(plan, mesh.all().size());
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
