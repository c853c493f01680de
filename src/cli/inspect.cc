#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/inspect_gguf.h"
#include "cli/verbs.h"
#include "data/source.h"
#include "data/token_shard.h"
#include "io/gguf.h"
#include "io/tensor_folder.h"
#include "spec/hf_config.h"
#include "spec/parameters.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Flags {
  std::string path;
  bool as_json = false, is_summary = false, with_values = false, with_recipe = false;
};

// What stands in the path: a JSON object for --json, and lines and a table for people, filled by the same functions.
struct Report {
  ordered_json json = ordered_json::object();
  std::vector<std::pair<std::string, std::string>> lines;  // label, text
  std::optional<base::Table> table;
  std::string recipe;  // of a checkpoint, when asked for

  void add(std::string label, std::string text) { lines.emplace_back(std::move(label), std::move(text)); }
};

std::string join(const std::string& folder, std::string_view name) { return (fs::path(folder) / name).string(); }
std::string parameters_text(int64_t count) {
  return fmt::format("{} ({})", base::format_grouped(count), base::format_count(static_cast<double>(count)));
}

// ---- config --------------------------------------------------------------------------------------------------------

std::string describe_layers(const spec::ModelSpec& m) {
  std::string heads = m.num_heads == m.num_kv_heads
                          ? fmt::format("{} heads of {}", m.num_heads, m.head_dim)
                          : fmt::format("{} heads of {} on {} KV heads", m.num_heads, m.head_dim, m.num_kv_heads);
  std::string mlp = m.ffn > 0 ? fmt::format("{}MLP {}", m.gated_mlp ? "gated " : "", m.ffn) : "";
  if (m.moe.num_experts > 0) {
    auto num_sparse = std::count_if(m.sparse_layers.begin(), m.sparse_layers.end(), [](uint8_t s) { return s != 0; });
    if (num_sparse == m.num_layers) mlp.clear();  // no layer uses the dense width
    mlp += fmt::format("{}{} of {} experts of {} in {} layers", mlp.empty() ? "" : ", ", m.moe.experts_per_token,
                       m.moe.num_experts, m.moe.ffn, num_sparse);
  }
  return fmt::format("{} layers, width {}, {}, {}", m.num_layers, m.hidden, heads, mlp);
}

void add_config(const std::string& path, Report& report) {
  nlohmann::json config = base::load_json(path);
  auto type = config.is_object() ? config.value("model_type", nlohmann::json()) : nlohmann::json();
  try {
    const nlohmann::json quantization =
        config.is_object() ? config.value("quantization_config", nlohmann::json()) : nlohmann::json();
    if (quantization.is_object()) {
      report.add("quantized",
                 fmt::format("by {}, {} bits", quantization.value("quant_method", "?"),
                             quantization.value("bits", nlohmann::json()).is_number() ? quantization["bits"].dump()
                                                                                      : "4 or 8"));
      config.erase("quantization_config");
    }
    spec::ModelSpec m = spec::parse_hf_config(config, path);
    spec::ParameterCounts counts = spec::count_parameters(m);
    int64_t window = m.window.empty() ? 0 : *std::max_element(m.window.begin(), m.window.end());
    report.add("model", fmt::format("{}: {}", spec::family_name(m.family), describe_layers(m)));
    report.add("text",
               fmt::format("vocabulary {}, context {}{}{}", base::format_grouped(m.vocab_size),
                           base::format_grouped(m.max_positions), window > 0 ? fmt::format(", window {}", window) : "",
                           m.tied_head ? ", head tied to the embedding" : ""));
    std::string active =
        counts.active != counts.total ? ", " + parameters_text(counts.active) + " active per token" : "";
    report.add("parameters", parameters_text(counts.total) + active);
    report.json["model"] = {{"family", spec::family_name(m.family)},
                            {"layers", m.num_layers},
                            {"hidden", m.hidden},
                            {"heads", m.num_heads},
                            {"kv_heads", m.num_kv_heads},
                            {"head_dim", m.head_dim},
                            {"ffn", m.ffn},
                            {"experts", m.moe.num_experts},
                            {"experts_per_token", m.moe.experts_per_token},
                            {"vocab_size", m.vocab_size},
                            {"max_positions", m.max_positions},
                            {"tied_head", m.tied_head}};
    report.json["parameters"] = {{"total", counts.total}, {"active", counts.active}, {"embedding", counts.embedding}};
  } catch (const base::Error& e) {  // a model this program cannot run can still be looked at
    report.add("model", fmt::format("{}, not one this program runs: {}",
                                    type.is_string() ? type.get<std::string>() : "unknown", e.what()));
    report.json["model"] = {{"model_type", type}, {"problem", e.what()}};
  }
}

