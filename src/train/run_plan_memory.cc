#include "train/run_plan_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "comm/launch.h"
#include "kernels/backend.h"
#include "spec/parameters.h"
#include "train/checkpoint_writer.h"
#include "train/gradient_sync.h"
#include "train/optimizer.h"
#include "train/peak.h"

namespace sinter::train {
namespace {

using base::format_bytes;

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

}  // namespace

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

size_t RunPlan::memory_bytes() const {
  size_t sum = 0;
  for (const MemoryRow& row : memory_rows) sum += row.bytes;
  return sum;
}

}  // namespace sinter::train
