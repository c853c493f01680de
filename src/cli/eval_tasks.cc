#include "cli/eval_tasks.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "comm/communicator.h"
#include "eval/results/journal.h"
#include "eval/results/report.h"
#include "eval/results/table.h"
#include "eval/score/ranked.h"
#include "eval/score/server_backend.h"
#include "models/open_model.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string tasks, model, device = "cpu", precision = "fp32", tokenizer, data, output, system, chat_template, server;
  int64_t num_few_shot = -1, max_tokens = 0, batch_tokens = 2048, bootstrap = 100000, seed = -1, connections = 8;
  double limit = 0;
  bool as_json = false, lists = false, allows_code = false, applies_chat = false, one_turn = false, is_html = false;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void list_tasks(const eval::TaskSet& set, bool as_json) {
  if (as_json) {
    nlohmann::json j = nlohmann::json::array();
    for (const auto& [name, task] : set.tasks) {
      j.push_back({{"task", name},
                   {"group", task.group},
                   {"version", task.version},
                   {"data", task.data},
                   {"obtain", task.obtain}});
    }
    std::printf("%s\n", j.dump(2).c_str());
    return;
  }
  base::Table table({"task", "data", "from"});
  for (const auto& [name, group] : set.groups) {
    table.add_row({name, fmt::format("{} tasks", set.members_of(name).size()), ""});
  }
  for (const auto& [name, task] : set.tasks) {
    if (!task.group.empty() && set.members_of(task.group).size() > 3) continue;  // told by its group
    table.add_row({name, task.data.at(task.split), task.obtain});
  }
  std::printf("%s", table.to_string().c_str());
}

eval::RunOptions make_options(const Flags& flags) {
  eval::RunOptions options;
  options.data_folder = eval_data_folder(flags.data);
  if (flags.num_few_shot >= 0) options.prompt.num_few_shot = flags.num_few_shot;
  if (flags.seed >= 0) options.prompt.seed = static_cast<uint64_t>(flags.seed);
  options.prompt.system = flags.system;
  options.prompt.is_multiturn = !flags.one_turn;
  options.limit = flags.limit;
  options.max_tokens = flags.max_tokens;
  options.bootstrap = flags.bootstrap;
  options.allows_code = flags.allows_code;
  if (flags.applies_chat || !flags.chat_template.empty()) {
    options.prompt.chat =
        chat_renderer(flags.chat_template.empty()
                          ? tokenizer::ChatTemplate::load(flags.model)
                          : tokenizer::ChatTemplate(base::read_file(flags.chat_template), flags.chat_template));
  }
  return options;
}

// Who answers: a model opened here, or a server. The tokenizer and the model live as long as this.
struct Answerer {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<models::OpenModel> model;
  std::unique_ptr<eval::ScoringBackend> backend;
  std::string hash;
};

Answerer open_answerer(const Flags& flags) {
  Answerer who;
  const bool is_folder = std::filesystem::exists(flags.model);
  const std::string tokenizer = !flags.tokenizer.empty() ? flags.tokenizer : is_folder ? flags.model : "";
  if (flags.server.empty()) models::check_model_folder(flags.model);
  if (!tokenizer.empty() || flags.server.empty()) {
    who.tokenizer = std::make_unique<tokenizer::Tokenizer>(tokenizer::Tokenizer::load(tokenizer));
  }
  if (flags.server.empty()) {
    who.model = std::make_unique<models::OpenModel>(models::open_model(
        flags.model, {core::parse_device(flags.device), models::parse_precision(flags.precision), false}));
    eval::ModelBackendOptions options;
    options.scorer.batch_tokens = flags.batch_tokens;
    who.backend = eval::make_model_backend(*who.model->transformer, *who.tokenizer, options);
    who.hash = eval::hash_model(flags.model);
    return who;
  }
  eval::ServerBackendOptions options;
  options.url = flags.server;
  if (!is_folder) options.model = flags.model;
  if (const char* key = std::getenv("OPENAI_API_KEY")) options.api_key = key;
  options.tokenizer = who.tokenizer.get();
  options.concurrency = flags.connections;
  who.backend = eval::make_server_backend(options);
  who.hash = fmt::format("{:016x}", base::hash_text(flags.server + "\n" + flags.model));
  return who;
}

