#include "eval/golden/golden.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "eval/results/table.h"
#include "eval/run.h"
#include "eval/tasks/python_regex.h"
#include "models/open_model.h"
#include "tokenizer/chat_template.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr double kNearTie = 2e-3;
// A perplexity is e to the mean: a hundredth of what a log-likelihood may be off is seen in its fifth digit, and
// "864640.0148" has more digits than a sum of f32 logits. So aggregation is held apart from the model's rounding: from
// log-likelihoods as the file gives them, to their fifth and last decimal.
constexpr double kPerplexity = 1e-4, kPerplexityOfRounded = 1e-5;
// Means of verdicts are equal but for the order of a sum; truthfulqa_mc2's are made of log-likelihoods.
constexpr double kMean = 1e-6;

// Seeds of more than 64 bits stay whole as text.
Json load(const fs::path& path) {
  static const PythonRegex kLongSeed(R"re(("seed": ?)(\d{20,}))re");
  try {
    return Json::parse(kLongSeed.replace(base::read_file(path.string()), R"(\1"\2")"));
  } catch (const nlohmann::json::exception& e) {
    base::fail("'{}': {}", path.string(), e.what());
  }
}

// A model of the folder with what asking it needs.
struct GoldenModel {
  tokenizer::Tokenizer tokenizer;
  models::OpenModel model;
  std::unique_ptr<ScoringBackend> backend;
};

class GoldenFolder {
 public:
  GoldenFolder(std::string folder, const VerifyOptions& options) : folder_(std::move(folder)), options_(options) {}
  std::vector<VerifyCheck> run();

 private:
  void verify_task(const std::string& name, const Json& file);
  void verify_run(const std::string& name, const Json& file, const Json& run);
  void verify_model(const std::string& name, const Json& run, const std::string& model, std::vector<TaskRun>& runs,
                    const RunOptions& options);
  void verify_pairs(const Json& file);
  void verify_results(const std::string& label, const Json& golden, const std::vector<TaskRun>& runs, double allowed);
  GoldenModel& model(const std::string& name, const Json& models);
  std::vector<Task> tasks_of(const std::string& name, const Json& file, const Json& run) const;

  std::string folder_;
  VerifyOptions options_;
  Json models_;  // name to folder, of the first file that names them
  std::map<std::string, std::unique_ptr<GoldenModel>> opened_;
  std::vector<VerifyCheck> checks_;
};

GoldenModel& GoldenFolder::model(const std::string& name, const Json& models) {
  auto found = opened_.find(name);
  if (found != opened_.end()) return *found->second;
  const fs::path path = fs::path(folder_) / models.at(name).at("folder").get<std::string>();
  auto own = std::make_unique<GoldenModel>(
      GoldenModel{tokenizer::Tokenizer::load(path.string()),
                  models::open_model(path.string(), {options_.device, options_.compute, false}), nullptr});
  own->backend = make_model_backend(*own->model.transformer, own->tokenizer, {});
  return *(opened_[name] = std::move(own));
}

// Our shipped tasks with the golden's documents in place of their own.
std::vector<Task> GoldenFolder::tasks_of(const std::string& name, const Json& file, const Json& run) const {
  std::vector<Task> tasks;
  auto add = [&](const std::string& task_name, const Json& data) {
    Task task = shipped_tasks().tasks.at(shipped_tasks().members_of(task_name).at(0));
    task.data.clear();
    for (const auto& [split, path] : data.items()) {
      task.data[split] = (fs::path(folder_) / path.get<std::string>()).lexically_normal().string();
    }
    if (!task.data.contains(task.split)) task.split = task.data.contains("test") ? "test" : "validation";
    tasks.push_back(std::move(task));
  };
  const Json& data = file.at("data");
  if (!data.empty() && data.begin()->is_object()) {  // a group: data per task
    std::vector<std::string> order;                  // as the samples have them
    for (const Json& sample : run.at("samples")) {
      const std::string task = sample.at("task");
      if (std::find(order.begin(), order.end(), task) == order.end()) order.push_back(task);
    }
    for (const std::string& task : order) add(task, data.at(task));
  } else {
    add(name, data);
  }
  return tasks;
}