// ---- tensors -------------------------------------------------------------------------------------------------------

struct Values {
  double mean = 0, deviation = 0, largest = 0;
  int64_t num_bad = 0;  // NaN or infinite
};

Values measure(const io::TensorEntry& entry) {
  constexpr int64_t kPiece = 1 << 16;
  int64_t count = entry.num_elements();
  size_t width = base::dtype_bytes(entry.dtype);
  std::vector<Values> pieces(static_cast<size_t>((count + kPiece - 1) / kPiece));  // mean holds sums, deviation squares
  base::parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> buffer(kPiece);
    for (int64_t p = begin; p < end; ++p) {
      int64_t size = std::min(kPiece, count - p * kPiece);
      base::convert_elements(entry.dtype, entry.bytes.data() + static_cast<size_t>(p * kPiece) * width,
                             base::DType::f64, buffer.data(), static_cast<size_t>(size));
      Values& v = pieces[static_cast<size_t>(p)];
      for (int64_t i = 0; i < size; ++i) {
        double x = buffer[static_cast<size_t>(i)];
        if (!std::isfinite(x)) {
          ++v.num_bad;
          continue;
        }
        v.mean += x;
        v.deviation += x * x;
        v.largest = std::max(v.largest, std::abs(x));
      }
    }
  });
  Values all;
  for (const Values& v : pieces) {
    all.mean += v.mean;
    all.deviation += v.deviation;
    all.largest = std::max(all.largest, v.largest);
    all.num_bad += v.num_bad;
  }
  auto good = static_cast<double>(std::max<int64_t>(1, count - all.num_bad));
  all.mean /= good;
  all.deviation = std::sqrt(std::max(0.0, all.deviation / good - all.mean * all.mean));
  return all;
}

void add_tensors(const std::vector<io::TensorEntry>& entries, size_t num_files, const Flags& flags, Report& report) {
  int64_t num_elements = 0, num_bad = 0;
  uint64_t num_bytes = 0;
  std::map<std::string_view, int64_t> by_dtype;
  std::vector<std::string> header{"tensor", "dtype", "shape", "bytes"};
  if (flags.with_values) header.insert(header.end(), {"mean", "std", "|max|", "not finite"});
  base::Table table(header);
  ordered_json list = ordered_json::array();
  for (const io::TensorEntry& e : entries) {
    num_elements += e.num_elements();
    num_bytes += e.bytes.size();
    by_dtype[base::dtype_name(e.dtype)] += e.num_elements();
    std::vector<std::string> row{e.name, std::string(base::dtype_name(e.dtype)), io::shape_to_string(e.shape),
                                 base::format_grouped(static_cast<int64_t>(e.bytes.size()))};
    ordered_json item = {
        {"name", e.name}, {"dtype", base::dtype_name(e.dtype)}, {"shape", e.shape}, {"bytes", e.bytes.size()}};
    if (flags.with_values && base::is_floating(e.dtype)) {
      Values v = measure(e);
      num_bad += v.num_bad;
      for (double x : {v.mean, v.deviation, v.largest}) row.push_back(fmt::format("{:.4g}", x));
      row.push_back(base::format_grouped(v.num_bad));
      item["mean"] = v.mean;
      item["std"] = v.deviation;
      item["abs_max"] = v.largest;
      item["not_finite"] = v.num_bad;
    } else if (flags.with_values) {
      row.insert(row.end(), 4, "");
    }
    table.add_row(std::move(row));
    list.push_back(std::move(item));
  }
  std::string dtypes;
  for (const auto& [name, count] : by_dtype) {
    double share = num_elements > 0 ? 100.0 * static_cast<double>(count) / static_cast<double>(num_elements) : 0;
    dtypes += (dtypes.empty() ? "" : ", ") +
              (by_dtype.size() == 1 ? std::string(name) : fmt::format("{} {:.3g}%", name, share));
  }
  report.add("tensors",
             fmt::format("{} with {} elements in {} file{}, {}{}{}", entries.size(), parameters_text(num_elements),
                         num_files, num_files == 1 ? "" : "s", base::format_bytes(static_cast<double>(num_bytes)),
                         dtypes.empty() ? "" : ", ", dtypes));
  if (num_bad > 0) report.add("", fmt::format("{} values are NaN or infinite", base::format_grouped(num_bad)));
  report.json["tensors"] = {
      {"count", entries.size()}, {"elements", num_elements}, {"bytes", num_bytes}, {"files", num_files}};
  if (flags.is_summary) return;
  report.json["tensors"]["list"] = std::move(list);
  report.table = std::move(table);
}

