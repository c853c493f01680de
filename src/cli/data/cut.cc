// `sinter data stats` and `sinter data cut`: columns of documents, and documents chosen by them.
#include "data/pipeline/cut.h"

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/verbs.h"
#include "cli/generation_flags.h"
#include "data/extract/extract.h"
#include "data/filter/text_rules.h"
#include "data/pipeline/map.h"
#include "data/pipeline/work.h"

namespace sinter::cli {
namespace {

struct StatsFlags {
  std::vector<std::string> inputs;
  std::string output;
  data::ReadOptions read;
  bool as_json = false;
};

struct Column {
  int64_t count = 0;
  double sum = 0, least = INFINITY, most = -INFINITY;
  void add(double value) {
    if (std::isnan(value)) return;
    ++count;
    sum += value;
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

void print_columns(const StatsFlags& flags, const std::vector<std::string>& names,
                   const std::map<std::string, Column>& columns, const data::MapResult& result) {
  nlohmann::json report = nlohmann::json::object();
  base::Table table({"column", "documents", "mean", "least", "most"});
  for (const std::string& name : names) {
    const Column& c = columns.at(name);
    const double mean = c.count > 0 ? c.sum / double(c.count) : 0, least = c.count > 0 ? c.least : 0,
                 most = c.count > 0 ? c.most : 0;
    report[name] = {{"documents", c.count}, {"mean", mean}, {"least", least}, {"most", most}};
    table.add_row({name, base::format_grouped(c.count), fmt::format("{:.4g}", mean), fmt::format("{:.4g}", least),
                   fmt::format("{:.4g}", most)});
  }
  std::printf("%s\n", flags.as_json ? report.dump(2).c_str() : table.to_string().c_str());
  if (!flags.as_json)
    std::printf("%s, %s of text, %s\n", counted(result.documents, "document").c_str(),
                base::format_bytes(double(result.bytes)).c_str(), counted(result.bad, "bad record").c_str());
}

void run_stats(const StatsFlags& flags) {
  std::mutex mutex;
  std::map<std::string, Column> columns;
  std::vector<std::string> names;
  const data::MapResult result = data::map_documents(flags.inputs, flags.output, flags.read, [&] {
    auto measure = std::make_shared<data::TextMeasure>();
    return [&, measure](data::Document& d) -> std::string {
      if (d.is_html) d.text = data::extract_page(d.text).text;
      data::Outcome outcome;
      outcome.columns = measure->measure(d.text);
      const std::lock_guard lock(mutex);
      const bool is_first = names.empty();
      outcome.columns.visit([&](const char* name, double value) {
        if (is_first) names.emplace_back(name);
        columns[name].add(value);
      });
      return flags.output.empty() ? "" : data::column_line(d, outcome);
    };
  });
  if (flags.output != "-") print_columns(flags, names, columns, result);
}

struct CutFlags {
  std::vector<std::string> inputs, conditions, shares;
  std::string output;
  data::CutOptions options;
  bool as_json = false;
};

void run_cut(CutFlags& flags) {
  for (const std::string& text : flags.conditions) flags.options.conditions.push_back(data::parse_condition(text));
  for (const std::string& text : flags.shares) flags.options.shares.push_back(data::parse_share(text));
  if (flags.conditions.empty() && flags.shares.empty())
    base::fail_usage("expected --where CONDITION, --best COLUMN=SHARE or both");
  const data::CutResult result = data::cut_documents(flags.inputs, flags.output, flags.options);
  if (flags.output == "-") return;
  if (flags.as_json) {
    std::printf("%s\n", nlohmann::json{{"documents", result.documents},
                                       {"written", result.written},
                                       {"bad", result.bad},
                                       {"dropped", result.dropped},
                                       {"limits", result.least_of_share}}
                            .dump(2)
                            .c_str());
    return;
  }
  base::Table table({"not", "documents"});
  for (const auto& [name, count] : result.dropped) table.add_row({name, base::format_grouped(count)});
  if (!result.dropped.empty()) std::printf("%s", table.to_string(2).c_str());
  for (const auto& [name, limit] : result.least_of_share) std::printf("%s is cut at %.6g\n", name.c_str(), limit);
  std::printf("%s, %s written, %s\n", counted(result.documents, "document").c_str(),
              base::format_grouped(result.written).c_str(), counted(result.bad, "bad record").c_str());
}

}  // namespace

void add_data_cut(Command data) {
  auto stats = std::make_shared<StatsFlags>();
  const Command stats_verb = data.add_verb("stats", "every rule's column over documents: mean, least, most");
  stats_verb.option("inputs", &stats->inputs, "files or folders of any kind that is read").required();
  stats_verb.option("-o,--output", &stats->output,
                    "columns of every document, .jsonl (.gz, .zst), for `data cut`; - for standard output");
  stats_verb.option("--text-key", &stats->read.text_key, "field that holds the text").shows_default();
  stats_verb.flag("--json", &stats->as_json, "print the result as JSON");
  stats_verb.footer(
      "Examples:\n  sinter data stats docs.jsonl.gz\n  sinter data stats docs.jsonl.gz -o columns.jsonl.zst");
  stats_verb.on_run([stats] { run_stats(*stats); });

  auto flags = std::make_shared<CutFlags>();
  const Command verb = data.add_verb("cut", "choose documents by the columns beside them: thresholds and best shares");
  verb.option("inputs", &flags->inputs, "files or folders of documents").required();
  verb.option("-o,--output", &flags->output, ".jsonl to write (.gz, .zst), - for standard output").required();
  verb.option("--columns", &flags->options.columns,
              "files or folders of columns (RUN/columns, `data stats -o`) in the order of the documents; fields of the "
              "documents count as columns too")
      .one_value_each_time();
  verb.option("--where", &flags->conditions, "COLUMN >= VALUE, also <= > < == !=; given again, all have to hold")
      .one_value_each_time();
  verb.option("--best", &flags->shares,
              "COLUMN=SHARE of what the conditions leave, highest values first; -COLUMN=SHARE lowest first")
      .one_value_each_time();
  verb.option("--text-key", &flags->options.read.text_key, "field that holds the text").shows_default();
  verb.flag("--json", &flags->as_json, "print the result as JSON");
  verb.footer(
      "Documents stay as they are and columns lie beside them, so other thresholds need no other run.\n"
      "Examples:\n"
      "  sinter data cut out/documents --columns out/columns --where 'words >= 200' --where 'top_2 < .1' -o "
      "long.jsonl\n"
      "  sinter data cut docs.jsonl --columns columns.jsonl.zst --best rank_score=.1 -o best.jsonl.zst\n"
      "  sinter data cut docs.jsonl --where 'language == en' -o english.jsonl");
  verb.on_run([flags] { run_cut(*flags); });
}

}  // namespace sinter::cli
