#include <cmath>
#include <nlohmann/json.hpp>

#include "data/filter/text_rules.h"
#include "data/text/characters.h"
#include "data/text/segment.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

bool is_equal(const Json& want, double value) {
  if (want.is_boolean()) return want.get<bool>() == (value != 0);
  return want.is_null() ? std::isnan(value) : std::abs(want.get<double>() - value) <= 1e-12;
}

bool is_verdict(const Json& want, Verdict verdict) {
  return want[0].get<bool>() == verdict.is_kept() &&
         (want[1].is_null() ? verdict.is_kept() : want[1].get<std::string>() == verdict.reason);
}

void check_columns(const Json& row, const TextColumns& columns, Tally& tally) {
  const Json& plain = row["by"]["plain"]["stats"];
  columns.visit([&](const char* name, double value) {
    const Json& from = row["stats"].contains(name) ? row["stats"] : plain;
    const bool is_right = from.contains(name) ? is_equal(from[name], value) : std::isnan(value);
    tally.expect(is_right, [&] {
      return fmt::format("{} {}: {} instead of {}", row["id"].dump(), name, value,
                         from.contains(name) ? from[name].dump() : "none");
    });
  });
  tally.expect(is_equal(row["stats"]["c4_paragraphs"], columns.has_paragraphs));
}

void check_segmentation(const std::string& folder, Checks& checks) {
  Tally words("words of the segmentation"), sentences("sentences of the segmentation");
  for (const Json& row : read_rows(folder, "segmentation.jsonl")) {
    const auto text = row["text"].get<std::string>();
    std::vector<std::string> found;
    for (std::string_view word : words_of(text)) found.emplace_back(word);
    words.expect(Json(found) == row["plain_words"], [&] { return row["name"].dump(); });
    Json spans = Json::array();
    for (const Span& s : segment_sentences(text))
      spans.push_back({count_chars(text.substr(0, s.begin)), count_chars(text.substr(0, s.end))});
    sentences.expect(spans == row["plain_sentences"], [&] { return row["name"].dump(); });
  }
  checks.push_back(words.check());
  checks.push_back(sentences.check());
}

}  // namespace

Checks verify_filters(const std::string& folder) {
  Checks checks;
  check_segmentation(folder, checks);
  Tally columns("columns"), verdicts("verdicts"), rewritten("C4's text and sentences"), pipeline("pipeline outcomes");
  TextMeasure measure;
  const RuleLimits limits;
  for (const Json& row : read_rows(folder, "filters.jsonl.gz")) {
    const Json& plain = row["by"]["plain"];
    auto where = [&] { return row["id"].dump(); };
    if (row.contains("recipe")) {
      std::string text;
      for (int64_t i = 0; i < row["recipe"]["times"].get<int64_t>(); ++i)
        text += row["recipe"]["unit"].get<std::string>();
      verdicts.expect(is_verdict(plain["verdicts"]["gopher_quality"], gopher_quality(measure.measure(text), limits)),
                      where);
      continue;
    }
    const auto text = row["text"].get<std::string>();
    const TextColumns found = measure.measure(text);
    check_columns(row, found, columns);
    const Json& want = plain["verdicts"];
    const Verdict repetition = gopher_repetition(found, limits), quality = gopher_quality(found, limits);
    verdicts.expect(is_verdict(want["gopher_repetition"], repetition), where);
    verdicts.expect(is_verdict(want["gopher_quality"], quality), where);
    verdicts.expect(is_verdict(want["fineweb"], fineweb_quality(found, limits)), where);
    Verdict c4_loose;
    std::string c4_text;
    for (const char* name : {"c4", "c4_no_terminal_rule"}) {
      const bool is_strict = std::string_view(name) == "c4";
      const C4Result c4 = c4_rewrite(text, {is_strict});
      const Verdict verdict = c4_quality(c4, limits);
      verdicts.expect(is_verdict(want[name], verdict), where);
      rewritten.expect(row[name]["dies"].is_null() ? c4.dies.empty() : row[name]["dies"] == Json(c4.dies), where);
      if (!c4.dies.empty()) continue;
      rewritten.expect(c4.text == (row[name]["unchanged"].get<bool>() ? text : row[name]["out"].get<std::string>()),
                       where);
      rewritten.expect(plain["stats"][std::string("sentences_") + name] == Json(c4.sentences), where);
      if (!is_strict) c4_text = c4.text;
    }
    c4_loose = c4_quality(c4_rewrite(text, {false}), limits);
    Json outcome{nullptr, nullptr};
    if (!repetition.is_kept()) {
      outcome = {"gopher_repetition", repetition.reason};
    } else if (!quality.is_kept()) {
      outcome = {"gopher_quality", quality.reason};
    } else if (!c4_loose.is_kept()) {
      outcome = {"c4_no_terminal_rule", c4_loose.reason};
    } else {
      const Verdict fine = fineweb_quality(measure.measure_fineweb(c4_text), limits);
      if (!fine.is_kept()) outcome = {"fineweb", fine.reason};
    }
    pipeline.expect(outcome == plain["pipeline"], where);
  }
  for (const Tally* tally : {&columns, &verdicts, &rewritten, &pipeline}) checks.push_back(tally->check());
  return checks;
}

}  // namespace sinter::data
