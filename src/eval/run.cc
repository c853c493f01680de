#include "eval/run.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/threads.h"
#include "eval/checkers/checkers.h"
#include "eval/metrics/filters.h"

namespace sinter::eval {
namespace {

size_t num_evaluated(size_t total, double limit) {
  if (limit <= 0) return total;
  const double wanted = limit < 1 ? std::ceil(static_cast<double>(total) * limit) : std::floor(limit);
  return std::min(total, static_cast<size_t>(wanted));
}

bool wants_mutual_info(const Task& task) {
  return std::any_of(task.metrics.begin(), task.metrics.end(),
                     [](const MetricSpec& m) { return m.name == "acc_mutual_info"; });
}

// Where a score of the backend belongs.
struct ScorePlace {
  size_t run, sample, index;
  bool is_unconditional;
};

struct Requests {
  std::vector<TokenPair> pairs;
  std::vector<ScorePlace> places;
  std::vector<GenerationRequest> generations;
  std::vector<std::pair<std::pair<size_t, size_t>, size_t>> generation_places;  // ((run, sample), index)
};

void add_scored(Requests& requests, const PairEncoder& encoder, TaskRun& run, size_t r, size_t s) {
  EvalSample& sample = run.samples[s];
  const Question& question = sample.question;
  auto add = [&](TokenPair pair, size_t index, bool is_unconditional) {
    if (!is_unconditional) sample.num_tokens.emplace_back(pair.context.size(), pair.continuation.size());
    requests.pairs.push_back(std::move(pair));
    requests.places.push_back({r, s, index, is_unconditional});
  };
  if (run.task->kind == TaskKind::rolling) {
    std::vector<TokenWindow> windows = encoder.encode_rolling(question.target);
    sample.scores.resize(windows.size());
    for (size_t i = 0; i < windows.size(); ++i) add(std::move(windows[i]), i, false);
    return;
  }
  sample.scores.resize(question.num_choices());
  for (size_t i = 0; i < question.num_choices(); ++i) {
    add(encoder.encode_pair(question.context(i), question.continuation(i)), i, false);
  }
  if (!wants_mutual_info(*run.task)) return;
  sample.unconditional.resize(question.num_choices());
  for (size_t i = 0; i < question.num_choices(); ++i) add(encoder.encode_pair("", question.continuation(i)), i, true);
}

void add_generated(Requests& requests, const TaskRun& run, size_t r, size_t s, const RunOptions& options) {
  const GenerationSpec& spec = run.task->generation;
  for (int64_t i = 0; i < spec.repeats; ++i) {
    requests.generations.push_back({.prompt = run.samples[s].question.contexts[0],
                                    .until = spec.until,
                                    .max_tokens = options.max_tokens > 0 ? options.max_tokens : spec.max_tokens,
                                    .temperature = options.temperature >= 0 ? options.temperature : spec.temperature,
                                    .top_p = spec.top_p,
                                    .seed = 1234 + static_cast<uint64_t>(i) + 1000003 * static_cast<uint64_t>(s)});
    requests.generation_places.push_back({{r, s}, static_cast<size_t>(i)});
  }
}

}  // namespace

TaskRun prepare_task(const Task& task, const RunOptions& options) {
  TaskRun run;
  run.task = &task;
  run.documents = load_split(task, task.split, options.data_folder);
  SINTER_CHECK(run.documents.size() > 0, "task {}: '{}' has no document to evaluate", task.name, run.documents.path);
  const int64_t count =
      task.few_shot.is_fixed ? task.few_shot.count : options.prompt.num_few_shot.value_or(task.few_shot.count);
  const DocumentSet pool = load_pool(task, count, options.data_folder);
  PromptBuilder builder(task, run.documents, pool, options.prompt);
  run.num_few_shot = builder.num_few_shot();
  run.pool_size = pool.size();
  const size_t total = num_evaluated(run.documents.size(), options.limit);
  run.samples.resize(total);
  for (EvalSample& sample : run.samples) sample.question = builder.next();
  return run;
}

void answer_tasks(std::span<TaskRun> runs, ScoringBackend& backend, const RunOptions& options,
                  const OnProgress& progress) {
  Requests requests;
  for (size_t r = 0; r < runs.size(); ++r) {
    TaskRun& run = runs[r];
    for (size_t s = 0; s < run.samples.size(); ++s) {
      try {
        if (run.task->kind == TaskKind::generate) {
          run.samples[s].generations.resize(static_cast<size_t>(run.task->generation.repeats));
          add_generated(requests, run, r, s, options);
        } else {
          add_scored(requests, backend.encoder(), run, r, s);
        }
      } catch (const base::Error& e) {
        base::fail("task {}, {}: {}", run.task->name, run.documents.place(run.samples[s].question.document), e.what());
      }
    }
  }
  size_t done = 0;
  const size_t total = requests.pairs.size() + requests.generations.size();
  backend.score(requests.pairs, [&](size_t i, const Score& score) {
    const ScorePlace& place = requests.places[i];
    EvalSample& sample = runs[place.run].samples[place.sample];
    (place.is_unconditional ? sample.unconditional : sample.scores)[place.index] = score;
    if (progress) progress(++done, total);
  });
  backend.generate(requests.generations, [&](size_t i, const GenerationResult& result) {
    const auto& [place, index] = requests.generation_places[i];
    runs[place.first].samples[place.second].generations[index] = result;
    if (progress) progress(++done, total);
  });
}

namespace {

void score_sample(const TaskRun& run, EvalSample& sample) {
  const Task& task = *run.task;
  const TaskDocument& document = run.documents.documents[sample.question.document];
  sample.filtered.assign(task.filters.size(), {});
  switch (task.kind) {
    case TaskKind::multiple_choice:
      sample.filtered[0].metrics =
          choice_metrics(task, document, sample.question, sample.scores, sample.unconditional, sample.num_tokens);
      return;
    case TaskKind::log_likelihood:
      sample.filtered[0].metrics = log_likelihood_metrics(task, sample.scores[0]);
      return;
    case TaskKind::rolling: {
      double sum = 0;
      for (const Score& score : sample.scores) sum += score.log_likelihood;
      const std::string text = task.context.is_set() ? task.context.text(document) : sample.question.target;
      sample.filtered[0].metrics = rolling_metrics(task, sum, text);
      return;
    }
    case TaskKind::generate:
      break;
  }
  std::vector<std::string> raw;
  for (const GenerationResult& generation : sample.generations) raw.push_back(generation.text);
  for (size_t f = 0; f < task.filters.size(); ++f) {
    FilteredAnswer& own = sample.filtered[f];
    own.answers = apply_filter(task.filters[f], raw);
    own.metrics = task.checker.empty() ? text_metrics(task, sample.question.target, own.answers)
                                       : check_answers(task, document, sample.question.target, own.answers);
  }
}

}  // namespace

void score_task(TaskRun& run, const RunOptions& options) {
  const Task& task = *run.task;
  if (task.runs_code()) check_code_allowed(task, options.allows_code);
  for (EvalSample& sample : run.samples) {
    try {
      score_sample(run, sample);
    } catch (const base::Error& e) {
      base::fail("task {}, {}: {}", task.name, run.documents.place(sample.question.document), e.what());
    }
  }
  run.aggregates.clear();
  for (size_t f = 0; f < task.filters.size(); ++f) {
    std::vector<SampleMetrics> metrics;
    for (const EvalSample& sample : run.samples) metrics.push_back(sample.filtered[f].metrics);
    for (Aggregate& aggregate : aggregate_metrics(task, task.filters[f].name, metrics, {options.bootstrap})) {
      run.aggregates.push_back(std::move(aggregate));
    }
  }
}

}  // namespace sinter::eval
