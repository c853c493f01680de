#include "data/pipeline/stages.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/extract/extract.h"
#include "data/formats/compression.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  if (path.empty()) return lines;
  const std::string text = read_unpacked(path);
  for (std::string_view line : split_lines(text)) {
    if (!strip(line).empty()) lines.emplace_back(strip(line));
  }
  return lines;
}

std::map<std::string, std::vector<std::string>> word_lists(const std::string& path) {
  std::map<std::string, std::vector<std::string>> lists;
  if (!fs::is_directory(path)) {
    lists[fs::path(path).stem().string()] = lines_of(path);
    return lists;
  }
  for (const auto& entry : fs::directory_iterator(path))
    lists[entry.path().stem().string()] = lines_of(entry.path().string());
  return lists;
}

// .jsonl with the question under query, question, context or prompt, and the answer under label, answer, continuation
// or completion.
void add_items(const std::string& path, DecontaminationIndex& index) {
  const std::string text = read_unpacked(path);
  int64_t number = 0;
  for (std::string_view line : split_lines(text)) {
    ++number;
    if (strip(line).empty()) continue;
    const nlohmann::json item = base::parse_json(line, fmt::format("{} line {}", path, number));
    auto field = [&](std::initializer_list<const char*> names) {
      for (const char* name : names) {
        if (item.is_object() && item.contains(name) && item[name].is_string()) return item[name].get<std::string>();
      }
      return std::string();
    };
    index.add({fs::path(path).stem().string(), field({"query", "question", "context", "prompt"}),
               field({"label", "answer", "continuation", "completion"})});
  }
}

// A label that a model does not have would keep, or drop, every document.
void check_label(const std::optional<FastText>& model, const std::string& label, const char* key,
                 const std::string& path) {
  if (!model) return;
  const std::vector<std::string> labels = model->labels();
  SINTER_CHECK(std::find(labels.begin(), labels.end(), label) != labels.end(), "{}: '{}' has no label '{}'{}", key,
               path, label, base::did_you_mean(label, labels));
}

}  // namespace

void check_languages(const FastText& model, const std::vector<std::string>& languages, const std::string& path) {
  std::vector<std::string> known = model.labels();
  for (std::string& label : known) label = language_of_label(label);
  for (const std::string& language : languages) {
    SINTER_CHECK(std::find(known.begin(), known.end(), language) != known.end(),
                 "'{}' does not know the language '{}'{}; it has codes such as '{}'", path, language,
                 base::did_you_mean(language, known), known.at(0));
  }
}

std::string language_of_label(std::string_view label) {
  constexpr std::string_view kPrefix = "__label__";
  return std::string(label.substr(label.starts_with(kPrefix) ? kPrefix.size() : 0));
}

PipelineModels::PipelineModels(const PipelineRecipe& recipe) {
  if (!recipe.language_model.empty()) language = FastText::load(recipe.language_model);
  if (!recipe.rank_model.empty()) rank = FastText::load(recipe.rank_model);
  if (!recipe.perplexity_model.empty()) perplexity = NgramModel::load(recipe.perplexity_model);
  const UrlLists lists{
      lines_of(recipe.url_domains),  lines_of(recipe.url_urls),
      lines_of(recipe.url_words),    lines_of(recipe.url_soft_words),
      lines_of(recipe.url_subwords), recipe.url_suffixes.empty() ? "" : read_unpacked(recipe.url_suffixes)};
  const bool has_lists = !(lists.domains.empty() && lists.urls.empty() && lists.banned_words.empty() &&
                           lists.soft_banned_words.empty() && lists.banned_subwords.empty());
  if (has_lists) urls.emplace(lists);
  if (!recipe.bad_words.empty()) bad_words.emplace(word_lists(recipe.bad_words));
  if (!recipe.nsfw_model.empty()) nsfw = FastText::load(recipe.nsfw_model);
  check_label(rank, recipe.rank_label, "rank.label", recipe.rank_model);
  check_label(nsfw, recipe.nsfw_label, "filter.nsfw_label", recipe.nsfw_model);
  if (language) check_languages(*language, recipe.languages, recipe.language_model);
  if (recipe.decontaminate.empty() && recipe.task_items.empty()) return;
  decontamination.emplace(DecontaminationOptions{recipe.decontaminate_ngram, true, true});
  for (const EvalItem& item : recipe.task_items) decontamination->add(item);
  for (const std::string& path : recipe.decontaminate) add_items(path, *decontamination);
}

