#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "data/formats/compression.h"
#include "data/rank/fasttext.h"
#include "data/rank/ngram_model.h"
#include "data/text/characters.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

// The largest difference of two lists of labels and probabilities. Labels below 2e-5 may or may not be listed.
double difference(const std::vector<Prediction>& found, const Json& want) {
  std::map<std::string, double> f, w;
  for (const Prediction& p : found) {
    if (p.probability > 2e-5) f[p.label] = p.probability;
  }
  for (const Json& p : want) {
    if (p[1].get<double>() > 2e-5) w[p[0].get<std::string>()] = p[1].get<double>();
  }
  double worst = f.size() == w.size() ? 0 : 1;
  for (const auto& [label, p] : w) worst = std::max(worst, f.contains(label) ? std::abs(f[label] - p) : p);
  return worst;
}

bool has_same_first(const std::vector<Prediction>& found, const Json& want, double tolerance) {
  if (found.empty() || want.empty()) return found.empty() == want.empty();
  return found[0].label == want[0][0].get<std::string>() ||
         std::abs(found[0].probability - want[0][1].get<double>()) <= tolerance;
}

}  // namespace

Checks verify_languages(const std::string& folder, const Cases& all) {
  const std::string path = find_shared(folder, "lid.176.ftz", "langid", all);
  if (path.empty())
    return {{"languages", "left out", 0, 0, "no lid.176.ftz here, in another case given, or in SINTER_FIXTURES"}};
  const FastText model = FastText::load(path);
  Tally labels("languages");
  double worst = 0;
  for (const Json& row : read_rows(folder, "texts.jsonl")) {
    const std::vector<Prediction> found = model.predict(row["text"].get<std::string>(), 5);
    labels.expect(has_same_first(found, row["top5"], 1e-5), [&] { return row["id"].dump(); });
    worst = std::max(worst, difference(found, row["top5"]));
  }
  Tally rows("sub-word rows");
  for (const Json& row : read_rows(folder, "subwords.jsonl")) {
    std::vector<int32_t> found = model.word_rows(row["word"].get<std::string>());
    rows.expect(Json(found) == row["ids"], [&] { return row["word"].dump(); });
    for (size_t i = 0; i < row["first_vectors"].size() && i < found.size(); ++i) {
      const std::vector<float> vector = model.input_row(found[i]);
      for (size_t j = 0; j < vector.size(); ++j)
        rows.expect(std::abs(vector[j] - row["first_vectors"][i][j].get<double>()) < 1e-6);
    }
  }
  return {labels.check(), {"language probabilities", "largest difference", worst, 1e-4, ""}, rows.check()};
}

Checks verify_classifiers(const std::string& folder) {
  Checks checks;
  const Json models = read_object(folder, "models.json");
  const std::vector<Json> rows = read_rows(folder, "predictions.jsonl.gz");
  for (const auto& [file, info] : models.items()) {
    const FastText model = FastText::load(folder + "/" + file);
    Tally labels(fmt::format("labels of {}", file));
    labels.expect(Json(model.labels()) == info["labels"]);
    labels.expect(Json(model.num_words()) == info["words"]);
    const int32_t loss = model.args().loss;
    const double limit = loss == 1 || loss == 3 ? 1e-4 : .009;  // a step of the sigmoid's table
    double worst = 0;
    for (const Json& row : rows) {
      const std::vector<Prediction> found =
          model.predict(row["text"].get<std::string>(), file.find("many") != std::string::npos ? 6 : -1);
      labels.expect(has_same_first(found, row[file], limit), [&] { return row["id"].dump(); });
      worst = std::max(worst, difference(found, row[file]));
    }
    checks.push_back(labels.check());
    checks.push_back({fmt::format("probabilities of {}", file), "largest difference", worst, limit, ""});
  }
  return checks;
}

namespace {

// An ARPA file as n-gram to log probability and back-off.
std::map<std::string, std::array<double, 2>> read_arpa(std::string_view text) {
  std::map<std::string, std::array<double, 2>> grams;
  for (std::string_view line : split_lines(text)) {
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos) continue;
    const size_t second = std::min(line.find('\t', tab + 1), line.size());
    const std::string back = second < line.size() ? std::string(line.substr(second + 1)) : "0";
    grams[std::string(line.substr(tab + 1, second - tab - 1))] = {std::stod(std::string(line)), std::stod(back)};
  }
  return grams;
}

