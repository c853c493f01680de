#include "data/formats/document.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "data/formats/charset.h"
#include "data/formats/compression.h"
#include "data/formats/line_reader.h"
#include "data/formats/warc.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

std::string lower_path(std::string path) {
  for (char& c : path) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (path.ends_with(ending)) path.resize(path.size() - ending.size());
  }
  return path;
}

bool is_known(const std::string& path) {
  try {
    file_kind(path);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

class JsonLineParser {
 public:
  JsonLineParser(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor)
      : part_(part), options_(options), visitor_(visitor) {}

  void parse(std::string_view line, uint64_t offset) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    Document document;
    const std::string problem = fill(line, document);
    if (!problem.empty()) {
      visitor_.bad({part_.path, problem, to_valid_utf8(line.substr(0, 200)), offset});
      return;
    }
    if (document.id.empty()) document.id = fmt::format("{}:{}", fs::path(part_.path).filename().string(), offset);
    document.source = part_.source;
    visitor_.document(std::move(document));
  }

 private:
  std::string fill(std::string_view line, Document& document) {
    padded_.assign(line);
    padded_.reserve(line.size() + simdjson::SIMDJSON_PADDING);
    simdjson::dom::element root;
    const auto error =
        parser_.parse(padded_.data(), line.size(), padded_.capacity() < line.size() + simdjson::SIMDJSON_PADDING)
            .get(root);
    if (error) return std::string("not JSON: ") + simdjson::error_message(error);
    simdjson::dom::object object;
    if (root.get(object)) return "not a JSON object";
    std::string_view text;
    if (object[options_.text_key].get(text)) return "no string '" + options_.text_key + "'";
    document.text = std::string(text);
    auto read = [&](const std::string& key, std::string& to) {
      simdjson::dom::element value;
      if (object[key].get(value)) return;
      std::string_view s;
      int64_t n = 0;
      if (!value.get(s)) {
        to = std::string(s);
      } else if (!value.get(n)) {
        to = std::to_string(n);
      }
    };
    read(options_.id_key, document.id);
    read(options_.url_key, document.url);
    read("date", document.date);
    read("timestamp", document.date);
    read("language", document.language);
    read("title", document.title);
    return "";
  }

  const FilePart& part_;
  const ReadOptions& options_;
  const ReadVisitor& visitor_;
  simdjson::dom::parser parser_;
  std::string padded_;
};

void read_lines(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  JsonLineParser parser(part, options, visitor);
  LineReader lines(part.path, part.begin, part.end, options.max_record_bytes);
  std::string_view line;
  for (;;) {
    const LineReader::Status status = lines.next(line);
    if (status == LineReader::Status::end) return;
    if (status == LineReader::Status::line) {
      parser.parse(line, lines.offset());
    } else {
      visitor.bad({part.path, lines.problem(), to_valid_utf8(line.substr(0, 200)), lines.offset()});
    }
  }
}

void read_text(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  std::string bytes;
  try {
    bytes = read_unpacked(part.path, size_t{4} << 30);
  } catch (const base::Error& e) {
    visitor.bad({part.path, e.what(), "", 0});
    return;
  }
  const std::string name = fs::path(part.path).filename().string();
  int64_t number = 0;
  for (size_t begin = 0; begin <= bytes.size();) {
    const size_t end =
        options.separator.empty() ? bytes.size() : std::min(bytes.find(options.separator, begin), bytes.size());
    const std::string_view piece = std::string_view(bytes).substr(begin, end - begin);
    Document document;
    document.id = fmt::format("{}:{}", name, number++);
    document.source = part.source;
    if (piece.size() > options.max_record_bytes) {
      visitor.bad(
          {part.path, fmt::format("a document of {} bytes", piece.size()), to_valid_utf8(piece.substr(0, 200)), begin});
    } else {
      document.text = decode_page(piece, "").text;
      if (!strip(document.text).empty()) visitor.document(std::move(document));
    }
    begin = end + std::max<size_t>(options.separator.size(), 1);
  }
}

void read_html(const FilePart& part, const ReadVisitor& visitor) {
  try {
    Document document;
    document.id = fs::path(part.path).filename().string();
    document.source = part.source;
    document.text = decode_page(read_unpacked(part.path, size_t{64} << 20), "").text;
    document.is_html = true;
    visitor.document(std::move(document));
  } catch (const base::Error& e) {
    visitor.bad({part.path, e.what(), "", 0});
  }
}

void read_archive(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  const base::MappedFile file(part.path);
  auto on_record = [&](WarcRecord& record) {
    const bool is_response = record.type() == "response", is_conversion = record.type() == "conversion";
    if (!is_response && !is_conversion) return true;
    Document document;
    document.id = std::string(record.id());
    document.url = record.url();
    document.date = std::string(record.date());
    document.source = part.source;
    if (is_conversion) {
      document.text = decode_page(record.block, "").text;
    } else {
      const HttpMessage message = parse_http(record.block);
      if ((message.is_http && message.status != 200) || message.payload.empty() || !is_html(record, message))
        return true;
      if (message.payload.size() > options.max_record_bytes) {
        visitor.bad(
            {part.path, fmt::format("a page of {} bytes", message.payload.size()), document.url, record.offset});
        return true;
      }
      document.text = decode_page(message.payload, content_type_charset(message.header.get("Content-Type"))).text;
      document.is_html = true;
    }
    visitor.document(std::move(document));
    return true;
  };
  read_warc(file.text(), part.begin, part.end, {on_record, [&](const WarcDamage& d) {
                                                  visitor.bad({part.path, d.what, "", d.offset});
                                                }});
}

// RFC 4180: quoted fields may hold commas, quotes (doubled) and line breaks. False when the text ends inside a field.
bool next_csv_row(std::string_view text, size_t& pos, std::vector<std::string>& row) {
  row.assign(1, "");
  for (bool is_quoted = false; pos < text.size(); ++pos) {
    const char c = text[pos];
    if (is_quoted) {
      if (c != '"') {
        row.back().push_back(c);
      } else if (pos + 1 < text.size() && text[pos + 1] == '"') {
        row.back().push_back('"');
        ++pos;
      } else {
        is_quoted = false;
      }
      if (pos + 1 == text.size() && is_quoted) return ++pos, false;
    } else if (c == '"' && row.back().empty()) {
      is_quoted = true;
    } else if (c == ',') {
      row.emplace_back();
    } else if (c == '\n') {
      ++pos;
      break;
    } else if (c != '\r') {
      row.back().push_back(c);
    }
  }
  return true;
}

void read_csv(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  std::string text;
  try {
    text = decode_page(read_unpacked(part.path, size_t{4} << 30), "").text;
  } catch (const base::Error& e) {
    visitor.bad({part.path, e.what(), "", 0});
    return;
  }
  std::vector<std::string> header, row;
  size_t pos = 0;
  if (!next_csv_row(text, pos, header)) header.clear();
  auto column = [&](const std::string& name) {
    return static_cast<size_t>(std::find(header.begin(), header.end(), name) - header.begin());
  };
  const size_t text_column = column(options.text_key), id_column = column(options.id_key),
               url_column = column(options.url_key);
  if (text_column == header.size()) {
    visitor.bad({part.path, "no column '" + options.text_key + "' in the first line", text.substr(0, 200), 0});
    return;
  }
  while (pos < text.size()) {
    const size_t at = pos;
    if (!next_csv_row(text, pos, row) || row.size() != header.size()) {
      if (row.size() == 1 && row[0].empty()) continue;
      visitor.bad({part.path, fmt::format("a row of {} fields; expected {}", row.size(), header.size()),
                   to_valid_utf8(text.substr(at, 200)), at});
      continue;
    }
    Document document;
    document.text = row[text_column];
    document.id =
        id_column < row.size() ? row[id_column] : fmt::format("{}:{}", fs::path(part.path).filename().string(), at);
    if (url_column < row.size()) document.url = row[url_column];
    document.source = part.source;
    visitor.document(std::move(document));
  }
}

void read_table(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  JsonLineParser parser(part, options, visitor);
  uint64_t number = 0;
  read_parquet(part.path, {[&](std::string&& row) { parser.parse(row, number++); },
                           [&](const std::string& what) {
                             visitor.bad({part.path, what, "", number});
                           }});
}

}  // namespace

