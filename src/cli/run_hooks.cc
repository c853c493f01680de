#include "cli/run_hooks.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "cli/eval_tasks.h"
#include "cli/generation_flags.h"
#include "comm/together.h"
#include "engine/batch.h"
#include "engine/prompt.h"
#include "eval/results/report.h"
#include "eval/results/table.h"
#include "eval/score/ranked.h"
#include "tokenizer/chat_template.h"

namespace sinter::cli {
namespace {

// What the model says to each prompt, by the engine that serving uses.
void print_samples(const models::Transformer& transformer, const tokenizer::Tokenizer& tokenizer, int64_t step,
                   const spec::Recipe& recipe) {
  const spec::ModelSpec& spec = transformer.spec();
  std::vector<engine::Request> requests;
  std::vector<std::string> prompts;  // of the requests: one without tokens or room has none
  for (const std::string& prompt : recipe.log.sample_prompts) {
    if (prompt.empty() && engine::begin_token(tokenizer, spec) < 0) continue;
    engine::Request request;
    request.prompt = engine::encode_prompt(tokenizer, prompt, spec);
    request.stop_tokens = engine::stop_tokens(tokenizer, spec);
    request.max_new_tokens = engine::room_for(spec, request.prompt.size(), recipe.log.sample_tokens);
    request.sampling.seed = static_cast<uint64_t>(recipe.train.seed + step);
    if (request.max_new_tokens <= 0) continue;
    requests.push_back(std::move(request));
    prompts.push_back(prompt);
  }
  if (requests.empty()) return;
  engine::EngineOptions options = engine_options(requests, tokenizer);
  options.keeps_choices = false;  // a run's own stand in its checkpoints
  engine::Engine engine(transformer, options);
  const auto results = engine::run_batch(engine, requests);
  for (size_t i = 0; i < results.size(); ++i) {
    std::string text = prompts[i] + engine::continuation_text(tokenizer, requests[i].prompt, results[i][0].tokens);
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 5) text.insert(at + 1, "    ");
    std::printf("step %lld: %s\n", static_cast<long long>(step), text.c_str());
  }
  std::fflush(stdout);
}

// The tasks of a recipe, their questions made; asked as often as the run wants.
class RunTasks {
 public:
  explicit RunTasks(const spec::Recipe& recipe) : recipe_(recipe), set_(eval::shipped_tasks()) {
    const spec::EvalRecipe& own = recipe.eval;
    options_.data_folder = eval_data_folder(own.data);
    options_.limit = own.limit;
    options_.allows_code = own.allow_code;
    if (own.few_shot >= 0) options_.prompt.num_few_shot = own.few_shot;
    if (own.chat) {
      SINTER_CHECK(!recipe.model.path.empty(), "eval.chat asks through the chat template of model.path; none is given");
      options_.prompt.chat = chat_renderer(tokenizer::ChatTemplate::load(recipe.model.path));
    }
    for (const std::string& name : choose_tasks(own.tasks, set_)) {
      const eval::Task& task = set_.tasks.at(name);
      SINTER_CHECK(
          !task.runs_code() || own.allow_code,
          "eval.tasks: '{}' runs programs that the model writes, in a sandbox; allow it with eval.allow_code = "
          "true",
          name);
      if (task.runs_code()) eval::check_sandbox(task, own.allow_code);
      prepared_.push_back(eval::prepare_task(task, options_));
    }
  }

  std::vector<std::pair<std::string, double>> ask(const models::Transformer& transformer,
                                                  const tokenizer::Tokenizer& tokenizer, comm::Communicator& ranks,
                                                  int64_t step) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<eval::TaskRun> runs = prepared_;
    auto backend = eval::make_model_backend(transformer, tokenizer, {});
    if (ranks.size() > 1) backend = eval::make_ranked_backend(std::move(backend), ranks);
    eval::answer_tasks(runs, *backend, options_);
    const eval::ScorerStats stats = backend->stats();  // summed over the ranks
    if (ranks.rank() != 0) return {};
    for (eval::TaskRun& run : runs) eval::score_task(run, options_);
    const eval::ResultTable table = eval::make_results(runs, set_);
    eval::RunInfo info;
    info.model = fmt::format("{}, step {}", recipe_.checkpoint.dir, step);
    info.precision = base::dtype_name(transformer.store().options().compute);
    info.device = recipe_.train.device;
    info.limit = options_.limit;
    info.bootstrap = options_.bootstrap;
    info.applies_chat = recipe_.eval.chat;
    info.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    info.stats = stats;
    eval::save_report(fmt::format("{}/eval/step-{:08}", recipe_.checkpoint.dir, step),
                      eval::make_report(runs, table, set_, info), runs, table, false);
    return told(table, step, info.seconds);
  }

 private:
  // Scores of tasks and groups that stand below no other, as lines of the log and numbers for the metrics.
  static std::vector<std::pair<std::string, double>> told(const eval::ResultTable& table, int64_t step,
                                                          double seconds) {
    std::vector<std::pair<std::string, double>> scores;
    std::string text;
    for (const eval::ResultRow& row : table.rows) {
      if (row.depth > 0) continue;
      for (const eval::Aggregate& a : row.aggregates) {
        const std::string name = row.name + "/" + a.metric + (a.filter == "none" ? "" : "," + a.filter);
        scores.emplace_back(name, a.value);
        text += fmt::format(", {} {:.4f}{}", name, a.value, a.error ? fmt::format(" ± {:.4f}", *a.error) : "");
      }
    }
    base::log_info("step {}{} ({:.1f} s)", step, text, seconds);
    return scores;
  }

  const spec::Recipe recipe_;
  eval::TaskSet set_;
  eval::RunOptions options_;
  std::vector<eval::TaskRun> prepared_;
};

}  // namespace

train::TrainHooks make_run_hooks(const spec::Recipe& recipe, comm::Communicator& comm) {
  train::TrainHooks hooks;
  if (!recipe.log.sample_prompts.empty()) {
    hooks.sample = [recipe](const models::Transformer& transformer, const tokenizer::Tokenizer& tokenizer,
                            int64_t step) { print_samples(transformer, tokenizer, step, recipe); };
  }
  if (recipe.eval.tasks.empty()) return hooks;
  std::shared_ptr<RunTasks> tasks;
  comm::together(comm, [&] { tasks = std::make_shared<RunTasks>(recipe); });
  hooks.evaluate = [tasks](const models::Transformer& transformer, const tokenizer::Tokenizer& tokenizer,
                           comm::Communicator& ranks,
                           int64_t step) { return tasks->ask(transformer, tokenizer, ranks, step); };
  return hooks;
}

}  // namespace sinter::cli
