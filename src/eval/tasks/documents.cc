#include "eval/tasks/documents.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/formats/compression.h"
#include "data/formats/document.h"
#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;
using base::fail;

void add_json(DocumentSet& set, const nlohmann::ordered_json& json, int64_t line) {
  SINTER_CHECK(json.is_object(), "'{}', line {}: found {}, expected an object with the document's fields", set.path,
               line, json.type_name());
  set.documents.push_back(jinja::from_json(json));
  set.lines.push_back(line);
}

nlohmann::ordered_json parse_at(std::string_view text, const std::string& path, int64_t line) {
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    // "[json.exception...] parse error at line 1, column 7: ..." The line is of the piece: ours is the file's.
    std::string what = e.what();
    if (const size_t column = what.find("column"); column != std::string::npos) what = what.substr(column);
    fail("'{}', line {}: not valid JSON ({})", path, line, what);
  }
}

void read_json_lines(DocumentSet& set, std::string_view text) {
  int64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view row = text.substr(begin, end - begin);
    begin = end + 1;
    ++line;
    if (row.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    SINTER_CHECK(tokenizer::is_valid_utf8(row), "'{}', line {}: the bytes are not UTF-8 text", set.path, line);
    add_json(set, parse_at(row, set.path, line), line);
  }
}

// A whole array, or an object with one under "data" or "examples".
void read_json(DocumentSet& set, std::string_view text) {
  nlohmann::ordered_json json = parse_at(text, set.path, 1);
  for (const char* key : {"data", "examples"}) {
    if (json.is_object() && json.contains(key)) json = nlohmann::ordered_json(json[key]);
  }
  SINTER_CHECK(json.is_array(), "'{}': found {}, expected an array of documents", set.path, json.type_name());
  for (const auto& item : json) add_json(set, item, static_cast<int64_t>(set.size()) + 1);
}

// One record of RFC 4180: quoted cells may hold separators, newlines and doubled quotes.
std::vector<std::string> read_record(std::string_view text, size_t& at, char separator, int64_t& line,
                                     const std::string& path) {
  std::vector<std::string> cells(1);
  const int64_t first = line;
  bool is_quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    line += c == '\n';
    if (is_quoted) {
      if (c != '"') {
        cells.back() += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        cells.back() += text[++at];
      } else {
        is_quoted = false;
      }
    } else if (c == '"' && separator == ',' && cells.back().empty()) {
      is_quoted = true;
    } else if (c == separator) {
      cells.emplace_back();
    } else if (c == '\n') {
      ++at;
      break;
    } else if (c != '\r' || at + 1 >= text.size() || text[at + 1] != '\n') {
      cells.back() += c;
    }
  }
  SINTER_CHECK(!is_quoted, "'{}', line {}: a quoted cell is never closed", path, first);
  return cells;
}

void read_table(DocumentSet& set, std::string_view text, char separator, std::vector<std::string> columns) {
  size_t at = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  int64_t line = 1;
  if (columns.empty()) columns = read_record(text, at, separator, line, set.path);
  while (at < text.size()) {
    const int64_t first = line;
    const std::vector<std::string> cells = read_record(text, at, separator, line, set.path);
    if (cells.size() == 1 && cells[0].empty()) continue;
    SINTER_CHECK(cells.size() == columns.size(), "'{}', line {}: found {} cells, expected {} ('{}' to '{}')", set.path,
                 first, cells.size(), columns.size(), columns.front(), columns.back());
    auto document = jinja::make_dict();
    for (size_t c = 0; c < cells.size(); ++c) document->set(Value(columns[c]), Value(cells[c]));
    set.documents.emplace_back(std::move(document));
    set.lines.push_back(first);
  }
}

void read_parquet_rows(DocumentSet& set) {
  std::string problem;
  data::read_parquet(set.path, {[&](std::string&& row) {
                                  const auto number = static_cast<int64_t>(set.size()) + 1;
                                  add_json(set, parse_at(row, set.path, number), number);
                                },
                                [&](const std::string& what) { problem = what; }});
  SINTER_CHECK(problem.empty(), "'{}', behind row {}: {}", set.path, set.size(), problem);
}

}  // namespace

std::string DocumentSet::place(size_t index) const {
  return fmt::format("'{}', line {}", path, index < lines.size() ? lines[index] : 0);
}

std::string find_documents(const std::vector<std::string>& names, const std::string& folder) {
  namespace fs = std::filesystem;
  for (const std::string& name : names) {
    fs::path path(name);
    if (path.is_relative() && !folder.empty()) path = fs::path(folder) / path;
    if (fs::is_regular_file(path)) return path.string();
    const fs::path stem = path.parent_path() / path.filename().string().substr(0, path.filename().string().find('.'));
    for (const char* ending : {".jsonl", ".json", ".parquet", ".csv", ".tsv"}) {
      for (const char* packed : {"", ".gz", ".zst"}) {
        const std::string other = stem.string() + ending + packed;
        if (fs::is_regular_file(other)) return other;
      }
    }
    const std::string whole = stem.filename().string() + "-00000-of-00001.parquet";
    for (const fs::path& other : {stem.parent_path() / whole, stem.parent_path() / "data" / whole}) {
      if (fs::is_regular_file(other)) return other.string();
    }
  }
  return "";
}

DocumentSet read_documents(const std::string& path, const std::vector<std::string>& columns) {
  DocumentSet set;
  set.path = path;
  std::string ending = path, text;
  for (const char* packed : {".gz", ".zst"}) {
    if (ending.ends_with(packed)) ending.resize(ending.size() - std::string_view(packed).size());
  }
  if (ending.ends_with(".parquet")) {
    read_parquet_rows(set);
    SINTER_CHECK(!set.documents.empty(), "'{}' holds no documents", path);
    return set;
  }
  text = data::read_unpacked(path);
  if (ending.ends_with(".jsonl") || ending.ends_with(".ndjson")) {
    read_json_lines(set, text);
  } else if (ending.ends_with(".json")) {
    read_json(set, text);
  } else if (ending.ends_with(".csv") || ending.ends_with(".tsv")) {
    read_table(set, text, ending.ends_with(".csv") ? ',' : '\t', columns);
  } else {
    fail(
        "'{}': the name's ending says no format; expected .jsonl, .json, .csv, .tsv or .parquet, but for the last with "
        ".gz or .zst behind it or not",
        path);
  }
  SINTER_CHECK(!set.documents.empty(), "'{}' holds no documents", path);
  return set;
}

}  // namespace sinter::eval