void GoldenFolder::verify_run(const std::string& name, const Json& file, const Json& run) {
  const std::vector<Task> tasks = tasks_of(name, file, run);
  RunOptions options;
  options.prompt.num_few_shot = run.at("num_fewshot").get<int64_t>();
  options.prompt.seed = run.at("fewshot_seed").get<uint64_t>();
  options.bootstrap = run.value("bootstrap_iters", int64_t{100000});
  if (!run.at("limit").is_null()) options.limit = run.at("limit").get<double>();
  if (run.contains("chat")) {
    auto chat = std::make_shared<tokenizer::ChatTemplate>(chatml_template(), "chatml");
    options.prompt.chat = [chat](const std::vector<ChatMessage>& messages, bool continues) {
      return render_chat(*chat, messages, continues);
    };
    options.prompt.is_multiturn = run["chat"].value("multiturn", true);
    options.prompt.system = run["chat"].value("system", std::string());
  } else {
    options.prompt.system = run.value("system", std::string());
  }
  std::vector<TaskRun> runs;
  for (const Task& task : tasks) runs.push_back(prepare_task(task, options));
  CaseCounter prompts(fmt::format("{} {} prompts", name, run.at("id").get<std::string>()));
  size_t at_run = 0, at_sample = 0;
  for (const Json& golden : run.at("samples")) {
    if (at_sample >= runs[at_run].samples.size()) {
      ++at_run;
      at_sample = 0;
    }
    if (at_run >= runs.size()) break;
    const Question& q = runs[at_run].samples[at_sample++].question;
    const std::string place = fmt::format("document {}", golden.at("doc").dump());
    prompts.expect(q.document == golden.at("doc").get<size_t>(), place + ": another document");
    if (golden.contains("fewshot")) {
      prompts.expect(q.examples == golden.at("fewshot").get<std::vector<size_t>>(), place + ": other examples");
    }
    if (golden.contains("context"))
      prompts.expect(q.contexts[0] == golden["context"].get<std::string>(), place + ": another context");
    if (golden.contains("contexts")) {
      prompts.expect(q.contexts == golden["contexts"].get<std::vector<std::string>>(), place + ": other contexts");
      prompts.expect(q.continuations[0] == golden["continuation"].get<std::string>(), place + ": another continuation");
    }
    if (golden.contains("continuations")) {
      prompts.expect(q.continuations == golden["continuations"].get<std::vector<std::string>>(),
                     place + ": other continuations");
    }
    if (golden.contains("gold")) prompts.expect(q.gold == golden["gold"].get<int64_t>(), place + ": another gold");
    if (golden.contains("target"))
      prompts.expect(q.target == golden["target"].get<std::string>(), place + ": another target");
    if (golden.contains("text"))
      prompts.expect(q.target == golden["text"].get<std::string>(), place + ": another text");
    if (golden.contains("text_bytes")) {
      prompts.expect(q.target.size() == golden["text_bytes"].get<size_t>(), place + ": another length of the text");
    }
  }
  size_t num_ours = 0;
  for (const TaskRun& r : runs) num_ours += r.samples.size();
  prompts.expect(num_ours == run.at("samples").size(), fmt::format("{} documents", num_ours));
  checks_.push_back(prompts.check());
  for (const auto& [model_name, unused] : run.at("models").items()) {
    verify_model(name, run, model_name, runs, options);
  }
}

// Scored choices and windows: token counts, log-likelihoods, greedy, metrics of each document.
void compare_scored(const EvalSample& sample, const Json& golden, CaseCounter& tokens, CaseCounter& metrics,
                    double& worst) {
  if (golden.contains("windows")) {
    tokens.expect(golden["windows"].size() == sample.scores.size(), "another number of windows");
    for (size_t i = 0; i < std::min(golden["windows"].size(), sample.scores.size()); ++i) {
      const Json& w = golden["windows"][i];
      tokens.expect(w[0] == sample.num_tokens[i].first && w[1] == sample.num_tokens[i].second, "another window");
      worst =
          std::max(worst, std::abs(w[2].get<double>() - sample.scores[i].log_likelihood) / allowed_difference(w[2]));
    }
    return;
  }
  const auto lls = golden.at("ll").get<std::vector<double>>();
  double gap = 1e30;  // between the best and the next
  for (size_t i = 0; i < lls.size(); ++i) {
    tokens.expect(
        golden["tokens"][i][0] == sample.num_tokens[i].first && golden["tokens"][i][1] == sample.num_tokens[i].second,
        fmt::format("choice {}: {} and {} tokens, expected {}", i, sample.num_tokens[i].first,
                    sample.num_tokens[i].second, golden["tokens"][i].dump()));
    worst = std::max(worst, std::abs(lls[i] - sample.scores[i].log_likelihood) / allowed_difference(lls[i]));
    metrics.expect(golden["greedy"][i] == sample.scores[i].is_greedy, fmt::format("choice {}: greedy differs", i));
  }
  std::vector<double> sorted = lls;
  std::sort(sorted.rbegin(), sorted.rend());
  if (sorted.size() > 1) gap = sorted[0] - sorted[1];
  for (const SampleMetric& m : sample.filtered[0].metrics) {
    const double wanted = golden["metrics"].at(m.name).get<double>();
    const bool holds = std::abs(wanted - m.value) <= (m.name == "perplexity" ? allowed_difference(wanted) : 2e-5);
    metrics.expect(holds || gap < kNearTie || m.name == "acc_norm",
                   fmt::format("{} is {}, expected {}", m.name, m.value, wanted));
    if (!holds && m.name == "acc_norm") {  // a tie by length: the gap that decides
      std::vector<double> norm;
      for (size_t i = 0; i < lls.size(); ++i) {
        norm.push_back(lls[i] / static_cast<double>(tokenizer::jinja::num_code_points(sample.question.choices[i])));
      }
      std::sort(norm.rbegin(), norm.rend());
      metrics.expect(norm[0] - norm[1] < kNearTie, fmt::format("{} is {}, expected {}", m.name, m.value, wanted));
    }
  }
}

