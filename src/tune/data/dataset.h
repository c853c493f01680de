// Files of rows to what a run learns from: read, rendered on all cores, split into training and validation, ordered.
// All of it is a pure function of the files and the options, the same on every rank.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tune/data/render.h"

namespace sinter::tune {

struct DataSource {
  RecordSource records;
  double weight = 0;  // share of an epoch against the other sources; 0 for all of them: every row once
};

struct DatasetOptions {
  std::vector<DataSource> sources;
  std::vector<DataSource> validation;  // files of their own
  double validation_share = 0;         // of the rows of `sources`; equal rows stay together
  uint64_t seed = 0;
  int64_t max_tokens = 0;     // longer ones are left out and counted; 0: none is too long
  bool stops_at_bad = false;  // a row that cannot be used is an error, not left out and counted
};

struct DatasetReport {
  int64_t rows = 0, bad = 0, too_long = 0;
  int64_t tokens = 0, supervised = 0, longest = 0;
  std::vector<std::string> problems;  // the first few
  // "1,000 rows, 3 bad (first: ...), 12 longer than 2,048 tokens; 345,678 tokens, 41.2 % supervised"
  std::string summary(int64_t max_tokens) const;
};

template <class Item>
struct Dataset {
  std::vector<Item> items;
  std::vector<int64_t> source_begins{0};  // where each source's items begin; one more at the end
  std::vector<double> weights;            // of the sources, as given
  std::vector<Item> validation;
  DatasetReport report;
};

// Throws base::Error where nothing is left.
Dataset<Sample> load_samples(const DatasetOptions& options, const Renderer& renderer);
Dataset<PreferencePair> load_pairs(const DatasetOptions& options, const Renderer& renderer);
Dataset<LabelledSample> load_labelled(const DatasetOptions& options, const Renderer& renderer);
Dataset<Prompt> load_prompts(const DatasetOptions& options, const Renderer& renderer);

// Items of an epoch in a shuffled order: each once, or, with weights, as many of every source as its share of all rows
// asks for, going through a source again and again before any item comes once more.
std::vector<int64_t> epoch_order(const std::vector<int64_t>& source_begins, const std::vector<double>& weights,
                                 uint64_t seed, int64_t epoch, bool shuffles = true);

}  // namespace sinter::tune
