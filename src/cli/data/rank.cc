#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/verbs.h"
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

struct ApplyFlags {
  std::vector<std::string> inputs;
  std::string output, model, label, arpa;
  double keep = 1;
  data::ReadOptions read;
  bool as_json = false;
};

void run_apply(const ApplyFlags& flags) {
  if (flags.model.empty() == flags.arpa.empty()) base::fail_usage("rank apply needs --model or --arpa, one of them");
  if (!flags.model.empty() && flags.label.empty())
    base::fail_usage("rank apply --model needs --label: the label whose probability ranks");
  std::optional<data::FastText> classifier;
  std::optional<data::NgramModel> ngrams;
  if (!flags.model.empty()) classifier = data::FastText::load(flags.model);
  if (!flags.arpa.empty()) ngrams = data::NgramModel::load(flags.arpa);
  if (classifier) {
    const std::vector<std::string> labels = classifier->labels();
    SINTER_CHECK(std::find(labels.begin(), labels.end(), flags.label) != labels.end(), "'{}' has no label '{}'{}",
                 flags.model, flags.label, base::did_you_mean(flags.label, labels));
  }
  data::MapResult result;
  std::vector<data::Document> documents = data::load_documents(flags.inputs, flags.read, result);
  std::vector<double> scores;  // higher is better
  for (const data::Document& d : documents) {
    if (classifier) {
      scores.push_back(classifier->probability(d.text, flags.label));
    } else {
      std::vector<std::string> lines;
      for (std::string_view line : data::split_lines(d.text)) lines.emplace_back(line);
      scores.push_back(-ngrams->perplexity(lines));
    }
  }
  std::vector<double> sorted = scores;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const auto wanted = static_cast<size_t>(flags.keep * double(sorted.size()) + .5);
  const double least = wanted == 0 ? 1e300 : sorted[std::min(wanted, sorted.size()) - 1];
  std::vector<std::string> lines;
  for (size_t i = 0; i < documents.size(); ++i) {
    if (scores[i] < least) continue;
    std::string line = data::document_line(documents[i]);
    line.pop_back();
    lines.push_back(line + fmt::format(",\"{}\":{}}}", classifier ? "rank_score" : "perplexity",
                                       classifier ? scores[i] : -scores[i]));
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
    std::printf("%zu of %zu documents in %s (score %.6g and better)\n", lines.size(), documents.size(),
                flags.output.c_str(), classifier ? least : -least);
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

  auto flags = std::make_shared<ApplyFlags>();
  const Command apply =
      rank.add_verb("apply", "score documents by a classifier or an n-gram model and keep the best share");
  apply.option("inputs", &flags->inputs, "files or folders of documents").required();
  apply.option("-o,--output", &flags->output, ".jsonl to write (.gz, .zst), - for standard output").required();
  apply.option("--model", &flags->model, "fastText classifier, .bin or .ftz");
  apply.option("--label", &flags->label, "label whose probability is the score, as __label__good");
  apply.option("--arpa", &flags->arpa, "n-gram model in ARPA format; the score is the perplexity, lower is better");
  apply.option("--keep", &flags->keep, "share of the documents to keep").shows_default().in_range(0.0, 1.0);
  apply.flag("--json", &flags->as_json, "print the result as JSON");
  apply.footer(
      "Example:\n  sinter data rank apply docs.jsonl --model quality.bin --label __label__good --keep .1 -o "
      "best.jsonl.zst");
  apply.on_run([flags] { run_apply(*flags); });
}

}  // namespace sinter::cli
