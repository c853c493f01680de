// A run's plan for people, and as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "core/host_memory.h"
#include "spec/parameters.h"
#include "train/metrics.h"
#include "train/peak.h"
#include "train/run_plan.h"

namespace sinter::train {

using base::format_bytes;
using base::format_count;
using base::format_grouped;

namespace {

std::string describe_validation(const spec::DataRecipe& data, bool has_shards) {
  if (data.validation_share > 0)
    return fmt::format("validation {}{:g} % of {}, not trained on\n", has_shards ? "the last " : "",
                       100 * data.validation_share, has_shards ? "each shard" : "the rows");
  std::string paths;
  for (const spec::SourceRecipe& source : data.validation) paths += (paths.empty() ? "" : ", ") + source.path;
  return paths.empty() ? "" : fmt::format("validation {}\n", paths);
}

std::string format_epochs(double epochs) {
  return fmt::format("{:.{}f}", epochs, epochs < 0.1 ? 3 : epochs < 10 ? 2 : 0);
}

// How long the run takes, between the shares of the machine's products that steps usually reach.
std::string describe_time(const RunPlan& plan, const parallel::Mesh& mesh) {
  constexpr double kHigh = 0.6, kLow = 0.25;
  const double peak = measure_matmul_flops(plan.device, plan.shape.compute) * mesh.all().size();
  const double seconds = plan.flops_per_token * static_cast<double>(plan.tokens()) / peak;
  return fmt::format("time       {} to {}: {:.0f} to {:.0f} % of the {} in {} products measured here\n",
                     base::format_duration(seconds / kHigh), base::format_duration(seconds / kLow), 100 * kHigh,
                     100 * kLow, format_flops(peak), base::dtype_name(plan.shape.compute));
}

}  // namespace

std::string describe(const RunPlan& plan, const parallel::Mesh& mesh) {
  const spec::ParameterCounts counts = spec::count_parameters(plan.model);
  const int64_t T = plan.shape.window;
  std::string text =
      fmt::format("model      {}, {} parameters{}, {} layers, width {}, vocabulary {}\n",
                  spec::family_name(plan.model.family), format_grouped(counts.total),
                  counts.active == counts.total ? "" : fmt::format(" ({} active)", format_count(double(counts.active))),
                  plan.model.num_layers, plan.model.hidden, format_grouped(plan.model.vocab_size));
  if (plan.batches) {
    const int64_t first = plan.batches->sequences_at(0), last = plan.batches->sequences_at(plan.steps);
    const int64_t accumulated = last / (plan.recipe.train.micro_batch * mesh.data().size());
    text += fmt::format("steps      {} of {}{} tokens = {} micro-batch{} of {} x {} on {} rank{}\n",
                        format_grouped(plan.steps), first == last ? "" : format_grouped(first * T) + " growing to ",
                        format_grouped(last * T), accumulated, accumulated == 1 ? "" : "es",
                        plan.recipe.train.micro_batch, T, mesh.all().size(), mesh.all().size() == 1 ? "" : "s");
  }
  text += plan.data_text;
  text += fmt::format("tokens     {} in all, {} FLOPs ({} a token: 6 N + 6 L T D)\n", format_grouped(plan.tokens()),
                      format_count(plan.flops_per_token * static_cast<double>(plan.tokens())),
                      format_count(plan.flops_per_token));
  text += describe_time(plan, mesh);
  for (size_t s = 0; plan.loader && s < plan.loader->sources().size(); ++s) {
    const data::TokenSource& source = *plan.loader->sources()[s];
    const double share = plan.loader->share(s);
    text += fmt::format("data       {}: {} document{}, {} tokens, {:.3g} % of the run = {} epochs\n",
                        plan.recipe.data.sources[s].path, format_grouped(source.num_documents()),
                        source.num_documents() == 1 ? "" : "s", format_grouped(source.num_tokens()), 100 * share,
                        format_epochs(plan.epochs_of(s)));
  }
  text += describe_validation(plan.recipe.data, plan.loader != nullptr);
  text += fmt::format("device     {}, {}{}, recompute {}{}\n", core::runtime(plan.device).description(),
                      base::dtype_name(plan.shape.compute), plan.shape.fp8 ? " with linear layers in fp8" : "",
                      spec::recompute_name(plan.recipe.train.recompute), plan.shape.graphs ? ", CUDA graphs" : "");
  base::Table table({"memory of a rank", "bytes", ""});
  for (const MemoryRow& row : plan.memory_rows)
    table.add_row({row.what, format_grouped(static_cast<int64_t>(row.bytes)), format_bytes(double(row.bytes))});
  table.add_row(
      {"all", format_grouped(static_cast<int64_t>(plan.memory_bytes())), format_bytes(double(plan.memory_bytes()))});
  text += table.to_string();
  text += describe_disk(plan.disk, free_disk_bytes(plan.recipe.checkpoint.dir)) + "\n";
  if (plan.host)
    text += fmt::format(
        "offloaded  {} in {}\n", format_bytes(double(plan.host_state_bytes)),
        mesh.layout().offload.folder.empty() ? "the host's memory" : "files in " + mesh.layout().offload.folder);
  if (plan.device.kind != core::DeviceKind::cpu && plan.checkpoint_copy_bytes > 0)
    text += fmt::format("host memory: {}, {}\n", format_bytes(double(plan.checkpoint_copy_bytes)), kCheckpointCopyRow);
  return text;
}

std::string describe_json(const RunPlan& plan, const parallel::Mesh& mesh) {
  nlohmann::json memory = nlohmann::json::object(), sources = nlohmann::json::array();
  for (const MemoryRow& row : plan.memory_rows) memory[row.what] = row.bytes;
  memory["all"] = plan.memory_bytes();
  if (plan.loader) {
    for (const auto& source : plan.loader->sources()) {
      sources.push_back(
          {{"path", source->path()}, {"documents", source->num_documents()}, {"tokens", source->num_tokens()}});
    }
  }
  const spec::ParameterCounts counts = spec::count_parameters(plan.model);
  const nlohmann::json out{{"family", spec::family_name(plan.model.family)},
                           {"parameters", counts.total},
                           {"active_parameters", counts.active},
                           {"steps", plan.steps},
                           {"tokens", plan.tokens()},
                           {"batch_tokens", plan.source->tokens_at(plan.steps)},
                           {"micro_batches", plan.shape.max_micro_batches},
                           {"ranks", mesh.all().size()},
                           {"flops_per_token", plan.flops_per_token},
                           {"sources", sources},
                           {"memory_bytes", memory},
                           {"offloaded_bytes", plan.host_state_bytes},
                           {"checkpoint_copy_bytes", plan.checkpoint_copy_bytes}};
  return out.dump(2);
}

}  // namespace sinter::train
