// What happens to one document on its way: address, text of a page, language, rules, scrubbing, evaluation items,
// scores.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/dedup/decontaminate.h"
#include "data/filter/text_rules.h"
#include "data/filter/url.h"
#include "data/formats/document.h"
#include "data/pipeline/recipe.h"
#include "data/rank/fasttext.h"
#include "data/rank/ngram_model.h"

namespace sinter::data {

// "en" of "__label__en", "eng_Latn" of "__label__eng_Latn".
std::string language_of_label(std::string_view label);
// Throws base::Error for a language to keep that the model has no label for.
void check_languages(const FastText& model, const std::vector<std::string>& languages, const std::string& path);

// Models and lists of a recipe, read once and shared by all threads.
struct PipelineModels {
  explicit PipelineModels(const PipelineRecipe& recipe);
  std::optional<FastText> language, rank, nsfw;
  std::optional<NgramModel> perplexity;
  std::optional<UrlFilter> urls;
  std::optional<BadWordFilter> bad_words;
  std::optional<DecontaminationIndex> decontamination;
};

struct Outcome {
  std::string_view stage, reason;  // "" for a document that is kept
  TextColumns columns;             // of the text that the rules saw
  double language_score = kMissing, nsfw_score = kMissing, rank_score = kMissing;
  double perplexity = kMissing, scorer_perplexity = kMissing;
  bool is_kept() const { return stage.empty(); }
  double rank(std::string_view by) const;  // the higher the better; `by` as in PipelineRecipe::rank_by
};

// One per thread.
class DocumentStages {
 public:
  DocumentStages(const PipelineRecipe& recipe, const PipelineModels& models) : recipe_(recipe), models_(models) {}
  // The document's text becomes the one that goes on.
  Outcome process(Document& document);

 private:
  Outcome judge_text(Document& document);
  void score(const Document& document, Outcome& outcome) const;
  const PipelineRecipe& recipe_;
  const PipelineModels& models_;
  TextMeasure measure_;
};

}  // namespace sinter::data
