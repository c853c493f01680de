// What answers are worth: per document, and over all of them with standard errors, as lm-evaluation-harness counts.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/score/scorer.h"
#include "eval/tasks/prompt.h"

namespace sinter::eval {

// One document's share in a metric. A metric may stand several times in one document (IFEval's instructions).
struct SampleMetric {
  std::string name;
  double value = 0;
  double weight = 1;  // words or bytes, where the sum is divided by those
};
using SampleMetrics = std::vector<SampleMetric>;

// Scores of the choices; `unconditional` are those of the same continuations without context (mutual information),
// `num_tokens` the tokens of context and continuation (acc_tokens).
SampleMetrics choice_metrics(const Task& task, const TaskDocument& document, const Question& question,
                             std::span<const Score> scores, std::span<const Score> unconditional = {},
                             std::span<const std::pair<size_t, size_t>> num_tokens = {});
SampleMetrics log_likelihood_metrics(const Task& task, const Score& score);
// `text` is the document's text as it stood, whose words and bytes are counted.
SampleMetrics rolling_metrics(const Task& task, double log_likelihood, const std::string& text);
// Filtered answers of one document against its target.
SampleMetrics text_metrics(const Task& task, const std::string& target, std::span<const std::string> answers);

// 1 - prod (1 - k / i) over i = n-c+1 .. n: the chance that one of k answers drawn out of n, of which c pass, passes.
double pass_at_k(int64_t n, int64_t c, int64_t k);

struct Aggregate {
  std::string metric, filter = "none";
  double value = 0;
  std::optional<double> error;  // standard error; none where there is no rule for one
  bool higher_is_better = true;
};

struct AggregateOptions {
  int64_t bootstrap = 100000;  // rounds for what is no mean
};

// Over the documents, in order: one aggregate per name. Throws base::Error when `samples` is empty.
std::vector<Aggregate> aggregate_metrics(const Task& task, const std::string& filter,
                                         std::span<const SampleMetrics> samples, const AggregateOptions& options = {});

// Plain sums from left to right, as Python's.
double mean_of(std::span<const double> values);
double sample_deviation(std::span<const double> values);  // with n - 1
// exp(-mean) over draws by Python's generator: rounds in chunks of 1000, chunk i seeded by i; the deviation of all.
double bootstrap_perplexity_error(std::span<const double> values, int64_t rounds);

}  // namespace sinter::eval
