// PIPELINE.toml: everything `sinter data run` can be told, typed, with its defaults. Unknown keys are errors.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/dedup/decontaminate.h"
#include "data/dedup/minhash.h"
#include "data/filter/text_rules.h"
#include "data/formats/document.h"
#include "data/scrub/pii.h"

namespace sinter::data {

struct PipelineInput {
  std::string path;    // a file, or a folder of files
  std::string source;  // a name for what comes from it; "" = the path's last part
  double epochs = 1;   // how often its documents go into the result; .5 takes half of them
  double weight = 1;   // its share of the result's text beside those of the other inputs, where [mix] by = "weights"
};

struct PipelineRecipe {
  std::string output;                        // [run] output: folder of the results and of what makes the run resumable
  uint64_t part_bytes = uint64_t{64} << 20;  // [run] part_bytes: size of a work unit
  uint64_t memory = uint64_t{1} << 30;       // [run] memory: bound of the sorting stage, in bytes
  int64_t samples = 5;                       // [run] samples: dropped documents kept for each reason and work unit
  std::vector<PipelineInput> inputs;         // [[input]]
  ReadOptions read;                          // [read]

  bool extract = true;                 // [extract] enabled: HTML to text
  std::string language_model;          // [language] model: fastText file; "" = no stage
  std::vector<std::string> languages;  // [language] keep; empty = all
  double language_threshold = .65;     // [language] threshold

  std::string url_domains, url_urls, url_words, url_soft_words, url_subwords, url_suffixes;  // [url] files, a line each
  bool gopher_repetition = true, gopher_quality = true, c4 = true, fineweb = true;           // [filter]
  bool c4_terminal = false;
  RuleLimits limits;
  std::string bad_words;  // [filter] bad_words: folder or file of words, LANGUAGE.txt
  std::string nsfw_model,
      nsfw_label;              // [filter] nsfw_model, nsfw_label: fastText classifier and its label for what goes
  double nsfw_threshold = .5;  // [filter] nsfw_threshold: documents above it go

  bool scrub = true;  // [scrub] enabled
  ScrubOptions scrub_options;

  bool dedup_exact = true, dedup_minhash = true;  // [dedup]
  MinHashOptions minhash;
  std::vector<std::string> decontaminate;  // [decontaminate] items: .jsonl with query and label
  // [decontaminate] tasks and data: names of evaluation tasks and the folder of their files. Whoever runs the pipeline
  // turns them into task_items: this folder knows no tasks.
  std::vector<std::string> decontaminate_tasks;
  std::string decontaminate_data;
  std::vector<EvalItem> task_items;
  int64_t decontaminate_ngram = 12;

  std::string rank_model, rank_label;  // [rank] fastText classifier and the label whose probability ranks
  double rank_keep = 1;                // [rank] keep: share of the documents, best first
  std::string perplexity_model;        // [rank] arpa: n-gram model
  std::string scorer_model;            // [rank] sinter: folder of a trained model
  // [rank] by: what the best are chosen by: classifier (its probability), arpa or sinter (low perplexity). "" = the
  // only one there is, the classifier before the others.
  std::string rank_by;
  // Perplexity of a text by scorer_model, set by whoever runs the pipeline; called by several threads.
  std::function<double(std::string_view)> scorer;
  uint64_t scorer_key = 0;  // of its weights

  bool mixes_by_weight = false;  // [mix] by: "epochs" or "weights" of the inputs
  double mix_temperature = 0;    // [mix] temperature: shares by size to the power 1/temperature; 0 = not at all
  double most_epochs = 1;        // [mix] most_epochs: with weights or temperature, of the input that runs out first

  std::string tokenizer;  // [tokenize] tokenizer: folder or file; "" = no shards
  bool add_bos = true, add_eos = true;

  // All settings that decide the result, as text: the key of finished work. And those of what happens to a document
  // alone: mixing, tokenizing and the share that ranking keeps can be changed without reading the input again.
  std::string fingerprint, document_fingerprint;
};

// Throws base::Error naming the file, the key, what was found and what was expected.
PipelineRecipe load_pipeline(const std::string& path, const std::vector<std::string>& overrides = {});
PipelineRecipe parse_pipeline(std::string_view toml, const std::string& origin,
                              const std::vector<std::string>& overrides = {});

}  // namespace sinter::data