void compare_generated(const TaskRun& run, const EvalSample& sample, const Json& golden, CaseCounter& texts,
                       CaseCounter& verdicts) {
  const GenerationResult& got = sample.generations[0];
  texts.expect(got.prompt_tokens == golden.at("prompt_tokens").get<int64_t>(),
               fmt::format("{} prompt tokens, expected {}", got.prompt_tokens, golden["prompt_tokens"].dump()));
  const bool is_tie = golden["min_margin"].is_number() && golden["min_margin"].get<double>() < 1e-3;
  if (is_tie) return;
  const auto ids = golden.at("ids").get<std::vector<int32_t>>();
  const bool same = got.tokens.size() >= ids.size() && std::equal(ids.begin(), ids.end(), got.tokens.begin());
  texts.expect(same, "other tokens");
  texts.expect(got.text == golden.at("text").get<std::string>(), fmt::format("text \"{}\"", got.text.substr(0, 60)));
  for (size_t f = 0; f < run.task->filters.size(); ++f) {
    const std::string& filter = run.task->filters[f].name;
    verdicts.expect(sample.filtered[f].answers[0] == golden["filtered"].at(filter).get<std::string>(),
                    filter + ": another answer");
    for (const SampleMetric& m : sample.filtered[f].metrics) {
      verdicts.expect(golden["metrics"].at(filter).at(m.name) == m.value, filter + ": another verdict");
    }
  }
}

// Puts the file's log-likelihoods in the place of ours. False where no perplexity is made of them.
bool use_golden_scores(const Json& golden, std::vector<TaskRun>& runs) {
  if (golden.at("results").dump().find("perplexity") == std::string::npos) return false;
  size_t at = 0;
  for (TaskRun& r : runs) {
    for (EvalSample& sample : r.samples) {
      const Json& theirs = golden.at("samples").at(at++);
      const bool has_windows = theirs.contains("windows");
      const Json& values = theirs.at(has_windows ? "windows" : "ll");
      for (size_t i = 0; i < std::min(values.size(), sample.scores.size()); ++i)
        sample.scores[i].log_likelihood = has_windows ? values[i].at(2) : values[i];
    }
  }
  return true;
}

void GoldenFolder::verify_model(const std::string& name, const Json& run, const std::string& model_name,
                                std::vector<TaskRun>& runs, const RunOptions& options) {
  const Json& golden = run.at("models").at(model_name);
  ScoringBackend& backend = *model(model_name, models_).backend;
  RunOptions own = options;
  if (golden.contains("gen_kwargs")) own.max_tokens = golden["gen_kwargs"].value("max_gen_toks", int64_t{0});
  for (TaskRun& r : runs) {
    for (EvalSample& s : r.samples) s = EvalSample{std::move(s.question), {}, {}, {}, {}, {}};
  }
  answer_tasks(runs, backend, own);
  for (TaskRun& r : runs) score_task(r, own);
  const std::string label = fmt::format("{} {} {}", name, run.at("id").get<std::string>(), model_name);
  CaseCounter tokens(label + " tokens"), metrics(label + " verdicts");
  double worst = 0;
  bool has_scores = false;
  size_t at_run = 0, at_sample = 0;
  for (const Json& sample : golden.at("samples")) {
    if (at_sample >= runs[at_run].samples.size()) {
      ++at_run;
      at_sample = 0;
    }
    const TaskRun& r = runs[at_run];
    const EvalSample& ours = r.samples[at_sample++];
    if (r.task->kind == TaskKind::generate) {
      compare_generated(r, ours, sample, tokens, metrics);
    } else {
      has_scores = true;
      compare_scored(ours, sample, tokens, metrics, worst);
    }
  }
  checks_.push_back(tokens.check());
  if (has_scores) checks_.push_back({label + " log-likelihoods", "of 1e-4 + 1e-5 |ll|", worst, 1, ""});
  if (metrics.num_cases() > 0) checks_.push_back(metrics.check());
  verify_results(label, golden, runs, kPerplexity);
  if (!has_scores || !use_golden_scores(golden, runs)) return;
  for (TaskRun& r : runs) score_task(r, own);
  verify_results(label + " from the golden log-likelihoods", golden, runs, kPerplexityOfRounded);
}