// Our training of a model beside lmplz's: the same n-grams with the same numbers.
void check_ngram_training(const std::string& folder, const std::string& name, const Json& info, Checks& checks) {
  const std::string text = read_unpacked(fmt::format("{}/{}.train.txt.gz", folder, name));
  std::vector<std::string> lines;
  for (std::string_view line : split_lines(text)) lines.emplace_back(line);
  NgramTraining training;
  training.order = info["order"];
  const Json& options = info["lmplz_options"];
  for (size_t i = 0; i < options.size(); ++i) {
    if (options[i] == "--interpolate_unigrams") training.interpolates_unigrams = options[i + 1] != "0";
    if (options[i] != "--prune") continue;
    for (size_t k = i + 1; k < options.size() && !options[k].get<std::string>().starts_with("-"); ++k)
      training.prune.push_back(std::stoll(options[k].get<std::string>()));
  }
  std::string arpa;
  train_ngrams(lines, training, [&](std::string_view piece) { arpa += piece; });
  const auto found = read_arpa(arpa), want = read_arpa(read_unpacked(fmt::format("{}/{}.arpa.gz", folder, name)));
  Tally grams(fmt::format("n-grams trained as {}", name));
  grams.expect(found.size() == want.size());
  double worst = 0;
  for (const auto& [words, numbers] : want) {
    const auto at = found.find(words);
    grams.expect(at != found.end(), [&] { return words; });
    if (at == found.end()) continue;
    for (size_t i = 0; i < 2; ++i) worst = std::max(worst, std::abs(at->second[i] - numbers[i]));
  }
  checks.push_back(grams.check());
  checks.push_back({fmt::format("numbers trained as {}", name), "largest difference", worst, 1e-5, ""});
}

}  // namespace

Checks verify_ranking(const std::string& folder) {
  Checks checks;
  const std::vector<Json> rows = read_rows(folder, "scores.jsonl.gz"),
                          documents = read_rows(folder, "documents.jsonl.gz");
  const Json models = read_object(folder, "models.json");
  for (const auto& [name, info] : models.items()) {
    const NgramModel model = NgramModel::load(fmt::format("{}/{}.arpa.gz", folder, name));
    Tally scores(fmt::format("line scores of {}", name));
    double worst = 0;
    for (const Json& row : rows) {
      const auto text = row["text"].get<std::string>();
      const Json& want = row[name + ".arpa"];
      const std::vector<NgramModel::Step> steps = model.steps(text);
      const double tolerance = 2e-6 * double(std::max<size_t>(100, steps.size()));
      scores.expect(std::abs(model.score(text) - want["score"].get<double>()) <= tolerance,
                    [&] { return row["id"].dump(); });
      scores.expect(std::abs(model.score(text, false, false) - want["score_no_bos_eos"].get<double>()) <= tolerance,
                    [&] { return row["id"].dump(); });
      scores.expect(std::abs(model.perplexity(text) / want["perplexity"].get<double>() - 1) <= 1e-4,
                    [&] { return row["id"].dump(); });
      if (!want.contains("full")) continue;
      scores.expect(want["full"].size() == steps.size());
      for (size_t i = 0; i < steps.size() && i < want["full"].size(); ++i) {
        worst = std::max(worst, std::abs(steps[i].log10 - want["full"][i][0].get<double>()));
        scores.expect(want["full"][i][1] == Json(steps[i].length) && (want["full"][i][2] == 1) == steps[i].is_unknown);
      }
    }
    checks.push_back(scores.check());
    checks.push_back({fmt::format("word scores of {}", name), "largest difference", worst, 1e-5, ""});
    if (std::filesystem::exists(fmt::format("{}/{}.train.txt.gz", folder, name)))
      check_ngram_training(folder, name, info, checks);
  }
  Tally perplexities("perplexities of documents");
  for (const auto& [name, info] : models.items()) {
    const NgramModel model = NgramModel::load(fmt::format("{}/{}.arpa.gz", folder, name));
    for (const Json& row : documents) {
      for (const auto& [key, value] : row.items()) {
        if (key.find(name) == std::string::npos) continue;
        const Json& want = value.is_object() && value.contains("perplexity") ? value["perplexity"] : value;
        if (!want.is_number() || key.find("binary") != std::string::npos) continue;
        const double found = model.perplexity(row["lines"].get<std::vector<std::string>>());
        perplexities.expect(std::abs(found / want.get<double>() - 1) < 1e-3,
                            [&] { return fmt::format("{} {}", row["id"].dump(), found); });
      }
    }
  }
  checks.push_back(perplexities.check());
  Tally unigrams("unigram probabilities");
  const UnigramModel model = UnigramModel::load(folder + "/unigram_freq.csv");
  for (const Json& row : read_rows(folder, "unigram.jsonl")) {
    const double found = model.mean_log_probability(row["text"].get<std::string>());
    unigrams.expect(std::abs(found - row["mean_logprob"].get<double>()) < 1e-9 && row["kept"] == Json(found > -10),
                    [&] { return row["id"].dump(); });
  }
  checks.push_back(unigrams.check());
  return checks;
}

}  // namespace sinter::data
