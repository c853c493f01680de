#include "data/pipeline/work.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "data/formats/compression.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

constexpr size_t kFrameBytes = size_t{4} << 20;
constexpr size_t kExcerptBytes = 600;

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "null";
  } else if (value == std::floor(value) && std::abs(value) < 1e15) {
    out += std::to_string(static_cast<int64_t>(value));
  } else {
    fmt::format_to(std::back_inserter(out), "{}", value);
  }
}

// The first characters of a text, cut between two.
std::string excerpt(std::string_view text) {
  size_t end = std::min(text.size(), kExcerptBytes);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

}  // namespace

std::string column_line(const Document& document, const Outcome& outcome) {
  std::string out = "{\"id\":";
  append_json_string(out, document.id);
  if (!outcome.is_kept()) {
    out += ",\"stage\":";
    append_json_string(out, outcome.stage);
    out += ",\"reason\":";
    append_json_string(out, outcome.reason);
  }
  if (!document.language.empty()) {
    out += ",\"language\":";
    append_json_string(out, document.language);
  }
  auto put = [&](const char* name, double value) {
    out += std::string(",\"") + name + "\":";
    append_number(out, value);
  };
  if (!std::isnan(outcome.language_score)) put("language_score", outcome.language_score);
  if (!std::isnan(outcome.rank_score)) put("rank_score", outcome.rank_score);
  if (!std::isnan(outcome.nsfw_score)) put("nsfw_score", outcome.nsfw_score);
  if (!std::isnan(outcome.perplexity)) put("perplexity", outcome.perplexity);
  if (!std::isnan(outcome.scorer_perplexity)) put("scorer_perplexity", outcome.scorer_perplexity);
  if (outcome.columns.chars > 0) outcome.columns.visit(put);
  return out + "}";
}

uint64_t WorkPart::bytes() const {
  uint64_t sum = 0;
  for (const FilePart& file : files) sum += file.end - file.begin;
  return sum;
}

nlohmann::json sample_of(const std::string& id, const std::string& url, std::string_view text) {
  return {{"id", id}, {"url", url}, {"text", excerpt(text)}};
}

std::string WorkFolder::stem(const WorkPart& part) const {
  return fmt::format("{}/work/{:05}-{:016x}", output_, part.number, part.key);
}
std::string WorkFolder::result(const char* folder, size_t number, const char* ending) const {
  return fmt::format("{}/{}/{:05}{}", output_, folder, number, ending);
}

void write_marks(const std::string& path, const PartMarks& marks) {
  base::AtomicFile file(path);
  const uint64_t count = marks.documents.size();
  file.append(std::as_bytes(std::span(&count, 1)));
  file.append(std::as_bytes(std::span(marks.documents)));
  file.append(std::as_bytes(std::span(marks.bands)));
  file.commit();
}

PartMarks read_marks(const std::string& path, size_t num_bands) {
  const std::string bytes = base::read_file(path);
  uint64_t count = 0;
  SINTER_CHECK(bytes.size() >= 8, "'{}' is cut off; remove the folder's work/ and run again", path);
  std::memcpy(&count, bytes.data(), 8);
  const size_t want = 8 + count * (sizeof(DocumentMark) + 8 * num_bands);
  SINTER_CHECK(count < (uint64_t{1} << 40) && bytes.size() == want,
               "'{}' has {} bytes; expected {}: remove the folder's work/ and run again", path, bytes.size(), want);
  PartMarks marks;
  marks.documents.resize(count);
  marks.bands.resize(count * num_bands);
  if (count > 0) {
    std::memcpy(static_cast<void*>(marks.documents.data()), bytes.data() + 8, count * sizeof(DocumentMark));
    if (num_bands > 0)
      std::memcpy(marks.bands.data(), bytes.data() + 8 + count * sizeof(DocumentMark), marks.bands.size() * 8);
  }
  return marks;
}

void PackedLines::add(std::string_view line) {
  buffer_.append(line).push_back('\n');
  if (buffer_.size() >= kFrameBytes) flush();
}
void PackedLines::flush() {
  if (buffer_.empty()) return;
  const std::string packed = pack_zstd(buffer_);
  file_.append(std::as_bytes(std::span(packed)));
  buffer_.clear();
}
void PackedLines::commit() {
  flush();
  file_.commit();
}

namespace {

std::string without_numbers(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c < '0' || c > '9') {
      out.push_back(c);
    } else if (!out.ends_with('#')) {
      out.push_back('#');
    }
  }
  return out;
}

nlohmann::json values_of(const Outcome& outcome) {
  nlohmann::json values = nlohmann::json::object();
  auto put = [&](const char* name, double value) {
    if (!std::isnan(value)) values[name] = value;
  };
  put("language_score", outcome.language_score);
  put("nsfw_score", outcome.nsfw_score);
  if (outcome.columns.chars > 0) outcome.columns.visit(put);
  return values;
}

// What is written of one part while its documents come.
class PartWriter {
 public:
  PartWriter(const WorkPart& part, const PipelineRecipe& recipe, const PipelineModels& models, const WorkFolder& folder)
      : part_(part),
        recipe_(recipe),
        folder_(folder),
        stem_(folder.stem(part)),
        stages_(recipe, models),
        hasher_(recipe.minhash),
        signature_(static_cast<size_t>(recipe.minhash.num_hashes())),
        documents_(stem_ + ".docs.zst"),
        columns_(folder.result("columns", part.number, ".jsonl.zst")) {}