// Numbers of perplexities are within `relative` of each other, all else is equal letter by letter. Beside figures of
// more than 15 digits the harness's table has fewer decimals ("0.000"): numbers are compared as such.
bool same_row(const std::string& ours, const std::string& wanted, double relative) {
  if (ours == wanted) return true;
  const double allowed = wanted.find("perplexity") == std::string::npos ? 0 : relative;
  auto cells = [](const std::string& row) {
    std::vector<std::string> parts(1);
    for (char c : row) {
      if (c == '|') {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
    }
    return parts;
  };
  const std::vector<std::string> a = cells(ours), b = cells(wanted);
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a[i].c_str(), &end_a), y = std::strtod(b[i].c_str(), &end_b);
    const bool are_numbers = end_a != a[i].c_str() && end_b != b[i].c_str() && !*end_a && !*end_b;
    if (!are_numbers || !(std::abs(x - y) <= allowed * std::abs(y))) return false;
  }
  return true;
}

// Aggregates and the printed table. `allowed` is for perplexities.
void GoldenFolder::verify_results(const std::string& label, const Json& golden, const std::vector<TaskRun>& runs,
                                  double allowed) {
  CaseCounter results(label + " results");
  TaskSet set = shipped_tasks();
  const ResultTable table = make_results(runs, set);
  for (const auto& [task, values] : golden.at("results").items()) {
    const ResultRow* row = table.find(task);
    results.expect(row != nullptr, task + " is missing");
    if (!row) continue;
    for (const Aggregate& a : row->aggregates) {
      const std::string key = a.metric + "," + a.filter, error_key = a.metric + "_stderr," + a.filter;
      if (!values.contains(key)) {
        results.expect(false, key + " is not expected");
        continue;
      }
      const double wanted = values[key];
      const bool is_perplexity = a.metric.find("perplexity") != std::string::npos || a.metric == "bits_per_byte";
      const double relative = is_perplexity ? allowed : kMean;
      results.expect(std::abs(a.value - wanted) <= relative * std::max(1.0, std::abs(wanted)),
                     fmt::format("{} {} is {}, expected {}", task, key, a.value, wanted));
      if (!values.contains(error_key)) continue;
      results.expect(a.error.has_value() == values[error_key].is_number(), error_key + " has no number, or should not");
      if (a.error && values[error_key].is_number()) {
        const double error = values[error_key];
        results.expect(std::abs(*a.error - error) <= relative * std::max(1.0, std::abs(error)),
                       fmt::format("{} {} is {}, expected {}", task, error_key, *a.error, error));
      }
    }
  }
  checks_.push_back(results.check());
  if (!golden.contains("table")) return;
  CaseCounter printed(label + " table");
  const std::vector<std::string> rows = table.markdown_rows();
  size_t at = 0;
  for (const Json& row : golden["table"]) {
    const std::string text = row;
    if (text.starts_with("|-") && text.find_first_not_of("|-:") == std::string::npos) continue;
    printed.expect(at < rows.size() && same_row(rows[at], text, allowed),
                   fmt::format("\"{}\", expected \"{}\"", at < rows.size() ? rows[at] : "", text));
    ++at;
  }
  checks_.push_back(printed.check());
}

