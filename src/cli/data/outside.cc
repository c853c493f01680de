#include "cli/data/outside.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/source.h"
#include "eval/results/report.h"
#include "eval/run.h"
#include "eval/score/backend.h"
#include "models/open_model.h"
#include "train/export.h"

namespace sinter::cli {
namespace {

constexpr size_t kMostWindows = 4;  // of a long document

// A model with what scoring needs; all of it lives as long as the function that holds it.
struct ScorerModel {
  tokenizer::Tokenizer tokenizer;
  models::OpenModel model;
  std::unique_ptr<eval::ScoringBackend> backend;
  std::mutex mutex;

  explicit ScorerModel(const std::string& folder)
      : tokenizer(tokenizer::Tokenizer::load(folder)),
        model(models::open_model(folder, {core::Device{}, models::parse_precision("fp32"), false})) {
    backend = eval::make_model_backend(*model.transformer, tokenizer, {});
  }
  double perplexity(std::string_view text) {
    const std::lock_guard lock(mutex);
    std::vector<eval::TokenWindow> windows = backend->encoder().encode_rolling(text);
    if (windows.size() > kMostWindows) windows.resize(kMostWindows);
    double sum = 0, count = 0;
    for (const eval::TokenWindow& w : windows) count += static_cast<double>(w.continuation.size());
    backend->score(windows, [&](size_t, const eval::Score& score) { sum += score.log_likelihood; });
    return count > 0 ? std::exp(-sum / count) : INFINITY;
  }
};

}  // namespace

std::vector<data::EvalItem> evaluation_items(const std::vector<std::string>& tasks, const std::string& data_folder) {
  eval::RunOptions options;
  options.data_folder = data_folder;
  if (data_folder.empty()) {
    const char* named = std::getenv("SINTER_EVAL_DATA");
    options.data_folder = named ? named : "data/eval";
  }
  options.prompt.num_few_shot = 0;
  std::vector<data::EvalItem> items;
  for (const std::string& name : tasks) {
    for (const std::string& member : eval::shipped_tasks().members_of(name)) {
      const eval::TaskRun run = eval::prepare_task(eval::shipped_tasks().tasks.at(member), options);
      for (const eval::EvalSample& sample : run.samples) {
        const eval::Question& q = sample.question;
        const auto right = static_cast<size_t>(std::max<int64_t>(q.gold, 0));
        const std::string query = q.contexts.empty() ? "" : q.context(right);
        items.push_back({member, query, q.continuations.empty() ? q.target : q.continuation(right)});
      }
    }
  }
  return items;
}

void write_tokenizer_beside(const std::string& shard, const std::string& tokenizer, const std::string& eos) {
  const std::filesystem::path folder = data::tokenizer_folder_of(shard);
  bool has_config = false;
  auto write = [&](const std::string& name, const std::string& bytes) {
    base::create_folders((folder / name).parent_path().string());
    base::write_file_atomic((folder / name).string(), bytes);
  };
  auto with_eos = [&](nlohmann::json config) {
    config["eos_token"] = eos;
    return config.dump(2) + "\n";
  };
  for (const train::NamedFile& file : train::read_tokenizer_files(tokenizer)) {
    const bool is_config = file.name == "tokenizer_config.json";
    has_config = has_config || is_config;
    write(file.name, is_config && !eos.empty() ? with_eos(base::parse_json(file.bytes, file.name)) : file.bytes);
  }
  if (!has_config && !eos.empty()) write("tokenizer_config.json", with_eos(nlohmann::json::object()));
}

void fill_from_outside(data::PipelineRecipe& recipe) {
  if (!recipe.decontaminate_tasks.empty()) {
    recipe.task_items = evaluation_items(recipe.decontaminate_tasks, recipe.decontaminate_data);
  }
  if (recipe.scorer_model.empty()) return;
  auto scorer = std::make_shared<ScorerModel>(recipe.scorer_model);
  recipe.scorer = [scorer](std::string_view text) { return scorer->perplexity(text); };
  recipe.scorer_key = std::strtoull(eval::hash_model(recipe.scorer_model).c_str(), nullptr, 16);
}

}  // namespace sinter::cli