FileKind file_kind(const std::string& path) {
  const std::string low = lower_path(path);
  struct Ending {
    const char* ending;
    FileKind kind;
  };
  static constexpr Ending kEndings[] = {
      {".jsonl", FileKind::jsonl}, {".ndjson", FileKind::jsonl}, {".json", FileKind::jsonl},
      {".txt", FileKind::text},    {".text", FileKind::text},    {".md", FileKind::text},
      {".html", FileKind::html},   {".htm", FileKind::html},     {".csv", FileKind::csv},
      {".warc", FileKind::warc},   {".wet", FileKind::warc},     {".parquet", FileKind::parquet}};
  for (const Ending& e : kEndings) {
    if (low.ends_with(e.ending)) return e.kind;
  }
  base::fail(
      "'{}' is of no kind that is read; expected .jsonl, .txt, .md, .html, .csv, .warc, .wet or .parquet, .gz or .zst "
      "behind it",
      path);
}

void read_part(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  switch (part.kind) {
    case FileKind::jsonl:
      return read_lines(part, options, visitor);
    case FileKind::text:
      return read_text(part, options, visitor);
    case FileKind::html:
      return read_html(part, visitor);
    case FileKind::csv:
      return read_csv(part, options, visitor);
    case FileKind::warc:
      return read_archive(part, options, visitor);
    case FileKind::parquet:
      return read_table(part, options, visitor);
  }
}

