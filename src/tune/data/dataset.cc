#include "tune/data/dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/permutation.h"

namespace sinter::tune {
namespace {

constexpr size_t kProblemsKept = 5;
constexpr uint64_t kSplitStream = 0x73706c6974;  // "split"

int64_t tokens_of(const Sample& s) { return s.tokens.num_tokens(); }
int64_t tokens_of(const PreferencePair& p) { return std::max(p.chosen.num_tokens(), p.rejected.num_tokens()); }
int64_t tokens_of(const LabelledSample& s) { return s.tokens.num_tokens(); }
int64_t tokens_of(const Prompt& p) { return static_cast<int64_t>(p.ids.size()); }

void count(const TokenSegments& tokens, DatasetReport& report) {
  report.tokens += tokens.num_tokens();
  report.supervised += tokens.num_supervised();
}
void count(const Sample& s, DatasetReport& report) { count(s.tokens, report); }
void count(const PreferencePair& p, DatasetReport& report) {
  count(p.chosen, report);
  count(p.rejected, report);
}
void count(const LabelledSample& s, DatasetReport& report) { count(s.tokens, report); }
void count(const Prompt& p, DatasetReport& report) { report.tokens += static_cast<int64_t>(p.ids.size()); }

void note_problem(const DatasetOptions& options, const std::string& problem, DatasetReport& report) {
  if (options.stops_at_bad) base::fail("{}", problem);
  ++report.bad;
  if (report.problems.size() < kProblemsKept) report.problems.push_back(problem);
}

// Rows of one source as items, rendered on all cores, in the order of the rows.
template <class Item, class Render>
void load_source(const DatasetOptions& options, const DataSource& source, const Render& render, DatasetReport& report,
                 std::vector<Item>& items, std::vector<std::string>* rows) {
  std::vector<Record> records;
  read_records(source.records, {[&](Record&& record) { records.push_back(std::move(record)); },
                                [&](BadRow&& bad) {
                                  ++report.rows;
                                  note_problem(options, bad.problem, report);
                                }});
  report.rows += static_cast<int64_t>(records.size());
  std::vector<Item> rendered(records.size());
  std::vector<std::string> problems(records.size());
  base::parallel_for(static_cast<int64_t>(records.size()), 16, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      try {
        rendered[i] = render(records[i]);
      } catch (const base::Error& e) {
        problems[i] = e.what();
      }
    }
  });
  for (size_t i = 0; i < records.size(); ++i) {
    if (!problems[i].empty()) {
      note_problem(options, problems[i], report);
      continue;
    }
    const int64_t tokens = tokens_of(rendered[i]);
    if (options.max_tokens > 0 && tokens > options.max_tokens) {
      ++report.too_long;
      continue;
    }
    report.longest = std::max(report.longest, tokens);
    count(rendered[i], report);
    items.push_back(std::move(rendered[i]));
    if (rows) rows->push_back(std::move(records[i].row));
  }
}

template <class Item, class Render>
Dataset<Item> load(const DatasetOptions& options, const Render& render) {
  SINTER_CHECK(!options.sources.empty(), "there is no data to learn from: name a file");
  SINTER_CHECK(options.validation_share >= 0 && options.validation_share < 1,
               "validation_share is {}, expected 0 or more and less than 1", options.validation_share);
  Dataset<Item> dataset;
  const base::CounterRng random{options.seed, kSplitStream};
  for (const DataSource& source : options.sources) {
    std::vector<Item> items;
    std::vector<std::string> rows;
    load_source(options, source, render, dataset.report, items, &rows);
    for (size_t i = 0; i < items.size(); ++i) {
      const bool is_kept_back =
          options.validation_share > 0 && random.uniform(base::hash_text(rows[i])) < options.validation_share;
      (is_kept_back ? dataset.validation : dataset.items).push_back(std::move(items[i]));
    }
    SINTER_CHECK(
        static_cast<int64_t>(dataset.items.size()) > dataset.source_begins.back(),
        "'{}': none of its rows can be learned from: {}", source.records.path,
        dataset.report.problems.empty() ? dataset.report.summary(options.max_tokens) : dataset.report.problems[0]);
    dataset.source_begins.push_back(static_cast<int64_t>(dataset.items.size()));
    dataset.weights.push_back(source.weight);
  }
  for (const DataSource& source : options.validation)
    load_source<Item>(options, source, render, dataset.report, dataset.validation, nullptr);
  return dataset;
}

}  // namespace

std::string DatasetReport::summary(int64_t max_tokens) const {
  std::string out = base::format_grouped(rows) + " rows";
  if (bad > 0)
    out += fmt::format(", {} bad (first: {})", base::format_grouped(bad), problems.empty() ? "" : problems[0]);
  if (too_long > 0)
    out += fmt::format(", {} longer than {} tokens", base::format_grouped(too_long), base::format_grouped(max_tokens));
  out += fmt::format("; {} tokens", base::format_grouped(tokens));
  if (supervised > 0)
    out += fmt::format(", {:.1f} % supervised", 100.0 * static_cast<double>(supervised) / static_cast<double>(tokens));
  return out;
}

Dataset<Sample> load_samples(const DatasetOptions& options, const Renderer& renderer) {
  return load<Sample>(options, [&](const Record& r) { return renderer.sample(r); });
}
Dataset<PreferencePair> load_pairs(const DatasetOptions& options, const Renderer& renderer) {
  return load<PreferencePair>(options, [&](const Record& r) { return renderer.pair(r); });
}
Dataset<LabelledSample> load_labelled(const DatasetOptions& options, const Renderer& renderer) {
  return load<LabelledSample>(options, [&](const Record& r) { return renderer.labelled(r); });
}
Dataset<Prompt> load_prompts(const DatasetOptions& options, const Renderer& renderer) {
  return load<Prompt>(options, [&](const Record& r) { return renderer.prompt(r); });
}

std::vector<int64_t> epoch_order(const std::vector<int64_t>& source_begins, const std::vector<double>& weights,
                                 uint64_t seed, int64_t epoch, bool shuffles) {
  const int64_t total = source_begins.back();
  double sum = 0;
  for (double w : weights) sum += w;
  std::vector<int64_t> picked;
  for (size_t s = 0; s + 1 < source_begins.size(); ++s) {
    const int64_t begin = source_begins[s], size = source_begins[s + 1] - begin;
    const int64_t wanted = sum > 0 ? std::llround(weights[s] / sum * static_cast<double>(total)) : size;
    // Item k of the run's walk through this source; each pass has an order of its own.
    for (int64_t k = epoch * wanted; k < (epoch + 1) * wanted; ++k) {
      const data::Permutation order(static_cast<uint64_t>(size), base::mix_bits(base::mix_bits(seed, s), k / size));
      const auto at = static_cast<uint64_t>(k % size);
      picked.push_back(begin + static_cast<int64_t>(shuffles ? order(at) : at));
    }
  }
  if (!shuffles) return picked;
  const data::Permutation order(picked.size(), base::mix_bits(seed, ~static_cast<uint64_t>(epoch)));
  std::vector<int64_t> out(picked.size());
  for (size_t i = 0; i < picked.size(); ++i) out[i] = picked[order(i)];
  return out;
}

}  // namespace sinter::tune