void GoldenFolder::verify_pairs(const Json& file) {
  CaseCounter tokens("pairs tokens");
  double worst = 0;
  for (const Json& pair : file.at("pairs")) {
    std::string context;
    if (pair.at("context").is_string()) {
      context = pair["context"];
    } else {
      for (int i = 0; i < pair.at("context_is")[1].get<int>(); ++i) context += pair["context_is"][0].get<std::string>();
    }
    const std::string continuation = pair.at("continuation");
    for (const auto& [name, golden] : pair.at("models").items()) {
      GoldenModel& m = model(name, models_);
      const std::string place = fmt::format("{} \"{}\" + \"{}\"", name, context.substr(0, 30), continuation);
      std::optional<TokenPair> own;
      try {
        own = m.backend->encoder().encode_pair(context, continuation);
      } catch (const base::Error&) {
      }
      tokens.expect(own.has_value() != golden.contains("error"), place + ": an error, or none");
      if (!own || golden.contains("error")) continue;
      tokens.expect(own->context.size() == golden.at("context_tokens").get<size_t>() &&
                        own->continuation == golden.at("continuation_ids").get<std::vector<int32_t>>(),
                    place + ": other tokens");
      m.backend->score(std::span(&*own, 1), [&](size_t, const Score& score) {
        worst = std::max(
            worst, std::abs(score.log_likelihood - golden.at("ll").get<double>()) / allowed_difference(golden["ll"]));
        tokens.expect(score.is_greedy == golden.at("greedy").get<bool>(), place + ": greedy differs");
      });
    }
  }
  for (const Json& rolling : file.at("rolling")) {
    std::string text;
    if (rolling.at("text").is_string()) {
      text = rolling["text"];
    } else {
      for (int i = 0; i < rolling.at("dogs").get<int>(); ++i) text += i ? " dog" : "dog";
    }
    for (const auto& [name, golden] : rolling.at("models").items()) {
      if (golden.contains("error")) continue;
      GoldenModel& m = model(name, models_);
      const std::vector<TokenWindow> windows = m.backend->encoder().encode_rolling(text);
      const std::string place = fmt::format("{} rolling \"{}\"", name, text.substr(0, 30));
      tokens.expect(windows.size() == golden.at("windows").size(), place + ": another number of windows");
      if (windows.size() != golden["windows"].size()) continue;
      m.backend->score(windows, [&](size_t i, const Score& score) {
        const Json& w = golden["windows"][i];
        tokens.expect(w[0] == windows[i].context.size() && w[1] == windows[i].continuation.size(), place);
        worst = std::max(worst, std::abs(score.log_likelihood - w[2].get<double>()) / allowed_difference(w[2]));
      });
    }
  }
  checks_.push_back(tokens.check());
  checks_.push_back({"pairs log-likelihoods", "of 1e-4 + 1e-5 |ll|", worst, 1, ""});
}

void GoldenFolder::verify_task(const std::string& name, const Json& file) {
  for (const Json& run : file.at("runs")) verify_run(name, file, run);
}

std::vector<VerifyCheck> GoldenFolder::run() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  std::map<std::string, Json> files;
  for (const std::string& name : names) {
    if (name == "config") continue;
    files[name] = load(fs::path(folder_) / (name + ".json"));
    if (models_.empty() && files[name].contains("runs")) models_ = files[name].at("models");
  }
  for (const auto& [name, file] : files) {
    try {
      if (file.contains("runs")) {
        verify_task(name, file);
      } else if (file.contains("pairs")) {
        verify_pairs(file);
      } else if (file.contains("raw")) {
        for (VerifyCheck& c : verify_sampling(file)) checks_.push_back(std::move(c));
      } else {
        for (VerifyCheck& c : verify_answers(folder_, name, file)) checks_.push_back(std::move(c));
      }
    } catch (const nlohmann::json::exception& e) {
      base::fail("'{}/{}.json': {}", folder_, name, e.what());
    }
  }
  return std::move(checks_);
}

}  // namespace

double allowed_difference(double ll) { return 1e-4 + 1e-5 * std::abs(ll); }

void CaseCounter::expect(bool holds, const std::string& what) {
  ++count_;
  if (holds) return;
  if (num_wrong_++ < 3) first_ += (first_.empty() ? "" : "; ") + what;
}

VerifyCheck CaseCounter::check() const {
  return {name_, fmt::format("wrong of {}", count_), static_cast<double>(num_wrong_), 0,
          num_wrong_ ? "first: " + first_ : ""};
}

VerifyCheck not_checked(const std::string& name, const std::string& what) {
  return {name, "not run", 0, 0, "not checked: " + what};
}

bool is_eval_golden(const std::string& folder) {
  if (!fs::is_directory(folder)) return false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    if (entry.path().filename() == "fewshot_sampling.json") return true;
    std::string head = base::read_file(entry.path().string()).substr(0, 4000);
    if (head.find("\"made_with\"") != std::string::npos &&
        (head.find("lm_eval") != std::string::npos || head.find("bfcl_eval") != std::string::npos)) {
      return true;
    }
  }
  return false;
}

std::vector<VerifyCheck> verify_eval_golden(const std::string& folder, const VerifyOptions& options) {
  return GoldenFolder(folder, options).run();
}

}  // namespace sinter::eval
