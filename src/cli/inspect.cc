// sinter inspect: what is in a model folder, a checkpoint, a safetensors file or a token shard.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "data/token_shard.h"
#include "io/tensor_folder.h"
#include "spec/hf_config.h"
#include "spec/parameters.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;
using base::format_bytes;
using base::format_grouped;
using nlohmann::json;

struct Flags {
  std::string path;
  bool lists_tensors = false, prints_recipe = false, as_json = false;
};

// Lines "key  value" for people and the same as JSON.
class Report {
 public:
  void add(const std::string& key, const std::string& text, json value) {
    lines_ += fmt::format("{:<14} {}\n", key, text);
    json_[key] = std::move(value);
  }
  void add(const std::string& key, const std::string& text) { add(key, text, text); }
  void add(const std::string& key, int64_t number) { add(key, format_grouped(number), number); }
  void add_tensors(const std::vector<io::TensorEntry>& entries) {
    base::Table table({"tensor", "dtype", "shape", "bytes"});
    json list = json::array();
    for (const io::TensorEntry& e : entries) {
      table.add_row({e.name, std::string(base::dtype_name(e.dtype)), io::shape_to_string(e.shape),
                     format_grouped(int64_t(e.bytes.size()))});
      list.push_back(
          {{"name", e.name}, {"dtype", base::dtype_name(e.dtype)}, {"shape", e.shape}, {"bytes", e.bytes.size()}});
    }
    tables_ += table.to_string() + "\n";
    json_["tensors"] = std::move(list);
  }
  void print(bool as_json) const {
    if (as_json) {
      std::printf("%s\n", json_.dump(2).c_str());
    } else {
      std::printf("%s%s", lines_.c_str(), tables_.c_str());
    }
  }

 private:
  std::string lines_, tables_;
  json json_ = json::object();
};

void describe_spec(Report& report, const spec::ModelSpec& spec) {
  const spec::ParameterCounts counts = spec::count_parameters(spec);
  report.add("family", spec::family_name(spec.family));
  report.add("parameters", counts.total);
  if (counts.active != counts.total) report.add("active", counts.active);
  report.add("layers", spec.num_layers);
  report.add("hidden", spec.hidden);
  report.add("heads", fmt::format("{} query, {} key/value, of {}", spec.num_heads, spec.num_kv_heads, spec.head_dim));
  report.add("mlp", spec.ffn);
  if (spec.moe.num_experts > 0) {
    report.add("experts",
               fmt::format("{}, {} per token, of {}", spec.moe.num_experts, spec.moe.experts_per_token, spec.moe.ffn));
  }
  report.add("vocabulary", spec.vocab_size);
  report.add("context", spec.max_positions);
  report.add("tied head", spec.tied_head ? "yes" : "no");
}

void describe_tensors(Report& report, const std::string& folder, bool lists) {
  const io::TensorFolder tensors(folder);
  std::map<std::string, int64_t> formats;
  for (const io::TensorEntry& e : tensors.entries())
    formats[std::string(base::dtype_name(e.dtype))] += e.num_elements();
  std::string text;
  for (const auto& [name, elements] : formats)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", format_grouped(elements), name);
  report.add("weights",
             fmt::format("{} tensors ({}) in {} file{}, {}", tensors.entries().size(), text, tensors.files().size(),
                         tensors.files().size() == 1 ? "" : "s", format_bytes(double(tensors.size_bytes()))));
  if (lists) report.add_tensors(tensors.entries());
}

void describe_state(Report& report, const std::string& folder, bool prints_recipe) {
  const std::string path = folder + "/state/index.json";
  const train::StateIndex index = train::parse_state_index(base::read_file(path), path);
  std::map<std::string, int64_t> kinds;
  for (const train::StateEntry& entry : index.entries) {
    for (const train::StatePiece& piece : entry.pieces) kinds[entry.kind] += piece.count;
  }
  std::string text;
  for (const auto& [kind, elements] : kinds)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, format_grouped(elements));
  report.add("step", index.run.step);
  report.add("updates", index.run.updates);
  report.add("tokens seen", index.run.tokens);
  report.add("state", fmt::format("{} (f32), written by {} rank{}", text, index.ranks, index.ranks == 1 ? "" : "s"));
  if (prints_recipe) report.add("recipe", "\n" + index.run.recipe, index.run.recipe);
}

// A run's folder stands for its newest checkpoint.
std::string resolve_folder(const std::string& path) {
  if (fs::exists(path + "/config.json") || fs::exists(path + "/state/index.json") || !fs::exists(path + "/latest"))
    return path;
  return path + "/latest";
}

void inspect_folder(Report& report, const std::string& folder, const Flags& flags) {
  const bool has_config = fs::exists(folder + "/config.json"), has_state = fs::exists(folder + "/state/index.json");
  SINTER_CHECK(has_config || has_state || io::has_tensors(folder),
               "'{}' is neither a model folder (config.json, *.safetensors) nor a checkpoint (state/index.json)",
               folder);
  report.add("folder", fs::is_symlink(folder) ? folder + " -> " + fs::read_symlink(folder).string() : folder);
  if (has_config) describe_spec(report, spec::load_hf_config(folder + "/config.json"));
  if (io::has_tensors(folder)) describe_tensors(report, folder, flags.lists_tensors);
  if (fs::exists(folder + "/tokenizer.json") || fs::exists(folder + "/tokenizer.model")) {
    report.add("tokenizer", tokenizer::Tokenizer::load(folder).description());
  }
  if (has_state) describe_state(report, folder, flags.prints_recipe);
}

void inspect_safetensors(Report& report, const Flags& flags) {
  const io::SafetensorsFile file(flags.path);
  int64_t elements = 0;
  for (const io::TensorEntry& e : file.entries()) elements += e.num_elements();
  report.add("file", flags.path);
  report.add("elements", elements);
  for (const auto& [key, value] : file.metadata()) report.add(key, value);
  report.add_tensors(file.entries());
}

void inspect_shard(Report& report, const Flags& flags) {
  const data::TokenShard shard(flags.path);
  shard.verify();
  report.add("token shard", flags.path);
  report.add("documents", shard.num_documents());
  report.add("tokens", shard.num_tokens());
  report.add("vocabulary", shard.vocab_size());
  report.add("token bytes", shard.token_bytes());
}

void run_inspect(const Flags& flags) {
  SINTER_CHECK(fs::exists(flags.path), "'{}' does not exist", flags.path);
  Report report;
  if (fs::is_directory(flags.path)) {
    inspect_folder(report, resolve_folder(flags.path), flags);
  } else if (flags.path.ends_with(data::kShardExtension)) {
    inspect_shard(report, flags);
  } else {
    inspect_safetensors(report, flags);
  }
  report.print(flags.as_json);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("inspect", "what is in a model folder, a checkpoint, a safetensors file or a token shard");
  verb->add_option("path", flags->path, "model folder, checkpoint, run folder, .safetensors or .tok file")->required();
  verb->add_flag("--tensors", flags->lists_tensors, "list every tensor of a folder");
  verb->add_flag("--recipe", flags->prints_recipe, "print the recipe a checkpoint was made with");
  verb->add_flag("--json", flags->as_json, "print as JSON");
  verb->callback([flags] { run_inspect(*flags); });
}

}  // namespace sinter::cli
