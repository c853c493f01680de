#include "data/verify/verify.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/formats/compression.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

// The files by which a case is known.
struct CaseForm {
  const char* kind;
  std::vector<const char*> files;
};
const std::vector<CaseForm>& case_forms() {
  static const std::vector<CaseForm> forms{{"filters", {"filters.jsonl.gz", "segmentation.jsonl"}},
                                           {"minhash", {"signatures.jsonl.gz", "params.json"}},
                                           {"dedup", {"lines_expected.jsonl.gz", "documents_expected.json"}},
                                           {"html", {"pages.jsonl.gz", "scores.json"}},
                                           {"warc", {"truth.jsonl", "recoverable.json"}},
                                           {"langid", {"texts.jsonl", "subwords.jsonl"}},
                                           {"classifier", {"predictions.jsonl.gz", "models.json"}},
                                           {"pii", {"texts.jsonl", "phones.jsonl"}},
                                           {"url", {"urls.jsonl", "lists.json"}},
                                           {"badwords", {"texts.jsonl", "lists.json"}},
                                           {"parquet", {"manifest.json", "rows"}},
                                           {"decontam", {"eval_items.jsonl", "expected.jsonl"}},
                                           {"shards", {"documents.jsonl", "expected.json"}},
                                           {"ranking", {"scores.jsonl.gz", "models.json"}}};
  return forms;
}

const char* kind_of(const fs::path& folder) {
  for (const CaseForm& form : case_forms()) {
    if (std::all_of(form.files.begin(), form.files.end(), [&](const char* f) { return fs::exists(folder / f); }))
      return form.kind;
  }
  return nullptr;
}

void find_below(const fs::path& folder, int depth, std::vector<DataCase>& found) {
  if (const char* kind = kind_of(folder)) {
    found.push_back({kind, folder.string()});
    return;
  }
  if (depth == 0) return;
  std::error_code error;
  std::vector<fs::path> below;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.is_directory()) below.push_back(entry.path());
  }
  std::sort(below.begin(), below.end());
  for (const fs::path& path : below) find_below(path, depth - 1, found);
}

}  // namespace

std::vector<DataCase> find_data_cases(const std::string& folder) {
  std::vector<DataCase> found;
  find_below(folder, 3, found);
  return found;
}

std::vector<DataCheck> verify_data_case(const DataCase& which, const std::vector<DataCase>& all) {
  const std::string& f = which.folder;
  if (which.kind == "filters") return verify_filters(f);
  if (which.kind == "minhash") return verify_minhash(f);
  if (which.kind == "dedup") return verify_dedup(f);
  if (which.kind == "pii") return verify_pii(f);
  if (which.kind == "url") return verify_urls(f, all);
  if (which.kind == "badwords") return verify_badwords(f);
  if (which.kind == "langid") return verify_languages(f, all);
  if (which.kind == "classifier") return verify_classifiers(f);
  if (which.kind == "decontam") return verify_decontamination(f);
  if (which.kind == "ranking") return verify_ranking(f);
  if (which.kind == "warc") return verify_warc(f);
  if (which.kind == "parquet") return verify_parquet(f);
  if (which.kind == "shards") return verify_shards(f);
  if (which.kind == "html") return verify_html(f);
  base::fail("'{}' is a case of an unknown kind, '{}'", f, which.kind);
}

std::vector<Json> read_rows(const std::string& folder, const std::string& name) {
  const std::string path = (fs::path(folder) / name).string();
  const std::string text = read_unpacked(path);
  std::vector<Json> rows;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin)
      rows.push_back(base::parse_json(std::string_view(text).substr(begin, end - begin),
                                      fmt::format("{} line {}", path, rows.size() + 1)));
    begin = end + 1;
  }
  return rows;
}

Json read_object(const std::string& folder, const std::string& name) {
  return base::load_json((fs::path(folder) / name).string());
}

std::string find_shared(const std::string& folder, const std::string& name, const std::string& kind, const Cases& all) {
  std::vector<std::string> folders{folder};
  for (const DataCase& other : all) {
    if (other.kind == kind) folders.push_back(other.folder);
  }
  if (const char* fixtures = std::getenv("SINTER_FIXTURES")) folders.push_back(std::string(fixtures) + "/data/" + kind);
  for (const std::string& candidate : folders) {
    if (fs::exists(fs::path(candidate) / name)) return (fs::path(candidate) / name).string();
  }
  return "";
}

}  // namespace sinter::data
