// What a search leaves behind: a recipe for `sinter train` and a batch script that runs it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "base/dtype.h"
#include "plan/search.h"
#include "spec/parameters.h"
#include "spec/toml_text.h"
#include "spec/trained_layouts.h"

namespace sinter::plan {
namespace {

// For a POSIX shell; plain paths stay as they are.
std::string shell_quoted(const std::string& text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("._-/+=:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return text;
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + '\'';
}

// As short as it reads back to the same number of its own type: 1e-05 also for a float.
template <class Number>
std::string decimal(Number value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

// The architecture by the keys of [model].
std::string model_keys(const spec::ModelSpec& m) {
  std::string out = fmt::format("family = \"{}\"\n", spec::family_name(m.family));
  auto put = [&](const char* key, int64_t value) { out += fmt::format("{} = {}\n", key, value); };
  put("vocab_size", m.vocab_size);
  put("hidden", m.hidden);
  put("layers", m.num_layers);
  put("heads", m.num_heads);
  put("kv_heads", m.num_kv_heads);
  put("head_dim", m.head_dim);
  put("ffn", m.ffn);
  put("max_positions", m.max_positions);
  out += fmt::format("tied_head = {}\nnorm_eps = {}\n", m.tied_head, decimal(m.norm_eps));
  if (m.rope.kind != spec::RopeKind::none) out += fmt::format("rope_theta = {}\n", decimal(m.rope.theta));
  if (m.rope.kind != spec::RopeKind::none && m.rope.kind != spec::RopeKind::standard) {
    out += fmt::format(
        "# Not by keys: RoPE scaled to {} positions by {:g}. To go on from published weights, give their folder as "
        "path.\n",
        m.max_positions, m.rope.factor);
  }
  if (m.window_of(0) > 0) put("window", m.window_of(0));
  if (m.moe.num_experts > 0) {
    put("experts", m.moe.num_experts);
    put("experts_per_token", m.moe.experts_per_token);
    put("expert_ffn", m.moe.ffn);
    out += fmt::format("balance_loss = {}\n", decimal(m.moe.balance_loss));
  }
  return out;
}

std::string model_section(const ResolvedModel& model) {
  if (model.config.empty()) return "[model]\n" + model_keys(model.spec);
  const std::filesystem::path config(model.config);
  std::string folder = config.parent_path().empty() ? "." : config.parent_path().string();
  const char* remark = "the folder of the config.json that was planned";
  if (config.filename() != "config.json") {
    folder = "FILL-IN-MODEL-FOLDER";
    remark = "a folder that holds the planned file under the name config.json";
  }
  return fmt::format("[model]\npath = {}  # {}\nrandom = true  # new weights; false goes on from the folder's\n",
                     spec::toml_quoted(folder), remark);
}

std::string train_section(const SearchRequest& request, const spec::ParallelSpec& p) {
  std::string precision(base::dtype_name(p.compute));
  if (request.format == MatrixFormat::fp8) precision = "fp8";
  const std::vector<MatrixFormat> trained{MatrixFormat::fp32, MatrixFormat::fp16, MatrixFormat::bf16,
                                          MatrixFormat::fp8};
  const std::string_view format = format_name(request.format);
  const bool is_trained = std::find(trained.begin(), trained.end(), request.format) != trained.end();
  std::string out = fmt::format(
      "\n[train]\ntokens = {}  # FILL IN: 20 per parameter are assumed\nmicro_batch = {}\nbatch_tokens = {}\n"
      "recompute = \"{}\"\nprecision = \"{}\"{}\n",
      20 * spec::count_parameters(request.model).active, p.micro_batch, p.global_batch * p.seq_len,
      spec::recompute_name(p.recompute), precision,
      is_trained ? "" : fmt::format("  # planned in {}, which `sinter train` does not do yet", format));
  if (p.main_gradients == base::DType::bf16) out += "gradients = \"bf16\"\n";
  out += request.cluster.device.backend() == TrainBackend::cuda
             ? "device = \"cuda\"\n"
             : "device = \"cpu\"  # or cuda; there is no other kind\n";
  if (p.moments == base::DType::bf16) out += "\n[optimizer]\nstates = \"bf16\"\n";
  return out;
}

}  // namespace

std::string training_recipe(const SearchRequest& request, const ResolvedModel& model, const spec::ParallelSpec& p) {
  const bool is_named = model.config.empty();
  std::string out = fmt::format("# For `sinter train`: {}{} x {}, {}. Fill in what says FILL IN.\n\n",
                                is_named ? model.name + " on " : "", request.cluster.num_devices,
                                request.cluster.device.name, spec::describe(p));
  out += model_section(model);
  out +=
      fmt::format("\n[data]\nsources = [\"FILL-IN-YOUR-DATA.tok\"]  # token shards, folders of them, .txt or .jsonl\n");
  out += fmt::format("# tokenizer = \"FOLDER\"  # FILL IN for text{}\nsequence_length = {}\n",
                     is_named ? "" : ", unless the model's folder has one", p.seq_len);
  out += train_section(request, p) + "\n[parallel]\n";
  const std::vector<std::string> missing = spec::untrained_keys(p);
  for (const std::string& line : spec::layout_keys(p)) {
    const bool is_missing = std::find(missing.begin(), missing.end(), line) != missing.end();
    out += is_missing ? fmt::format("# {}  # `sinter train` does not do this yet\n", line) : line + "\n";
  }
  if (!missing.empty()) {
    out +=
        "# Without that a rank holds more than was planned, which may not fit. What `sinter train` does already is\n"
        "# planned with: sinter plan search ... --trained\n";
  }
  return out;
}

std::string slurm_script(const spec::ParallelSpec& p, const Cluster& cluster, const std::string& recipe,
                         const std::string& job_name, double hours) {
  int64_t ranks = p.ranks(), per_node = std::min<int64_t>(ranks, cluster.per_node);
  int64_t minutes = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(hours * 60)));
  std::string out = "#!/bin/bash\n";
  out += fmt::format("# {} on {} x {}: {}\n", job_name, ranks, cluster.device.name, spec::describe(p));
  if (const std::vector<std::string> missing = spec::untrained_keys(p); !missing.empty())
    out +=
        fmt::format("# `sinter train` does not do {} yet: see [parallel] in the recipe.\n", fmt::join(missing, ", "));
  out += fmt::format("#SBATCH --job-name={}\n#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n", job_name,
                     (ranks + per_node - 1) / per_node, per_node);
  out += fmt::format("#SBATCH --gpus-per-node={}\n#SBATCH --exclusive\n", per_node);
  out += "#SBATCH --cpus-per-task=8              # FILL IN: cores of a node over its ranks\n";
  out += "##SBATCH --account=ACCOUNT             # FILL IN where your site asks for them, and take one # away\n";
  out += "##SBATCH --partition=PARTITION\n";
  out += fmt::format("#SBATCH --time={}-{:02}:{:02}:00\n", minutes / 1440, minutes / 60 % 24, minutes % 60);
  out += "#SBATCH --requeue\n";
  out += "##SBATCH --array=1-5%1                 # or so many jobs after each other; take one # away\n";
  out += "#SBATCH --signal=USR1@120              # to every rank: a checkpoint is written before the time ends\n";
  out += "#SBATCH --output=%x-%j.log\n#SBATCH --open-mode=append\n\nset -euo pipefail\n";
  out += "# module load openmpi sinter             # FILL IN: what your site calls them\n";
  out += fmt::format("recipe={}\n", shell_quoted(recipe));
  out +=
      "# The run resumes by itself from its last checkpoint. One job after the other until it is done: CHAIN=5 sbatch "
      "FILE\n";
  out += "if [ \"${CHAIN:-1}\" -gt 1 ]; then\n";
  out += "  CHAIN=$((CHAIN - 1)) sbatch --dependency=afterany:\"$SLURM_JOB_ID\" \"$0\"\nfi\n";
  out += "# --mpi: what your Slurm offers for your MPI (srun --mpi=list)\n";
  out += "srun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=cores sinter train \"$recipe\"\n";
  return out;
}

}  // namespace sinter::plan
