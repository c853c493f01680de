#include "data/pipeline/stages.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/outside.h"
#include "cli/data/verbs.h"
#include "cli/generation_flags.h"
#include "data/dedup/decontaminate.h"
#include "data/dedup/exact.h"
#include "data/dedup/minhash.h"
#include "data/extract/extract.h"
#include "data/pipeline/map.h"
#include "data/text/characters.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::vector<std::string> inputs, keep, items, tasks;
  std::string output, data, model, method = "minhash", columns;
  data::ReadOptions read;
  data::PipelineRecipe recipe;
  double threshold = .65, ngram_threshold = .8;
  int64_t span = 0, least = 200, ngram = 12;
  bool as_json = false, no_repetition = false, no_quality = false, no_c4 = false, no_fineweb = false, phones = false,
       keys = false;
};

void add_common(const Command& verb, Flags& flags, bool needs_output) {
  verb.option("inputs", &flags.inputs,
              "files or folders: .jsonl, .txt, .md, .html, .csv, .warc, .parquet; .gz and .zst too")
      .required();
  const Option output = verb.option("-o,--output", &flags.output, ".jsonl to write (.gz, .zst), - for standard output");
  if (needs_output) output.required();
  verb.option("--text-key", &flags.read.text_key, "field that holds the text").shows_default();
  verb.flag("--json", &flags.as_json, "print the result as JSON");
}

void print_result(const Flags& flags, const data::MapResult& result,
                  const std::map<std::string, int64_t>& counts = {}) {
  for (const data::BadRecord& bad : result.first_bad)
    std::fprintf(stderr, "bad record: %s at %lu: %s\n", bad.file.c_str(), static_cast<unsigned long>(bad.offset),
                 bad.what.c_str());
  if (flags.output == "-") return;
  if (flags.as_json) {
    std::printf(
        "%s\n",
        nlohmann::json{
            {"documents", result.documents}, {"written", result.written}, {"bad", result.bad}, {"counts", counts}}
            .dump(2)
            .c_str());
    return;
  }
  if (!counts.empty()) {
    base::Table table({"", "documents"});
    for (const auto& [name, count] : counts) table.add_row({name, base::format_grouped(count)});
    std::printf("%s", table.to_string(2).c_str());
  }
  std::printf("%s, %s written, %s\n", counted(result.documents, "document").c_str(),
              base::format_grouped(result.written).c_str(), counted(result.bad, "bad record").c_str());
}

void run_extract(const Flags& flags) {
  print_result(flags, data::map_documents(flags.inputs, flags.output, flags.read, [] {
                 return [](data::Document& d) -> std::string {
                   if (d.is_html) {
                     data::ExtractedPage page = data::extract_page(d.text);
                     d.text = std::move(page.text);
                     d.title = std::move(page.title);
                     if (d.date.empty()) d.date = std::move(page.date);
                     if (d.language.empty()) d.language = std::move(page.language);
                   }
                   return data::document_line(d);
                 };
               }));
}

void run_language(const Flags& flags) {
  const data::FastText model = data::FastText::load(flags.model);
  data::check_languages(model, flags.keep, flags.model);
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
  const data::MapResult result = data::map_documents(flags.inputs, flags.output, flags.read, [&] {
    return [&](data::Document& d) -> std::string {
      const auto best = model.predict(d.text, 1);
      d.language = best.empty() ? "" : data::language_of_label(best[0].label);
      const bool is_kept =
          flags.keep.empty() || (std::find(flags.keep.begin(), flags.keep.end(), d.language) != flags.keep.end() &&
                                 best[0].probability > flags.threshold);
      const std::lock_guard lock(mutex);
      ++counts[d.language];
      return is_kept ? data::document_line(d) : "";
    };
  });
  print_result(flags, result, counts);
}

void run_filter(Flags& flags) {
  data::PipelineRecipe& r = flags.recipe;
  r.scrub = false;
  r.gopher_repetition = !flags.no_repetition;
  r.gopher_quality = !flags.no_quality;
  r.c4 = !flags.no_c4;
  r.fineweb = !flags.no_fineweb;
  const data::PipelineModels models(r);
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
  const data::MapResult result = data::map_documents(flags.inputs, flags.output, flags.read, [&] {
    auto stages = std::make_shared<data::DocumentStages>(r, models);
    return [&, stages](data::Document& d) -> std::string {
      const data::Outcome outcome = stages->process(d);
      const std::lock_guard lock(mutex);
      ++counts[outcome.is_kept() ? "kept" : fmt::format("{}/{}", outcome.stage, outcome.reason)];
      return outcome.is_kept() ? data::document_line(d) : "";
    };
  });
  print_result(flags, result, counts);
}