void add_metadata(const std::map<std::string, std::string>& metadata, Report& report) {
  std::string text;
  for (const auto& [key, value] : metadata) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", key, value);
  if (!text.empty()) report.add("metadata", text);
  report.json["metadata"] = metadata;
}

// ---- tokenizer -----------------------------------------------------------------------------------------------------

bool has_tokenizer(const std::string& folder) {
  return fs::exists(join(folder, "tokenizer.json")) || fs::exists(join(folder, "tokenizer.model"));
}

void add_tokenizer_of(const std::string& path, Report& report) {
  tokenizer::Tokenizer t = tokenizer::Tokenizer::load(path);
  const tokenizer::SpecialIds& ids = t.special_ids();
  std::string specials;
  for (auto [name, id] : {std::pair{"BOS", ids.bos}, {"EOS", ids.eos}, {"PAD", ids.pad}, {"UNK", ids.unk}}) {
    if (id >= 0) specials += fmt::format(", {} {} {}", name, id, t.token_text(id));
  }
  report.add("tokenizer", fmt::format("{} ids{}", base::format_grouped(t.vocab_size()), specials));
  report.add("", t.description());
  report.json["tokenizer"] = {
      {"vocab_size", t.vocab_size()},  {"bos", ids.bos}, {"eos", ids.eos}, {"pad", ids.pad}, {"unk", ids.unk},
      {"description", t.description()}};
}

void add_chat_templates(const std::string& folder, Report& report) {
  std::optional<tokenizer::ChatTemplate> chat;
  try {
    chat = tokenizer::ChatTemplate::load(folder);
  } catch (const base::Error& e) {  // the rest of the folder can still be looked at
    report.add("chat template", fmt::format("not one this program reads: {}", e.what()));
    report.json["chat_templates"] = {{"problem", e.what()}};
    return;
  }
  std::string text;
  ordered_json list = ordered_json::object();
  for (const std::string& name : chat->names()) {
    size_t size = chat->source(name).size();
    text += fmt::format("{}{} ({} bytes)", text.empty() ? "" : ", ", name,
                        base::format_grouped(static_cast<int64_t>(size)));
    list[name] = size;
  }
  report.add("chat template", text);
  report.json["chat_templates"] = std::move(list);
}

// ---- checkpoints ---------------------------------------------------------------------------------------------------