  void add(Document&& document) {
    const size_t bytes = document.text.size();
    const std::string beginning = excerpt(document.text);
    Outcome outcome;
    bool has_signature = false;
    try {
      outcome = stages_.process(document);
      if (outcome.is_kept() && recipe_.dedup_minhash) has_signature = hasher_.sign(document.text, signature_);
    } catch (const std::exception& e) {
      add_bad({file_, fmt::format("document '{}': {}", document.id, e.what()), beginning, 0});
      return;
    }
    ++num_documents_;
    num_bytes_ += static_cast<int64_t>(bytes);
    columns_.add(column_line(document, outcome));
    if (outcome.is_kept()) {
      keep(document, outcome, has_signature);
    } else {
      const std::string name = fmt::format("{}/{}", outcome.stage, outcome.reason);
      if (++dropped_[name] <= recipe_.samples) {
        nlohmann::json sample = sample_of(document.id, document.url, document.text);
        sample["values"] = values_of(outcome);
        samples_[name].push_back(std::move(sample));
      }
    }
  }

  void add_bad(BadRecord&& bad) {
    ++num_bad_;
    constexpr size_t kMostReasons = 50;
    // Numbers are of the one record: without them records of a kind count together.
    const std::string kind = without_numbers(bad.what);
    ++bad_reasons_[bad_reasons_.size() < kMostReasons || bad_reasons_.contains(kind) ? kind : "other"];
    if (aside_.size() >= (size_t{16} << 20)) return;
    aside_ +=
        nlohmann::json{{"file", bad.file}, {"offset", bad.offset}, {"what", bad.what}, {"excerpt", bad.excerpt}}.dump(
            -1, ' ', false, nlohmann::json::error_handler_t::replace);
    aside_ += '\n';
  }

  void begin_file(const std::string& path) { file_ = path; }

  void commit() {
    documents_.commit();
    columns_.commit();
    write_marks(stem_ + ".marks", marks_);
    const std::string aside_path = folder_.result("aside", part_.number, ".jsonl");
    if (aside_.empty()) {
      std::error_code error;
      std::filesystem::remove(aside_path, error);  // of what the part was before its input or the recipe changed
    } else {
      base::write_file_atomic(aside_path, aside_);
    }
    base::save_json(stem_ + ".json", {{"documents", num_documents_},
                                      {"bytes", num_bytes_},
                                      {"bad", num_bad_},
                                      {"kept", marks_.documents.size()},
                                      {"dropped", dropped_},
                                      {"languages", languages_},
                                      {"lengths", lengths_},
                                      {"samples", samples_},
                                      {"bad_reasons", bad_reasons_},
                                      {"source", part_.files.empty() ? "" : part_.files[0].source}});
  }

 private:
  void keep(const Document& document, const Outcome& outcome, bool has_signature) {
    if (!document.language.empty()) ++languages_[document.language];
    ++lengths_[std::to_string(static_cast<int>(std::log2(std::max<size_t>(document.text.size(), 1))))];
    documents_.add(document_line(document));
    const XXH128_hash_t hash = XXH3_128bits(document.text.data(), document.text.size());
    DocumentMark mark{hash.low64, hash.high64, static_cast<float>(outcome.rank(recipe_.rank_by))};
    mark.text_bytes = static_cast<uint32_t>(std::min<size_t>(document.text.size(), INT32_MAX)) & INT32_MAX;
    mark.has_signature = has_signature;
    const auto rows = static_cast<size_t>(recipe_.minhash.rows);
    for (size_t band = 0; recipe_.dedup_minhash && band < static_cast<size_t>(recipe_.minhash.bands); ++band)
      marks_.bands.push_back(has_signature ? XXH3_64bits(signature_.data() + band * rows, rows * 8) : 0);
    marks_.documents.push_back(mark);
  }

  const WorkPart& part_;
  const PipelineRecipe& recipe_;
  const WorkFolder& folder_;
  std::string stem_, file_;
  DocumentStages stages_;
  MinHasher hasher_;
  std::vector<uint64_t> signature_;
  PackedLines documents_, columns_;
  PartMarks marks_;
  std::string aside_;
  int64_t num_documents_ = 0, num_bytes_ = 0, num_bad_ = 0;
  std::map<std::string, int64_t> dropped_, languages_, lengths_, bad_reasons_;
  std::map<std::string, nlohmann::json> samples_;
};

}  // namespace

void process_part(const WorkPart& part, const PipelineRecipe& recipe, const PipelineModels& models,
                  const WorkFolder& folder, const std::function<void(int64_t)>& on_documents) {
  constexpr int64_t kToldAtOnce = 500;
  PartWriter writer(part, recipe, models, folder);
  int64_t since = 0;
  const ReadVisitor visitor{[&](Document&& document) {
                              writer.add(std::move(document));
                              if (++since == kToldAtOnce) on_documents(std::exchange(since, 0));
                            },
                            [&](BadRecord&& bad) { writer.add_bad(std::move(bad)); }};
  for (const FilePart& file : part.files) {
    writer.begin_file(file.path);
    read_part(file, recipe.read, visitor);
  }
  on_documents(since);
  writer.commit();
}

}  // namespace sinter::data
