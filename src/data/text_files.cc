#include "data/text_files.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/formats/compression.h"
#include "data/formats/document.h"
#include "data/formats/line_reader.h"
#include "data/token_shard.h"
#include "tokenizer/unicode.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLongestLine = uint64_t{1} << 30;

// Whatever its case, and without what says that it is compressed: DATA.JSONL.GZ is JSON lines.
std::string plain_name(std::string path) {
  for (char& c : path) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (path.ends_with(ending)) path.resize(path.size() - ending.size());
  }
  return path;
}

bool has_ending(const std::string& path, std::initializer_list<const char*> endings) {
  const std::string name = plain_name(path);
  return std::any_of(endings.begin(), endings.end(), [&](const char* ending) { return name.ends_with(ending); });
}

void append_folder(const std::string& folder, std::vector<std::string>& files) {
  const auto options = fs::directory_options::follow_directory_symlink;
  for (const auto& entry : fs::recursive_directory_iterator(folder, options)) {
    if (entry.is_regular_file() && is_text_path(entry.path().string())) files.push_back(entry.path().string());
  }
}

bool has_shards(const std::string& folder) {
  std::error_code ignored;
  const fs::directory_iterator entries(folder, ignored);
  return std::any_of(begin(entries), end(entries),
                     [](const auto& e) { return e.path().extension() == kShardExtension; });
}

using Visit = std::function<void(std::string_view)>;

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

void visit_text(std::string_view text, const std::string& separator, const Visit& visit) {
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = separator.empty() ? std::string_view::npos : text.find(separator, begin);
    visit(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) break;
    begin = end + separator.size();
  }
}

void visit_object(const nlohmann::json& value, const std::string& place, const TextOptions& options,
                  const Visit& visit) {
  const bool is_found = value.is_object() && value.contains(options.text_key) && value[options.text_key].is_string();
  std::vector<std::string> texts;
  if (value.is_object() && !is_found) {
    for (const auto& [key, field] : value.items()) {
      if (field.is_string()) texts.push_back(key);
    }
  }
  SINTER_CHECK(
      is_found, "{}: expected an object with a string '{}'{}; --text-key (data.text_key in a recipe) names the field",
      place, options.text_key, texts.empty() ? std::string() : fmt::format(", found '{}'", fmt::join(texts, "', '")));
  visit(value[options.text_key].get_ref<const std::string&>());
}

void visit_line(std::string_view line, const std::string& path, int64_t number, const TextOptions& options,
                const Visit& visit) {
  if (is_blank(line)) return;
  const nlohmann::json value = base::parse_json(line, fmt::format("{} line {}", path, number));
  visit_object(value, fmt::format("'{}' line {}", path, number), options, visit);
}

void visit_lines(std::string_view text, const std::string& path, const TextOptions& options, const Visit& visit) {
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    visit_line(text.substr(begin, end - begin), path, number, options, visit);
    begin = end + 1;
  }
}

// Compressed lines come one by one: files of many GiB are usual.
void visit_packed_lines(const std::string& path, const TextOptions& options, const Visit& visit) {
  LineReader lines(path, 0, UINT64_MAX, kLongestLine);
  std::string_view line;
  for (int64_t number = 1;; ++number) {
    const LineReader::Status status = lines.next(line);
    if (status == LineReader::Status::end) return;
    SINTER_CHECK(status == LineReader::Status::line, "'{}' line {}: {}", path, number, lines.problem());
    visit_line(line, path, number, options, visit);
  }
}

// A list of objects or of texts, or else objects one a line.
void visit_json(std::string_view text, const std::string& path, const TextOptions& options, const Visit& visit) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '[') return visit_lines(text, path, options, visit);
  const nlohmann::json list = base::parse_json(text, path);
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_string()) {
      visit(list[i].get_ref<const std::string&>());
    } else {
      visit_object(list[i], fmt::format("'{}' entry {}", path, i), options, visit);
    }
  }
}

void visit_table(const std::string& path, const TextOptions& options, const Visit& visit) {
  FilePart part{.path = path, .source = "", .kind = file_kind(path), .begin = 0, .end = fs::file_size(path)};
  ReadOptions read;
  read.text_key = options.text_key;
  read_part(part, read,
            {[&](Document&& d) { visit(d.text); },
             [&](BadRecord&& bad) {
               base::fail("'{}': {}; --text-key (data.text_key in a recipe) names the column", bad.file, bad.what);
             }});
}

bool is_table(const std::string& path) { return has_ending(path, {".csv", ".parquet"}); }
bool holds_json(const std::string& path) { return has_ending(path, {".jsonl", ".ndjson", ".json"}); }

}  // namespace

bool is_file_pattern(const std::string& path) {
  std::error_code ignored;
  return path.find_first_of("*?[") != std::string::npos && !fs::exists(path, ignored);
}