void add_state(const std::string& index_path, const Flags& flags, Report& report) {
  train::StateIndex index = train::parse_state_index(base::read_file(index_path), index_path);
  std::map<std::string, std::pair<int64_t, int64_t>> kinds;  // to tensors, elements
  base::Table table({"state", "kind", "shape", "pieces"});
  ordered_json list = ordered_json::array();
  for (const train::StateEntry& e : index.entries) {
    const int64_t count = e.shape.num_elements();
    ++kinds[e.kind].first;
    kinds[e.kind].second += count;
    std::vector<int64_t> axes;
    for (int axis = 0; axis < e.shape.rank(); ++axis) axes.push_back(e.shape[axis]);
    table.add_row({e.name, e.kind, e.shape.to_string(), std::to_string(e.parts.size())});
    list.push_back({{"name", e.name}, {"kind", e.kind}, {"shape", axes}, {"pieces", e.parts.size()}});
  }
  report.add("checkpoint", fmt::format("step {}, {}, {}, written by {}", base::format_grouped(index.run.step),
                                       counted(index.run.updates, "optimizer update"),
                                       counted(index.run.tokens, "token"), counted(index.ranks, "rank")));
  ordered_json sums = ordered_json::object();
  for (const auto& [kind, sum] : kinds) {
    report.add("", fmt::format("{}: {}, {}", kind, counted(sum.first, "tensor"), counted(sum.second, "element")));
    sums[kind] = {{"tensors", sum.first}, {"elements", sum.second}};
  }
  report.json["checkpoint"] = {
      {"step", index.run.step}, {"updates", index.run.updates}, {"tokens", index.run.tokens}, {"ranks", index.ranks},
      {"kinds", sums},          {"recipe", index.run.recipe}};
  if (flags.with_recipe) report.recipe = index.run.recipe;
  if (flags.is_summary) return;
  report.json["checkpoint"]["list"] = std::move(list);
  if (!report.table) report.table = std::move(table);  // a model's own tensors say more
}

// A run's folder: the steps that have checkpoints. Gives the newest, "" when there is none.
std::string add_checkpoint_list(const std::string& folder, Report& report) {
  std::vector<std::string> steps;
  std::error_code unreadable;  // a folder within that is not for us to read is no checkpoint of ours
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / "state" / "index.json", unreadable) && !entry.is_symlink()) {
      steps.push_back(entry.path().filename().string());
    }
  }
  if (steps.empty()) return "";
  std::sort(steps.begin(), steps.end());
  std::string latest =
      fs::is_symlink(join(folder, "latest")) ? fs::read_symlink(join(folder, "latest")).filename().string() : "";
  if (std::find(steps.begin(), steps.end(), latest) == steps.end()) latest.clear();  // it leads nowhere
  std::string text;
  for (const std::string& step : steps) text += (text.empty() ? "" : ", ") + step + (step == latest ? " (latest)" : "");
  report.add("checkpoints", text);
  report.json["checkpoints"] = steps;
  report.json["latest"] = latest;
  return latest.empty() ? steps.back() : latest;
}

void add_shards(const std::string& path, Report& report) {
  const bool is_folder = fs::is_directory(path);
  for (const std::string& name : data::shard_paths(path)) {
    const data::TokenShard shard(name);
    shard.verify();
    report.add("token shard",
               fmt::format("{}{} in {}, vocabulary {}, {} bytes per token",
                           is_folder ? fs::path(name).filename().string() + ": " : "",
                           counted(shard.num_tokens(), "token"), counted(shard.num_documents(), "document"),
                           base::format_grouped(shard.vocab_size()), shard.token_bytes()));
    ordered_json found{{"tokens", shard.num_tokens()},
                       {"documents", shard.num_documents()},
                       {"vocab_size", shard.vocab_size()},
                       {"token_bytes", shard.token_bytes()},
                       {"tokenizer_hash", fmt::format("{:016x}", shard.tokenizer_hash())}};
    if (is_folder) {
      report.json["shards"][fs::path(name).filename().string()] = std::move(found);
    } else {
      report.json["shard"] = std::move(found);
    }
  }
}

bool has_shards(const std::string& folder) {
  return std::any_of(fs::directory_iterator(folder), fs::directory_iterator(), [](const fs::directory_entry& entry) {
    return entry.path().extension() == data::kShardExtension;
  });
}

// ---- what a path is ------------------------------------------------------------------------------------------------

