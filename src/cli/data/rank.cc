#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/outside.h"
#include "cli/data/verbs.h"
#include "cli/generation_flags.h"
#include "data/formats/compression.h"
#include "data/pipeline/map.h"
#include "data/rank/fasttext.h"
#include "data/rank/ngram_model.h"
#include "data/text/characters.h"

namespace sinter::cli {
namespace {

struct TrainFlags {
  std::vector<std::string> inputs;
  std::string output;
  data::FastTextTraining training;
};

void run_train(const TrainFlags& flags) {
  std::vector<std::string> lines;
  for (const std::string& path : flags.inputs) {
    const std::string text = data::read_unpacked(path);
    for (std::string_view line : data::split_lines(text)) {
      if (!data::strip(line).empty()) lines.emplace_back(line);
    }
  }
  data::train_fasttext(lines, flags.training, flags.output);
  const data::FastText model = data::FastText::load(flags.output);
  int64_t right = 0;
  for (const std::string& line : lines) {
    const auto best = model.predict(line, 1);
    right += !best.empty() && line.find(best[0].label) != std::string::npos;
  }
  std::printf("%s: %s labels, %s words, %.1f %% of %s training lines right\n", flags.output.c_str(),
              base::format_grouped(int64_t(model.labels().size())).c_str(),
              base::format_grouped(model.num_words()).c_str(),
              100.0 * double(right) / double(std::max<size_t>(lines.size(), 1)),
              base::format_grouped(int64_t(lines.size())).c_str());
}

struct NgramFlags {
  std::vector<std::string> inputs;
  std::string output;
  std::vector<double> prune;
  data::ReadOptions read;
  data::NgramTraining training;
};

void run_ngrams(NgramFlags& flags) {
  data::MapResult result;
  std::vector<std::string> lines;
  for (const data::Document& d : data::load_documents(flags.inputs, flags.read, result)) {
    for (std::string_view line : data::split_lines(d.text)) {
      if (!data::strip(line).empty()) lines.emplace_back(line);
    }
  }
  SINTER_CHECK(!lines.empty(), "'{}' has no text to train on", flags.inputs[0]);
  for (const double count : flags.prune) {
    if (count != std::floor(count)) base::fail_usage("--prune {}: expected whole numbers, as 0,0,1", count);
    flags.training.prune.push_back(static_cast<int64_t>(count));
  }
  base::AtomicFile file(flags.output);
  data::train_ngrams(lines, flags.training,
                     [&](std::string_view piece) { file.append(std::as_bytes(std::span(piece))); });
  file.commit();
  const data::NgramModel model = data::NgramModel::load(flags.output);
  std::printf("%s: n-grams of up to %d words from %s lines of %s documents, perplexity %.1f of their own\n",
              flags.output.c_str(), model.order(), base::format_grouped(int64_t(lines.size())).c_str(),
              base::format_grouped(result.documents).c_str(), model.perplexity(lines));
}

struct ApplyFlags {
  std::vector<std::string> inputs;
  std::string output, model, label, arpa, sinter;
  double keep = 1;
  data::ReadOptions read;
  bool as_json = false;
};

// What a document's score is, the higher the better.
std::function<double(const data::Document&)> make_score(const ApplyFlags& flags) {
  const int given = !flags.model.empty() + !flags.arpa.empty() + !flags.sinter.empty();
  if (given != 1) base::fail_usage("rank apply needs --model, --arpa or --sinter, one of them");
  if (!flags.sinter.empty()) {
    data::PipelineRecipe recipe;
    recipe.scorer_model = flags.sinter;
    fill_from_outside(recipe);
    return [scorer = recipe.scorer](const data::Document& d) { return -scorer(d.text); };
  }
  if (!flags.arpa.empty()) {
    auto ngrams = std::make_shared<data::NgramModel>(data::NgramModel::load(flags.arpa));
    return [ngrams](const data::Document& d) {
      std::vector<std::string> lines;
      for (std::string_view line : data::split_lines(d.text)) lines.emplace_back(line);
      return -ngrams->perplexity(lines);
    };
  }
  if (flags.label.empty()) base::fail_usage("rank apply --model needs --label: the label whose probability ranks");
  auto classifier = std::make_shared<data::FastText>(data::FastText::load(flags.model));
  const std::vector<std::string> labels = classifier->labels();
  SINTER_CHECK(std::find(labels.begin(), labels.end(), flags.label) != labels.end(), "'{}' has no label '{}'{}",
               flags.model, flags.label, base::did_you_mean(flags.label, labels));
  return [classifier, label = flags.label](const data::Document& d) { return classifier->probability(d.text, label); };
}

void run_apply(const ApplyFlags& flags) {
  const std::function<double(const data::Document&)> score = make_score(flags);
  data::MapResult result;
  std::vector<data::Document> documents = data::load_documents(flags.inputs, flags.read, result);
  std::vector<double> scores;
  for (const data::Document& d : documents) scores.push_back(score(d));
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const auto wanted = static_cast<size_t>(flags.keep * double(sorted.size()) + .5);
  const double least = wanted == 0 ? 1e300 : sorted[std::min(wanted, sorted.size()) - 1];
  const bool is_perplexity = flags.model.empty();
  std::vector<std::string> lines;
  for (size_t i = 0; i < documents.size(); ++i) {
    if (scores[i] < least) continue;
    std::string line = data::document_line(documents[i]);
    line.pop_back();
    lines.push_back(line + fmt::format(",\"{}\":{}}}", is_perplexity ? "perplexity" : "rank_score",
                                       is_perplexity ? -scores[i] : scores[i]));
  }
  data::write_lines(lines, flags.output);
  if (flags.output == "-") return;
  if (flags.as_json) {
    std::printf(
        "%s\n",
        nlohmann::json{
            {"documents", documents.size()}, {"written", lines.size()}, {"threshold", least}, {"bad", result.bad}}
            .dump()
            .c_str());
  } else {
    std::printf("%zu of %zu documents in %s (%s %.6g and better), %s\n", lines.size(), documents.size(),
                flags.output.c_str(), is_perplexity ? "perplexity" : "score", is_perplexity ? -least : least,
                counted(result.bad, "bad record").c_str());
  }
}

}  // namespace

void add_data_rank(Command data) {
  const Command rank =
      data.add_verb("rank", "train a quality classifier; keep the best share of documents by a model's score");
  rank.requires_verb();
  auto train_flags = std::make_shared<TrainFlags>();
  const Command train = rank.add_verb("train", "a fastText classifier from labelled lines, written as fastText's .bin");
  train.option("lines", &train_flags->inputs, "files of lines `__label__good some text` (.gz and .zst too)").required();
  train.option("-o,--output", &train_flags->output, "model to write, .bin").required();
  train.option("--dim", &train_flags->training.dim, "length of a word's vector").shows_default().at_least(1);
  train.option("--epochs", &train_flags->training.epoch, "times each line is seen").shows_default().at_least(1);
  train.option("--ngrams", &train_flags->training.word_ngrams, "longest word n-gram").shows_default().in_range(1, 8);
  train.option("--lr", &train_flags->training.lr, "learning rate, falling to 0").shows_default().positive();
  train.option("--bucket", &train_flags->training.bucket, "rows for n-grams").shows_default().at_least(1);
  train.option("--min-count", &train_flags->training.min_count, "rarer words are left out").shows_default().at_least(1);
  train.option("--seed", &train_flags->training.seed, "of the first weights and the order").shows_default();
  train.footer("Example:\n  sinter data rank train good_and_bad.txt.gz -o quality.bin --ngrams 2 --epochs 5");
  train.on_run([train_flags] { run_train(*train_flags); });

  auto ngram_flags = std::make_shared<NgramFlags>();
  const Command ngrams = rank.add_verb("ngrams", "train an n-gram model, as KenLM's lmplz does, written as ARPA");
  ngrams
      .option("inputs", &ngram_flags->inputs,
              "files or folders of documents; each line is a sentence, words stand between spaces")
      .required();
  ngrams.option("-o,--output", &ngram_flags->output, "model to write, .arpa").required();
  ngrams.option("--order", &ngram_flags->training.order, "words of the longest n-gram").shows_default().in_range(1, 8);
  ngrams
      .option("--prune", &ngram_flags->prune,
              "n-grams seen as often or less are left out, by length: 0,0,1; the last number goes on")
      .delimiter(',')
      .at_least(0);
  ngrams.option("--text-key", &ngram_flags->read.text_key, "field that holds the text").shows_default();
  ngrams.footer(
      "It counts in memory: for texts of up to some hundred megabytes.\n"
      "Example:\n  sinter data rank ngrams wikipedia.jsonl -o wiki.arpa --order 5 --prune 0,0,1");
  ngrams.on_run([ngram_flags] { run_ngrams(*ngram_flags); });

  auto flags = std::make_shared<ApplyFlags>();
  const Command apply =
      rank.add_verb("apply", "score documents by a classifier, an n-gram model or a trained one; keep the best share");
  apply.option("inputs", &flags->inputs, "files or folders of documents").required();
  apply.option("-o,--output", &flags->output, ".jsonl to write (.gz, .zst), - for standard output").required();
  apply.option("--model", &flags->model, "fastText classifier, .bin or .ftz");
  apply.option("--label", &flags->label, "label whose probability is the score, as __label__good");
  apply.option("--arpa", &flags->arpa, "n-gram model in ARPA format; the score is the perplexity, lower is better");
  apply.option("--sinter", &flags->sinter, "trained model folder; the score is its perplexity, lower is better");
  apply.option("--keep", &flags->keep, "share of the documents to keep").shows_default().in_range(0.0, 1.0);
  apply.flag("--json", &flags->as_json, "print the result as JSON");
  apply.footer(
      "Example:\n  sinter data rank apply docs.jsonl --model quality.bin --label __label__good --keep .1 -o "
      "best.jsonl.zst");
  apply.on_run([flags] { run_apply(*flags); });
}

}  // namespace sinter::cli
