#include "data/pipeline/work.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

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

// The first characters of a text, cut between two.
std::string excerpt(std::string_view text) {
  size_t end = std::min(text.size(), kExcerptBytes);
  while (end > 0 && end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end));
}

}  // namespace

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

void process_part(const WorkPart& part, const PipelineRecipe& recipe, const PipelineModels& models,
                  const WorkFolder& folder) {
  const std::string stem = folder.stem(part);
  DocumentStages stages(recipe, models);
  MinHasher hasher(recipe.minhash);
  std::vector<uint64_t> signature(static_cast<size_t>(recipe.minhash.num_hashes()));
  const size_t rows = static_cast<size_t>(recipe.minhash.rows),
               num_bands = recipe.dedup_minhash ? static_cast<size_t>(recipe.minhash.bands) : 0;
  PackedLines documents(stem + ".docs.zst"), columns(folder.result("columns", part.number, ".jsonl.zst"));
  PartMarks marks;
  std::string aside;
  int64_t num_documents = 0, num_bytes = 0, num_bad = 0;
  std::map<std::string, int64_t> dropped, languages, lengths;
  std::map<std::string, nlohmann::json> samples;
  auto on_document = [&](Document&& document) {
    ++num_documents;
    num_bytes += static_cast<int64_t>(document.text.size());
    const Outcome outcome = stages.process(document);
    columns.add(column_line(document, outcome));
    if (!outcome.is_kept()) {
      const std::string name = fmt::format("{}/{}", outcome.stage, outcome.reason);
      if (++dropped[name] <= recipe.samples)
        samples[name].push_back({{"id", document.id}, {"url", document.url}, {"text", excerpt(document.text)}});
      return;
    }
    if (!document.language.empty()) ++languages[document.language];
    ++lengths[std::to_string(static_cast<int>(std::log2(std::max<size_t>(document.text.size(), 1))))];
    documents.add(document_line(document));
    const XXH128_hash_t hash = XXH3_128bits(document.text.data(), document.text.size());
    DocumentMark mark{hash.low64, hash.high64, static_cast<float>(outcome.rank(recipe.rank_by)), 0};
    if (num_bands > 0) {
      mark.has_signature = hasher.sign(document.text, signature);
      for (size_t band = 0; band < num_bands; ++band)
        marks.bands.push_back(mark.has_signature ? XXH3_64bits(signature.data() + band * rows, rows * 8) : 0);
    }
    marks.documents.push_back(mark);
  };
  auto on_bad = [&](BadRecord&& bad) {
    ++num_bad;
    if (aside.size() < (size_t{16} << 20)) {
      aside +=
          nlohmann::json{{"file", bad.file}, {"offset", bad.offset}, {"what", bad.what}, {"excerpt", bad.excerpt}}.dump(
              -1, ' ', false, nlohmann::json::error_handler_t::replace);
      aside += '\n';
    }
  };
  read_part(part.file, recipe.read, {on_document, on_bad});
  documents.commit();
  columns.commit();
  write_marks(stem + ".marks", marks);
  const std::string aside_path = folder.result("aside", part.number, ".jsonl");
  if (aside.empty()) {
    std::error_code error;
    std::filesystem::remove(aside_path, error);  // of what the part was before its input or the recipe changed
  } else {
    base::write_file_atomic(aside_path, aside);
  }
  base::save_json(stem + ".json", {{"documents", num_documents},
                                   {"bytes", num_bytes},
                                   {"bad", num_bad},
                                   {"kept", marks.documents.size()},
                                   {"dropped", dropped},
                                   {"languages", languages},
                                   {"lengths", lengths},
                                   {"samples", samples},
                                   {"source", part.file.source}});
}

}  // namespace sinter::data
