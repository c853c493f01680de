#include "eval/metrics/metrics.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "eval/metrics/text_overlap.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;

size_t first_max(const std::vector<double>& values) {
  return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

[[noreturn]] void fail_metric(const Task& task, const std::string& name, const std::vector<std::string>& known) {
  std::string list;
  for (const std::string& k : known) list += (list.empty() ? "" : ", ") + k;
  base::fail("'{}': a task of this kind has no metric '{}'{}; it has {}", task.origin, name,
             base::did_you_mean(name, known), list);
}

// Pieces of re.split(r"\s+"): empty ones at the ends count.
int64_t count_words(const std::string& text) {
  int64_t count = 1;
  bool in_space = false;
  jinja::each_code_point(text, [&](std::string_view point) {
    const bool is_space = jinja::is_space(point);
    count += is_space && !in_space;
    in_space = is_space;
  });
  return count;
}

std::string normalized(std::string text, const MetricSpec& metric) {
  for (const std::string& pattern : metric.ignored) text = PythonRegex(pattern).replace(text, "");
  if (metric.ignores_case) text = tokenizer::lowercase_unicode(text);
  auto drop = [&](std::string_view characters) {
    std::erase_if(text, [&](char c) { return characters.find(c) != std::string_view::npos; });
  };
  if (metric.ignores_punctuation) drop("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
  if (metric.ignores_numbers) drop("0123456789");
  return text;
}

}  // namespace

SampleMetrics choice_metrics(const Task& task, const TaskDocument& document, const Question& question,
                             std::span<const Score> scores, std::span<const Score> unconditional,
                             std::span<const std::pair<size_t, size_t>> num_tokens) {
  static const std::vector<std::string> kKnown{"acc",        "acc_norm", "acc_bytes",   "acc_mutual_info",
                                               "acc_tokens", "mc2",      "exact_match", "brier_score"};
  std::vector<double> plain, norm, bytes, mutual, tokens;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double ll = scores[i].log_likelihood;
    plain.push_back(ll);
    const std::string& choice = question.choices[i];
    norm.push_back(ll / static_cast<double>(std::max<size_t>(jinja::num_code_points(choice), 1)));
    bytes.push_back(ll / static_cast<double>(std::max<size_t>(choice.size(), 1)));
    if (i < num_tokens.size()) tokens.push_back(ll / static_cast<double>(num_tokens[i].second));
    if (!unconditional.empty()) mutual.push_back(ll - unconditional[i].log_likelihood);
  }
  auto is_gold = [&](const std::vector<double>& values) {
    return static_cast<int64_t>(first_max(values)) == question.gold ? 1.0 : 0.0;
  };
  SampleMetrics metrics;
  for (const MetricSpec& spec : task.metrics) {
    double value = 0;
    if (spec.name == "acc") {
      value = is_gold(plain);
    } else if (spec.name == "acc_norm") {
      value = is_gold(norm);
    } else if (spec.name == "acc_bytes") {
      value = is_gold(bytes);
    } else if (spec.name == "acc_mutual_info") {
      value = is_gold(mutual);
    } else if (spec.name == "acc_tokens") {
      value = is_gold(tokens);
    } else if (spec.name == "exact_match") {
      value = question.gold >= 0 && scores[static_cast<size_t>(question.gold)].is_greedy ? 1.0 : 0.0;
    } else if (spec.name == "brier_score") {
      double sum = 0, total = 0;
      for (double ll : plain) sum += std::exp(ll - plain[first_max(plain)]);
      for (size_t i = 0; i < plain.size(); ++i) {
        const double p = std::exp(plain[i] - plain[first_max(plain)]) / sum;
        const double truth = static_cast<int64_t>(i) == question.gold ? 1 : 0;
        total += (p - truth) * (p - truth);
      }
      value = total;
    } else if (spec.name == "mc2") {
      const std::vector<std::string> labels = text_list(task.labels.evaluate(document));
      double right = 0, all = 0;
      for (size_t i = 0; i < plain.size(); ++i) {
        const double p = std::exp(plain[i]);
        all += p;
        if (i < labels.size() && labels[i] == "1") right += p;
      }
      metrics.push_back({"acc", right / all, 1});  // the name under which it is reported
      continue;
    } else {
      fail_metric(task, spec.name, kKnown);
    }
    metrics.push_back({spec.name, value, 1});
  }
  return metrics;
}

SampleMetrics log_likelihood_metrics(const Task& task, const Score& score) {
  SampleMetrics metrics;
  for (const MetricSpec& spec : task.metrics) {
    if (spec.name == "acc") {
      metrics.push_back({"acc", score.is_greedy ? 1.0 : 0.0, 1});
    } else if (spec.name == "perplexity") {
      metrics.push_back({"perplexity", score.log_likelihood, 1});
    } else {
      fail_metric(task, spec.name, {"acc", "perplexity"});
    }
  }
  return metrics;
}