void inspect_folder(const std::string& folder, const Flags& flags, Report& report) {
  if (std::string newest = add_checkpoint_list(folder, report); !newest.empty()) {
    return inspect_folder(join(folder, newest), flags, report);
  }
  bool found = false;
  if (fs::exists(join(folder, "config.json"))) {
    add_config(join(folder, "config.json"), report);
    found = true;
  }
  if (io::has_tensors(folder)) {
    io::TensorFolder tensors(folder);
    add_tensors(tensors.entries(), tensors.files().size(), flags, report);
    found = true;
  }
  if (has_tokenizer(folder)) {
    try {
      add_tokenizer_of(folder, report);
    } catch (const base::Error& e) {  // the model beside it can still be looked at
      report.add("tokenizer", e.what());
      report.json["tokenizer"] = {{"problem", e.what()}};
    }
    found = true;
  }
  if (tokenizer::ChatTemplate::exists(folder)) {
    add_chat_templates(folder, report);
    found = true;
  }
  std::string index =
      fs::exists(join(folder, "state/index.json")) ? join(folder, "state/index.json") : join(folder, "index.json");
  if (fs::exists(index)) {
    add_state(index, flags, report);
    found = true;
  }
  if (has_shards(folder)) {
    add_shards(folder, report);
    found = true;
  }
  SINTER_CHECK(
      found,
      "'{}' holds nothing that inspect knows: no config.json, model.safetensors, tokenizer.json, tokenizer.model, "
      "chat template, checkpoint (state/index.json) or token shards (*.tok)",
      folder);
}

// The verb that shows a file which is none of a model's; "" for a file of no kind that is known.
std::string other_verb(const std::string& name) {
  const std::string ending = fs::path(name).extension().string();
  if (name == "metrics.jsonl") return "; `sinter plot` draws it";
  if (ending == ".toml") return "; `sinter train FILE --dry-run` says what a recipe would do";
  for (const char* text : {".txt", ".md", ".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst"}) {
    if (ending == text) return "; `sinter data preview` shows documents";
  }
  return "";
}

void inspect_file(const Flags& flags, Report& report) {
  const std::string& path = flags.path;
  std::string name = fs::path(path).filename().string();
  if (name.ends_with(".safetensors")) {
    io::SafetensorsFile file(path);
    add_metadata(file.metadata(), report);
    add_tensors(file.entries(), 1, flags, report);
  } else if (name.ends_with(".tiktoken") || name.ends_with(".model") || name == "tokenizer.json") {
    add_tokenizer_of(path, report);
  } else if (name.ends_with(data::kShardExtension)) {
    add_shards(path, report);
  } else if (name == "index.json") {
    add_state(path, flags, report);
  } else if (name == "config.json") {
    add_config(path, report);
  } else {
    base::fail(
        "'{}' is not a file that inspect knows; it reads *.safetensors, *.gguf, config.json, tokenizer.json, *.model, "
        "*.tiktoken, *.tok, a checkpoint's index.json, and folders of them{}",
        path, other_verb(name));
  }
}

void run_inspect(Flags flags) {
  SINTER_CHECK(fs::exists(flags.path), "'{}' does not exist", flags.path);
  if (io::is_gguf(flags.path)) return inspect_gguf(flags.path, flags.is_summary, flags.as_json);
  Report report;
  report.json["path"] = flags.path;
  if (fs::is_directory(flags.path)) {
    inspect_folder(flags.path, flags, report);
  } else {
    inspect_file(flags, report);
  }
  if (flags.as_json) {
    std::printf("%s\n", report.json.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
    return;
  }
  if (flags.with_recipe) {  // and nothing else, so that it can be written to a file
    SINTER_CHECK(!report.recipe.empty(), "'{}' is no checkpoint: it does not say what recipe it was made with",
                 flags.path);
    std::printf("%s", report.recipe.c_str());
    return;
  }
  std::printf("%s\n", flags.path.c_str());
  for (const auto& [label, text] : report.lines) std::printf("  %-14s%s\n", label.c_str(), text.c_str());
  if (report.table) std::printf("\n%s", report.table->to_string(2).c_str());
}

}  // namespace

void add_inspect(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb(
      "inspect", "show what is in a model folder, safetensors or GGUF file, tokenizer, checkpoint or token shards");
  verb.footer("Examples:\n  sinter inspect MODEL\n  sinter inspect model.gguf\n  sinter inspect run");
  verb.option("PATH", &flags->path, "a folder, or one of its files").required();
  verb.flag("--summary", &flags->is_summary, "leave out the table of tensors");
  verb.flag("--values", &flags->with_values,
            "read the tensors too: mean, deviation, largest value, NaN or infinite ones");
  verb.flag("--recipe", &flags->with_recipe, "print the recipe a checkpoint was made with, and nothing else");
  verb.flag("--json", &flags->as_json, "print as JSON");
  verb.on_run([flags] { run_inspect(*flags); });
}

}  // namespace sinter::cli