std::vector<std::string> match_files(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

void check_is_text(std::string_view content, const std::string& path) {
  struct Kind {
    std::string_view magic, what;
  };
  using namespace std::string_view_literals;
  static constexpr Kind kKinds[] = {{"\x1f\x8b"sv, "compressed by gzip"},
                                    {"\x28\xb5\x2f\xfd"sv, "compressed by zstd"},
                                    {"\xfd"
                                     "7zXZ"sv,
                                     "compressed by xz"},
                                    {"BZh"sv, "compressed by bzip2"},
                                    {"PK\x03\x04"sv, "a zip archive (.zip, .docx, .epub)"},
                                    {"PAR1"sv, "a Parquet file"},
                                    {"Obj\x01"sv, "an Avro file"},
                                    {"ARROW1"sv, "an Arrow file"}};
  for (const Kind& kind : kKinds) {
    SINTER_CHECK(!content.starts_with(kind.magic), "'{}' is {}; expected text: unpack it first", path, kind.what);
  }
  SINTER_CHECK(!content.starts_with("%PDF-"), "'{}' is a PDF; expected text: pdftotext '{}' makes it", path, path);
  SINTER_CHECK(!content.starts_with("{\\rtf"), "'{}' is RTF; expected text: save it as plain text", path);
  SINTER_CHECK(!content.starts_with(kShardMagic), "'{}' is a token shard; expected the text it was made of", path);
  constexpr size_t kLookedAt = 64 << 10;
  const bool is_utf16 = content.starts_with("\xff\xfe") || content.starts_with("\xfe\xff");
  SINTER_CHECK(!is_utf16, "'{}' is UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8 '{}' > utf8.txt", path, path);
  const size_t zero = content.substr(0, kLookedAt).find('\0');
  SINTER_CHECK(zero == std::string_view::npos, "'{}' has a byte of zero at {}, which no text has; expected text", path,
               zero);
  std::string_view beginning = content.substr(0, kLookedAt);
  if (beginning.size() < content.size()) beginning.remove_suffix(tokenizer::incomplete_tail(beginning));
  if (!tokenizer::is_valid_utf8(beginning))
    base::log_warning(
        "'{}' is not UTF-8: its bytes are taken as they are; iconv -f ISO-8859-1 -t UTF-8 '{}' > utf8.txt, if that is "
        "what it is",
        path, path);
}

bool is_text_path(const std::string& path) {
  return has_ending(path, {".txt", ".text", ".md", ".jsonl", ".ndjson", ".json", ".csv", ".parquet"});
}

std::vector<std::string> list_text_files(const std::string& path) {
  std::vector<std::string> files;
  if (is_file_pattern(path)) {
    for (const std::string& match : match_files(path)) {
      if (fs::is_directory(match)) {
        append_folder(match, files);
      } else {
        files.push_back(match);
      }
    }
    SINTER_CHECK(!files.empty(), "no file matches the pattern '{}'", path);
  } else if (fs::is_directory(path)) {
    append_folder(path, files);
    SINTER_CHECK(!files.empty(),
                 "folder '{}' has no text (.txt, .md, .jsonl, .json, .csv, .parquet, also with .gz or .zst behind)",
                 path);
  } else {
    SINTER_CHECK(fs::is_regular_file(path), "'{}' is not a file or folder that is there", path);
    files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool stands_for_text(const std::string& path) {
  if (is_file_pattern(path)) {
    const std::vector<std::string> found = match_files(path);
    return std::any_of(found.begin(), found.end(), [](const std::string& p) { return stands_for_text(p); });
  }
  if (!fs::is_directory(path)) return is_text_path(path);
  std::vector<std::string> files;
  if (!has_shards(path)) append_folder(path, files);
  return !files.empty();
}

void visit_documents(const std::string& path, const TextOptions& options, const Visit& visit) {
  SINTER_CHECK(
      plain_name(path).rfind(kShardExtension) != plain_name(path).size() - std::string_view(kShardExtension).size(),
      "'{}' is a token shard already; expected text", path);
  if (is_table(path)) return visit_table(path, options, visit);
  const base::MappedFile file(path);
  const bool is_packed = detect_packing(file.text()) != CompressionKind::none;
  if (is_packed && has_ending(path, {".jsonl", ".ndjson"})) return visit_packed_lines(path, options, visit);
  const std::string unpacked = is_packed ? unpack_all(file.text(), path) : "";
  const std::string_view text = is_packed ? std::string_view(unpacked) : file.text();
  check_is_text(text, path);
  if (has_ending(path, {".json"})) return visit_json(text, path, options, visit);
  if (holds_json(path)) return visit_lines(text, path, options, visit);
  visit_text(text, options.separator, visit);
}

void TextFiles::add(const std::string& path, const TextOptions& options) {
  if (!is_table(path) && !holds_json(path)) {
    base::MappedFile file(path);
    if (detect_packing(file.text()) == CompressionKind::none) {
      check_is_text(file.text(), path);
      files_.push_back(std::move(file));
      texts_.push_back(files_.back().text());
      num_bytes_ += texts_.back().size();
      return;
    }
  }
  TextOptions whole = options;
  whole.separator.clear();
  visit_documents(path, whole, [&](std::string_view document) {
    documents_.emplace_back(document);
    texts_.push_back(documents_.back());
    num_bytes_ += document.size();
  });
}

}  // namespace sinter::data