void run_tasks(const Flags& flags, comm::Communicator& comm) {
  eval::TaskSet set = eval::shipped_tasks();
  if (flags.lists) return list_tasks(set, flags.as_json);
  if (flags.tasks.empty() || (flags.model.empty() && flags.server.empty())) {
    base::fail_usage("expected TASK[,TASK...] MODEL, or one of the verbs perplexity, kl, compare (see --help)");
  }
  const std::vector<std::string> chosen = choose_tasks(split(flags.tasks, ','), set);
  const eval::RunOptions options = make_options(flags);
  std::vector<eval::TaskRun> runs;
  for (const std::string& name : chosen) {
    const eval::Task& task = set.tasks.at(name);
    if (task.runs_code()) eval::check_sandbox(task, flags.allows_code);  // before hours of generation
    runs.push_back(eval::prepare_task(task, options));
  }
  const auto start = std::chrono::steady_clock::now();
  Answerer who = open_answerer(flags);
  std::unique_ptr<eval::ScoringBackend> backend = std::move(who.backend);
  if (!flags.output.empty()) {
    const std::string file = comm.size() > 1 ? fmt::format("answers.{}.jsonl", comm.rank()) : "answers.jsonl";
    backend = eval::make_journal(std::move(backend), flags.output, who.hash + flags.precision, file);
  }
  if (comm.size() > 1) backend = eval::make_ranked_backend(std::move(backend), comm);
  const core::Device device = core::parse_device(flags.device);
  const eval::EnergyMeter meter(device.kind == core::DeviceKind::cuda ? device.index : -1);
  base::ProgressLine line;
  const auto asked = std::chrono::steady_clock::now();
  eval::answer_tasks(runs, *backend, options, [&](size_t done, size_t total) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
    if (comm.rank() != 0 || (done % 16 && done != total)) return;
    line.update(fmt::format("{}/{} requests, {:.1f}/s, ETA {}{}", done, total, double(done) / seconds,
                            base::format_duration(seconds * double(total - done) / double(done)),
                            flags.output.empty() ? "" : "; Ctrl-C keeps what is done"));
  });
  line.finish();
  const eval::ScorerStats stats = backend->stats();  // summed over the ranks
  if (comm.rank() != 0) return;
  for (eval::TaskRun& run : runs) eval::score_task(run, options);
  const eval::ResultTable table = eval::make_results(runs, set);
  eval::RunInfo info;
  info.model = flags.server.empty() ? flags.model : flags.server + " " + flags.model;
  info.model_hash = who.hash;
  info.precision = flags.precision;
  info.device = flags.device;
  info.limit = flags.limit;
  info.bootstrap = flags.bootstrap;
  info.applies_chat = static_cast<bool>(options.prompt.chat);
  info.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  info.stats = stats;
  info.energy = meter.read();
  const nlohmann::ordered_json report = eval::make_report(runs, table, set, info);
  if (!flags.output.empty()) eval::save_report(flags.output, report, runs, table, flags.is_html);
  if (flags.as_json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  std::printf("%s%s", table.to_string().c_str(), eval::footer(info).c_str());
  if (!flags.output.empty()) std::printf("written to %s\n", flags.output.c_str());
}

}  // namespace

std::vector<std::string> choose_tasks(const std::vector<std::string>& names, eval::TaskSet& set) {
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    std::vector<std::string> found;
    if (name.ends_with(".toml")) {
      eval::TaskSet own;
      eval::read_task_file(base::read_file(name), name, own);
      for (auto& [task_name, task] : own.tasks) {
        // Files of a user's own task lie beside it.
        for (auto& [unused, path] : task.data) {
          const fs::path beside = fs::path(name).parent_path() / path;
          if (fs::path(path).is_relative() && fs::exists(beside)) path = fs::absolute(beside).string();
        }
        set.tasks[task_name] = task;
      }
      for (auto& [group_name, group] : own.groups) set.groups[group_name] = group;
      found = own.order;
    } else {
      found = set.members_of(name);
    }
    for (std::string& task : found) {
      if (std::find(chosen.begin(), chosen.end(), task) == chosen.end()) chosen.push_back(std::move(task));
    }
  }
  if (chosen.empty()) base::fail_usage("no task is named; `sinter eval --list` prints those there are");
  return chosen;
}

