// `sinter data mix`: documents of several sources, each so often, in a chosen order.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/verbs.h"
#include "data/dedup/exact.h"
#include "data/pipeline/map.h"
#include "data/pipeline/mixture.h"
#include "data/rank/fasttext.h"
#include "data/text/characters.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::vector<std::string> inputs;
  std::string output, order = "shuffle", model, label;
  data::ReadOptions read;
  double temperature = 0, most_epochs = 1;
  bool by_weight = false, as_json = false;
};

struct Source {
  std::string path;
  double number = 1;  // epochs or weight
  std::vector<data::Document> documents;
  double bytes = 0, epochs = 1;
};

std::vector<Source> read_sources(const Flags& flags, data::MapResult& result) {
  std::vector<Source> sources;
  for (const std::string& word : flags.inputs) {
    Source s;
    const size_t equals = word.rfind('=');
    s.path = word.substr(0, equals);
    if (equals == std::string::npos && flags.temperature == 0) {
      base::fail_usage("'{}' is no source; expected FILE=EPOCHS, as wiki.jsonl=2.5 (FILE alone with --temperature)",
                       word);
    }
    if (equals != std::string::npos) {
      char* end = nullptr;
      s.number = std::strtod(word.c_str() + equals + 1, &end);
      if (*end != 0 || !(s.number >= 0) || s.number > 1000) {
        base::fail_usage("'{}': the number is '{}'; expected one from 0 to 1000", word, word.substr(equals + 1));
      }
    }
    s.documents = data::load_documents({s.path}, flags.read, result);
    for (const data::Document& d : s.documents) s.bytes += static_cast<double>(d.text.size());
    sources.push_back(std::move(s));
  }
  return sources;
}

void choose_epochs(const Flags& flags, std::vector<Source>& sources) {
  std::vector<data::MixSource> mix;
  for (const Source& s : sources) mix.push_back({s.bytes, s.number});
  const std::vector<double> epochs =
      data::mix_epochs(mix, flags.by_weight ? data::MixNumbers::weights : data::MixNumbers::epochs, flags.temperature,
                       flags.most_epochs);
  for (size_t i = 0; i < sources.size(); ++i) sources[i].epochs = epochs[i];
}

struct Row {
  double rank;
  uint64_t draw;
  std::string line;
};

void run_mix(const Flags& flags) {
  const bool is_descending = flags.order.starts_with('-'), by_score = flags.order.ends_with("score");
  if (by_score && (flags.model.empty() || flags.label.empty())) {
    base::fail_usage("--order {} needs --model and --label: the classifier whose probability orders", flags.order);
  }
  std::optional<data::FastText> model;
  if (by_score) model = data::FastText::load(flags.model);
  data::MapResult result;
  std::vector<Source> sources = read_sources(flags, result);
  choose_epochs(flags, sources);
  std::vector<Row> rows;
  for (const Source& s : sources) {
    for (const data::Document& d : s.documents) {
      const std::string line = data::document_line(d);
      const uint64_t hash = data::hash_text64(line);
      const int64_t copies = data::mix_copies(s.epochs, line);
      double rank = 0;
      if (by_score) rank = model->probability(d.text, flags.label);
      if (flags.order.ends_with("length")) rank = static_cast<double>(d.text.size());
      for (int64_t c = 0; c < copies; ++c) {
        // By the content and the copy's number, so that copies stand apart.
        rows.push_back(
            {is_descending ? -rank : rank, data::hash_text64(fmt::format("{}:{}:{}", c, rows.size(), hash)), line});
      }
    }
  }
  if (flags.order != "input") {
    std::sort(rows.begin(), rows.end(),
              [](const Row& a, const Row& b) { return a.rank != b.rank ? a.rank < b.rank : a.draw < b.draw; });
  }
  std::vector<std::string> lines;
  for (Row& row : rows) lines.push_back(std::move(row.line));
  data::write_lines(lines, flags.output);
  if (flags.output == "-") return;
  nlohmann::json report = nlohmann::json::array();
  base::Table table({"source", "documents", "text", "epochs", "share"});
  double all = 0;
  for (const Source& s : sources) all += s.bytes * s.epochs;
  for (const Source& s : sources) {
    const double share = all > 0 ? s.bytes * s.epochs / all : 0;
    table.add_row({s.path, base::format_grouped(int64_t(s.documents.size())), base::format_bytes(s.bytes),
                   fmt::format("{:.3f}", s.epochs), fmt::format("{:.1f} %", 100 * share)});
    report.push_back({{"source", s.path},
                      {"documents", s.documents.size()},
                      {"bytes", s.bytes},
                      {"epochs", s.epochs},
                      {"share", share}});
  }
  std::printf("%s", flags.as_json ? (report.dump(2) + "\n").c_str() : table.to_string(1).c_str());
  if (!flags.as_json) std::printf("%s documents written\n", base::format_grouped(int64_t(lines.size())).c_str());
}

}  // namespace

void add_data_mix(Command data) {
  auto flags = std::make_shared<Flags>();
  const Command verb = data.add_verb("mix", "documents of several sources, each so often, in a chosen order");
  verb.option("inputs", &flags->inputs, "FILE=EPOCHS, or FILE=WEIGHT with --weights, or FILE with --temperature")
      .required();
  verb.option("-o,--output", &flags->output, ".jsonl to write (.gz, .zst), - for standard output").required();
  verb.flag("--weights", &flags->by_weight, "the numbers are shares of the result's text, not epochs");
  verb.option("--temperature", &flags->temperature,
              "shares by size to the power 1/T: 1 as they are, more evens them out")
      .positive();
  verb.option("--most-epochs", &flags->most_epochs, "with shares: how often the source that runs out first is read")
      .shows_default()
      .positive();
  verb.option("--order", &flags->order,
              "shuffle (by content), input, length, -length, score or -score: a curriculum, trained with "
              "data.shuffle=false")
      .shows_default()
      .one_of({"shuffle", "input", "length", "-length", "score", "-score"});
  verb.option("--model", &flags->model, "with --order score: fastText classifier");
  verb.option("--label", &flags->label, "with --order score: the label whose probability orders");
  verb.option("--text-key", &flags->read.text_key, "field that holds the text").shows_default();
  verb.flag("--json", &flags->as_json, "print the result as JSON");
  verb.footer(
      "Examples:\n"
      "  sinter data mix web.jsonl=1 wiki.jsonl=2.5 code.jsonl=.3 -o mixed.jsonl.zst\n"
      "  sinter data mix web.jsonl=.7 code.jsonl=.3 --weights -o mixed.jsonl\n"
      "  sinter data mix en.jsonl de.jsonl sw.jsonl --temperature 3.3 --most-epochs 4 --order length -o mixed.jsonl");
  verb.on_run([flags] { run_mix(*flags); });
}

}  // namespace sinter::cli