Outcome DocumentStages::judge_text(Document& document) {
  Outcome outcome;
  const RuleLimits& limits = recipe_.limits;
  outcome.columns = measure_.measure(document.text);
  auto reject = [&](const char* stage, Verdict verdict) {
    if (verdict.is_kept() || !outcome.is_kept()) return;
    outcome.stage = stage;
    outcome.reason = verdict.reason;
  };
  if (recipe_.gopher_repetition) reject("gopher_repetition", gopher_repetition(outcome.columns, limits));
  if (recipe_.gopher_quality) reject("gopher_quality", gopher_quality(outcome.columns, limits));
  if (!outcome.is_kept()) return outcome;
  bool is_rewritten = false;
  if (recipe_.c4) {
    C4Result c4 = c4_rewrite(document.text, {recipe_.c4_terminal});
    reject("c4", c4_quality(c4, limits));
    if (!outcome.is_kept()) return outcome;
    is_rewritten = c4.text != document.text;
    if (is_rewritten) document.text = std::move(c4.text);
  }
  if (recipe_.fineweb)
    reject("fineweb",
           fineweb_quality(is_rewritten ? measure_.measure_fineweb(document.text) : outcome.columns, limits));
  if (models_.bad_words)
    reject("bad_words", models_.bad_words->judge(document.text, document.language.empty() ? "en" : document.language));
  return outcome;
}

Outcome DocumentStages::process(Document& document) {
  Outcome outcome;
  if (models_.urls && !document.url.empty()) {
    const Verdict verdict = models_.urls->judge(document.url);
    if (!verdict.is_kept()) {
      outcome.stage = "url";
      outcome.reason = verdict.reason;
      return outcome;
    }
  }
  if (document.is_html && recipe_.extract) {
    ExtractedPage page = extract_page(document.text);
    document.text = std::move(page.text);
    document.title = std::move(page.title);
    if (document.date.empty()) document.date = std::move(page.date);
    if (document.language.empty()) document.language = std::move(page.language);
    document.is_html = false;
  }
  if (strip(document.text).empty()) {
    outcome.stage = "extract";
    outcome.reason = "no_text";
    return outcome;
  }
  double language_score = kMissing;
  if (models_.language) {
    const std::vector<Prediction> best = models_.language->predict(document.text, 1);
    if (!best.empty()) {
      document.language = language_of_label(best[0].label);
      language_score = best[0].probability;
    }
    const bool is_wanted = recipe_.languages.empty() || std::find(recipe_.languages.begin(), recipe_.languages.end(),
                                                                  document.language) != recipe_.languages.end();
    if (!is_wanted || !(language_score > recipe_.language_threshold)) {
      outcome.stage = "language";
      outcome.reason = is_wanted ? "below_threshold" : "other_language";
      outcome.language_score = language_score;
      return outcome;
    }
  }
  outcome = judge_text(document);
  outcome.language_score = language_score;
  if (!outcome.is_kept()) return outcome;
  if (models_.decontamination && !models_.decontamination->find(document.text).positions.empty()) {
    outcome.stage = "decontaminate";
    outcome.reason = "evaluation_item";
    return outcome;
  }
  if (models_.nsfw) {
    outcome.nsfw_score = models_.nsfw->probability(document.text, recipe_.nsfw_label);
    if (outcome.nsfw_score > recipe_.nsfw_threshold) {
      outcome.stage = "nsfw";
      outcome.reason = "above_threshold";
      return outcome;
    }
  }
  if (recipe_.scrub) document.text = Scrubber(recipe_.scrub_options).scrub(document.text);
  score(document, outcome);
  return outcome;
}

void DocumentStages::score(const Document& document, Outcome& outcome) const {
  if (models_.rank) outcome.rank_score = models_.rank->probability(document.text, recipe_.rank_label);
  if (models_.perplexity) {
    std::vector<std::string> lines;
    for (std::string_view line : split_lines(document.text)) lines.emplace_back(line);
    outcome.perplexity = models_.perplexity->perplexity(lines);
  }
  if (recipe_.scorer) outcome.scorer_perplexity = recipe_.scorer(document.text);
}

double Outcome::rank(std::string_view by) const {
  const double value = by == "arpa" ? -perplexity : by == "sinter" ? -scorer_perplexity : rank_score;
  return std::isnan(value) ? 0 : value;
}

}  // namespace sinter::data