std::vector<FilePart> list_parts(const std::string& path, const std::string& source, uint64_t part_bytes) {
  std::vector<std::string> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file() && is_known(entry.path().string())) files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
    SINTER_CHECK(!files.empty(), "'{}' holds no file that is read (.jsonl, .txt, .html, .csv, .warc, .parquet)", path);
  } else {
    SINTER_CHECK(fs::is_regular_file(path), "'{}' is not there; expected a file or a folder of files", path);
    files.push_back(path);
  }
  std::vector<FilePart> parts;
  for (const std::string& file : files) {
    const FileKind kind = file_kind(file);
    const uint64_t size = fs::file_size(file);
    bool is_splittable = kind == FileKind::warc;
    if (kind == FileKind::jsonl && size > 0) {
      const base::MappedFile map(file);
      is_splittable = detect_packing(map.text()) == CompressionKind::none;
    }
    const uint64_t step = is_splittable ? std::max<uint64_t>(part_bytes, 1) : std::max<uint64_t>(size, 1);
    for (uint64_t begin = 0; begin < std::max<uint64_t>(size, 1); begin += step)
      parts.push_back({file, source, kind, begin, std::min(begin + step, size)});
  }
  return parts;
}

void append_json_string(std::string& out, std::string_view text) {
  out.push_back('"');
  size_t from = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 32 && c != '"' && c != '\\') continue;
    out.append(text.substr(from, i - from));
    from = i + 1;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\r':
        out += "\\r";
        break;
      default:
        out += fmt::format("\\u{:04x}", c);
    }
  }
  out.append(text.substr(from));
  out.push_back('"');
}

std::string text_of_line(std::string_view line) {
  thread_local simdjson::dom::parser parser;
  std::string_view text;
  const auto error = parser.parse(line.data(), line.size())["text"].get(text);
  SINTER_CHECK(!error, "a line of finished documents has no text ({}); remove the run's work/ and run again",
               simdjson::error_message(error));
  return std::string(text);
}

std::string document_line(const Document& document) {
  std::string out = "{\"text\":";
  append_json_string(out, document.text);
  struct Field {
    const char* name;
    const std::string& value;
  };
  for (const Field& f :
       {Field{"id", document.id}, Field{"url", document.url}, Field{"date", document.date},
        Field{"language", document.language}, Field{"title", document.title}, Field{"source", document.source}}) {
    if (f.value.empty()) continue;
    out += std::string(",\"") + f.name + "\":";
    append_json_string(out, f.value);
  }
  return out + "}";
}

}  // namespace sinter::data