void run_scrub(const Flags& flags) {
  data::ScrubOptions options;
  options.phones = flags.phones;
  options.keys = flags.keys;
  print_result(flags, data::map_documents(flags.inputs, flags.output, flags.read, [&] {
                 return [&](data::Document& d) -> std::string {
                   d.text = data::Scrubber(options).scrub(d.text);
                   return data::document_line(d);
                 };
               }));
}

// Texts of documents after deduplication; nothing for those that go.
void dedup_documents(const Flags& flags, std::vector<data::Document>& documents, std::vector<bool>& keep) {
  if (flags.method == "exact") {
    std::vector<std::string_view> keys;
    for (const data::Document& d : documents) keys.push_back(d.text);
    keep = data::keep_first_of_equal(keys, {});
  } else if (flags.method == "minhash") {
    data::MinHasher hasher(flags.recipe.minhash);
    const auto n = static_cast<size_t>(flags.recipe.minhash.num_hashes());
    std::vector<uint64_t> signatures(documents.size() * n);
    std::vector<bool> has_signature;
    for (size_t i = 0; i < documents.size(); ++i)
      has_signature.push_back(hasher.sign(documents[i].text, {signatures.data() + i * n, n}));
    keep = data::find_near_duplicates(flags.recipe.minhash, signatures, has_signature);
    keep.flip();
  } else if (flags.method == "paragraphs" || flags.method == "lines" || flags.method == "sentences") {
    const data::TextUnit unit = flags.method == "paragraphs" ? data::TextUnit::paragraph
                                : flags.method == "lines"    ? data::TextUnit::line
                                                             : data::TextUnit::sentence;
    data::SpanDedup dedup({flags.span > 0 ? flags.span : unit == data::TextUnit::paragraph ? 1 : 3, unit, 0, 0});
    for (size_t i = 0; i < documents.size(); ++i) {
      auto text = dedup.add(documents[i].text);
      keep[i] = text.has_value();
      if (text) documents[i].text = std::move(*text);
    }
  } else if (flags.method == "ngrams") {
    data::NgramDedup dedup(13);
    for (size_t i = 0; i < documents.size(); ++i)
      keep[i] = !(dedup.add(documents[i].text).share() > flags.ngram_threshold);
  } else {
    std::vector<std::string_view> texts;
    for (const data::Document& d : documents) texts.push_back(d.text);
    const auto spans = data::find_repeated_substrings(texts, flags.least);
    for (size_t i = 0; i < documents.size(); ++i) {
      std::string left;
      size_t from = 0;
      for (const data::Span& s : spans[i]) {
        left.append(documents[i].text, from, s.begin - from);
        from = s.end;
      }
      left.append(documents[i].text, from);
      documents[i].text = std::move(left);
      keep[i] = !data::strip(documents[i].text).empty();
    }
  }
}

void run_dedup(const Flags& flags) {
  data::MapResult result;
  std::vector<data::Document> documents = data::load_documents(flags.inputs, flags.read, result);
  std::vector<bool> keep(documents.size(), true);
  dedup_documents(flags, documents, keep);
  std::vector<std::string> lines;
  for (size_t i = 0; i < documents.size(); ++i) {
    if (keep[i]) lines.push_back(data::document_line(documents[i]));
  }
  result.written = static_cast<int64_t>(lines.size());
  data::write_lines(lines, flags.output);
  print_result(flags, result);
}

void run_decontaminate(Flags& flags) {
  if (flags.items.empty() && flags.tasks.empty()) base::fail_usage("expected --items FILE, --tasks TASK or both");
  flags.recipe.decontaminate = flags.items;
  flags.recipe.task_items = evaluation_items(flags.tasks, flags.data);
  flags.recipe.decontaminate_ngram = flags.ngram;
  const data::PipelineModels models(flags.recipe);
  std::mutex mutex;
  std::map<std::string, int64_t> counts;
  const data::MapResult result = data::map_documents(flags.inputs, flags.output, flags.read, [&] {
    return [&](data::Document& d) -> std::string {
      const auto hit = models.decontamination->find(d.text);
      const std::lock_guard lock(mutex);
      ++counts[hit.positions.empty() ? "clean" : hit.task];
      return hit.positions.empty() ? data::document_line(d) : "";
    };
  });
  print_result(flags, result, counts);
}