std::string eval_data_folder(const std::string& given) {
  if (!given.empty()) return given;
  const char* named = std::getenv("SINTER_EVAL_DATA");
  return named ? named : "data/eval";
}

std::function<std::string(const std::vector<eval::ChatMessage>&, bool)> chat_renderer(tokenizer::ChatTemplate chat) {
  return [chat = std::make_shared<tokenizer::ChatTemplate>(std::move(chat))](
             const std::vector<eval::ChatMessage>& messages, bool continues) {
    return eval::render_chat(*chat, messages, continues);
  };
}

void add_eval_tasks(Command verb) {
  auto flags = std::make_shared<Flags>();
  verb.option("TASK", &flags->tasks, "tasks or groups, comma between them, or task files (.toml)");
  verb.option("MODEL", &flags->model,
              "model folder; with --server: the model's name there, or a folder with its tokenizer");
  verb.option("--server", &flags->server,
              "ask an OpenAI-compatible server at this URL (key: $OPENAI_API_KEY); it must know echo with logprobs");
  verb.option("--connections", &flags->connections, "with --server: requests at once").shows_default().at_least(1);
  verb.option("--data", &flags->data, "folder of the data files (default: $SINTER_EVAL_DATA, else data/eval)");
  verb.option("--limit", &flags->limit, "only so many documents of each task; below 1: that share of them").positive();
  verb.option("--few-shot", &flags->num_few_shot, "examples before each question (default: the task's)").at_least(0);
  verb.option("--seed", &flags->seed, "of the examples' draw (default: the task's, 1234)").at_least(0);
  verb.flag("--chat", &flags->applies_chat, "ask through the model's chat template, examples as turns");
  verb.option("--chat-template", &flags->chat_template, "a template file in place of the model's");
  verb.flag("--one-turn", &flags->one_turn, "with a chat template: examples and question in one message");
  verb.option("--system", &flags->system, "system instruction");
  verb.option("--max-tokens", &flags->max_tokens, "longest generated answer (default: the task's)").at_least(1);
  verb.option("--output", &flags->output, "folder for results, samples and what an interrupted run resumes from");
  verb.flag("--html", &flags->is_html, "with --output: a page with the samples too");
  verb.flag("--allow-code", &flags->allows_code, "run programs that the model writes, in a sandbox");
  verb.option("--bootstrap", &flags->bootstrap, "rounds for standard errors of what is no mean").shows_default();
  verb.option("--batch-tokens", &flags->batch_tokens, "tokens scored at once").shows_default().at_least(1);
  verb.option("--tokenizer", &flags->tokenizer, "tokenizer file or folder (default: the model's)");
  verb.option("--device", &flags->device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--precision", &flags->precision, "fp32, bf16 or fp16").shows_default();
  verb.flag("--list", &flags->lists, "print the tasks there are");
  verb.flag("--json", &flags->as_json, "print as JSON, in the layout of lm-evaluation-harness");
  verb.footer(
      "Examples:\n"
      "  sinter eval hellaswag,arc_easy MODEL --data DIR --limit 1000\n"
      "  sinter eval mmlu MODEL --few-shot 5 --output results\n"
      "  sinter eval hellaswag --server http://127.0.0.1:8000 --data DIR\n"
      "  sinter eval mine.toml MODEL          (docs/evaluation.md: a task of your own in ten lines)");
  verb.on_run([flags, verb] {
    if (verb.was_verb_named()) return;
    comm::Communicator& comm = comm::world();
    try {
      run_tasks(*flags, comm);
    } catch (const std::exception& e) {
      if (comm.size() == 1) throw;
      base::log_error("{}", e.what());  // the other ranks would wait for this one for ever
      comm::abort_all(dynamic_cast<const base::UsageError*>(&e) ? 2 : 1);
      throw;
    }
  });
}

}  // namespace sinter::cli