SampleMetrics rolling_metrics(const Task& task, double log_likelihood, const std::string& text) {
  SampleMetrics metrics;
  for (const MetricSpec& spec : task.metrics) {
    if (spec.name == "word_perplexity") {
      metrics.push_back({spec.name, log_likelihood, static_cast<double>(count_words(text))});
    } else if (spec.name == "byte_perplexity" || spec.name == "bits_per_byte") {
      metrics.push_back({spec.name, log_likelihood, static_cast<double>(text.size())});
    } else {
      fail_metric(task, spec.name, {"word_perplexity", "byte_perplexity", "bits_per_byte"});
    }
  }
  return metrics;
}

SampleMetrics text_metrics(const Task& task, const std::string& target, std::span<const std::string> answers) {
  SINTER_CHECK(!answers.empty(), "task {}: a document has no answer", task.name);
  SampleMetrics metrics;
  for (const MetricSpec& spec : task.metrics) {
    const std::string answer = normalized(answers[0], spec), wanted = normalized(target, spec);
    if (spec.name == "exact_match") {
      metrics.push_back({spec.name, answer == wanted ? 1.0 : 0.0, 1});
    } else if (spec.name == "f1") {
      metrics.push_back({spec.name, token_f1(answer, wanted), 1});
    } else if (spec.name == "bleu") {
      metrics.push_back({spec.name, sentence_bleu(answer, wanted), 1});
    } else if (spec.name == "chrf") {
      metrics.push_back({spec.name, sentence_chrf(answer, wanted), 1});
    } else {
      fail_metric(task, spec.name, {"exact_match", "f1", "bleu", "chrf"});
    }
  }
  return metrics;
}

double pass_at_k(int64_t n, int64_t c, int64_t k) {
  if (n - c < k) return 1;
  double none = 1;
  for (int64_t i = n - c + 1; i <= n; ++i) none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none;
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double sample_deviation(std::span<const double> values) {
  const double mean = mean_of(values);
  double squares = 0;
  for (double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double bootstrap_perplexity_error(std::span<const double> values, int64_t rounds) {
  const int64_t chunk = std::min<int64_t>(1000, rounds), num_chunks = rounds / chunk;
  const auto n = static_cast<uint32_t>(values.size());
  std::vector<double> results(static_cast<size_t>(num_chunks * chunk));
  base::parallel_for(num_chunks, 1, [&](int64_t from, int64_t to) {
    for (int64_t c = from; c < to; ++c) {
      PythonRandom random(static_cast<uint64_t>(c));
      for (int64_t round = 0; round < chunk; ++round) {
        double sum = 0;
        for (uint32_t i = 0; i < n; ++i) sum += values[static_cast<size_t>(random.random() * n)];
        results[static_cast<size_t>(c * chunk + round)] = std::exp(-(sum / n));
      }
    }
  });
  return sample_deviation(results);
}

namespace {

Aggregate aggregate_one(const std::string& name, const std::vector<double>& values, const std::vector<double>& weights,
                        const AggregateOptions& options) {
  Aggregate result;
  result.metric = name;
  const size_t n = values.size();
  if (name == "word_perplexity" || name == "byte_perplexity" || name == "bits_per_byte") {
    double sum = 0, weight = 0;
    for (size_t i = 0; i < n; ++i) {
      sum += values[i];
      weight += weights[i];
    }
    result.value = name == "bits_per_byte" ? -sum / (weight * std::log(2.0)) : std::exp(-sum / weight);
    result.higher_is_better = false;
  } else if (name == "perplexity") {
    result.value = std::exp(-mean_of(values));
    result.higher_is_better = false;
    if (n > 1 && options.bootstrap > 1) result.error = bootstrap_perplexity_error(values, options.bootstrap);
  } else {
    result.value = mean_of(values);
    if (n > 1) result.error = sample_deviation(values) / std::sqrt(static_cast<double>(n));
  }
  return result;
}

}  // namespace

std::vector<Aggregate> aggregate_metrics(const Task& task, const std::string& filter,
                                         std::span<const SampleMetrics> samples, const AggregateOptions& options) {
  SINTER_CHECK(!samples.empty(), "task {}: no document was evaluated", task.name);
  std::vector<std::string> names;
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> values;
  std::set<std::string> repeated;
  for (const SampleMetrics& sample : samples) {
    std::map<std::string, int> seen;
    for (const SampleMetric& metric : sample) {
      auto [found, is_new] = values.try_emplace(metric.name);
      if (is_new) names.push_back(metric.name);
      found->second.first.push_back(metric.value);
      found->second.second.push_back(metric.weight);
      if (++seen[metric.name] > 1) repeated.insert(metric.name);
    }
  }
  std::vector<Aggregate> aggregates;
  for (const std::string& name : names) {
    Aggregate result = aggregate_one(name, values[name].first, values[name].second, options);
    result.filter = filter;
    if (name.starts_with("inst_level")) result.error.reset();  // instructions of a prompt are not independent
    for (const MetricSpec& spec : task.metrics) {
      if (spec.name == name) result.higher_is_better = spec.higher_is_better;
    }
    aggregates.push_back(std::move(result));
  }
  return aggregates;
}

}  // namespace sinter::eval