template <class Run>
std::shared_ptr<Flags> add_stage(Command data, const char* name, const char* help, const char* examples,
                                 bool needs_output, Run run, Command* made) {
  auto flags = std::make_shared<Flags>();
  const Command verb = data.add_verb(name, help);
  add_common(verb, *flags, needs_output);
  verb.footer(std::string("Examples:\n") + examples);
  verb.on_run([flags, run] { run(*flags); });
  *made = verb;
  return flags;
}

}  // namespace

void add_data_stages(Command data) {
  Command verb = data;
  add_stage(data, "extract", "the main text of web pages (.html, .warc) as documents",
            "  sinter data extract CC-MAIN.warc.gz -o pages.jsonl.zst\n  sinter data extract page.html -o -", true,
            run_extract, &verb);
  auto flags = add_stage(data, "language", "the language of documents by a fastText model; keep some of them",
                         "  sinter data language docs.jsonl --model lid.176.ftz --keep en -o english.jsonl.zst\n  "
                         "sinter data language docs.jsonl --model lid.176.ftz",
                         false, run_language, &verb);
  verb.option("--model", &flags->model, "lid.176.bin, lid.176.ftz or another classifier").required();
  verb.option("--keep", &flags->keep, "languages to keep, as en,fr; all when it is not given").delimiter(',');
  verb.option("--threshold", &flags->threshold, "least probability of a language that is kept")
      .shows_default()
      .in_range(0.0, 1.0);
  flags = add_stage(data, "filter", "the rules of Gopher, C4 and FineWeb in one pass; counts by rule",
                    "  sinter data filter docs.jsonl.gz -o kept.jsonl.zst\n  sinter data filter docs.jsonl --no-c4",
                    false, run_filter, &verb);
  verb.flag("--no-gopher-repetition", &flags->no_repetition, "leave Gopher's repetition rules out");
  verb.flag("--no-gopher-quality", &flags->no_quality, "leave Gopher's quality rules out");
  verb.flag("--no-c4", &flags->no_c4, "leave C4's lines and rules out");
  verb.flag("--no-fineweb", &flags->no_fineweb, "leave FineWeb's rules out");
  verb.flag("--c4-terminal", &flags->recipe.c4_terminal, "lines must end a sentence, as in C4 itself");
  flags = add_stage(data, "scrub", "replace e-mail addresses and public IP addresses",
                    "  sinter data scrub docs.jsonl --phones --keys -o clean.jsonl", true, run_scrub, &verb);
  verb.flag("--phones", &flags->phones, "telephone numbers too");
  verb.flag("--keys", &flags->keys, "access keys too");
  flags = add_stage(data, "dedup", "remove duplicates: whole documents, near ones, paragraphs, lines, substrings",
                    "  sinter data dedup docs.jsonl -o unique.jsonl\n  sinter data dedup docs.jsonl --method "
                    "substrings --least 200 -o unique.jsonl",
                    true, run_dedup, &verb);
  verb.option("--method", &flags->method, "minhash, exact, paragraphs, lines, sentences, ngrams or substrings")
      .shows_default()
      .one_of({"minhash", "exact", "paragraphs", "lines", "sentences", "ngrams", "substrings"});
  verb.option("--bands", &flags->recipe.minhash.bands, "minhash: bands").shows_default().at_least(1);
  verb.option("--rows", &flags->recipe.minhash.rows, "minhash: hashes of a band").shows_default().at_least(1);
  verb.option("--span", &flags->span, "how many in a row are compared (default: 1 paragraph, 3 lines or sentences)")
      .at_least(1);
  verb.option("--least", &flags->least, "substrings: least bytes").shows_default().at_least(8);
  flags =
      add_stage(data, "decontaminate", "remove documents that share word n-grams with evaluation items",
                "  sinter data decontaminate docs.jsonl --tasks gsm8k,mmlu --data DIR -o clean.jsonl\n  sinter data "
                "decontaminate docs.jsonl --items own.jsonl -o clean.jsonl",
                true, run_decontaminate, &verb);
  verb.option("--items", &flags->items, ".jsonl with query (question, context) and label (answer, continuation)")
      .delimiter(',');
  verb.option("--tasks", &flags->tasks, "tasks of `sinter eval --list`: their questions and answers").delimiter(',');
  verb.option("--data", &flags->data, "folder of the tasks' files (default: $SINTER_EVAL_DATA, else data/eval)");
  verb.option("--ngram", &flags->ngram, "words of an n-gram").shows_default().at_least(1);
}

}  // namespace sinter::cli
