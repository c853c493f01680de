#include "data/formats/document.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/formats/charset.h"
#include "data/formats/compression.h"
#include "data/formats/csv.h"
#include "data/formats/line_reader.h"
#include "data/formats/warc.h"
#include "data/text/characters.h"
#include "data/text_files.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostWholeBytes = size_t{1} << 30;  // of a list of JSON objects, which is read at once

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

// Why bytes are not JSON: the library's own messages speak of its insides.
std::string json_problem(simdjson::error_code error) {
  switch (error) {
    case simdjson::UTF8_ERROR:
      return "not JSON: the bytes are not UTF-8";
    case simdjson::UNCLOSED_STRING:
      return "not JSON: a text has no closing quote";
    case simdjson::UNESCAPED_CHARS:
      return "not JSON: a text holds a control character";
    case simdjson::STRING_ERROR:
      return "not JSON: a text holds a wrong escape";
    case simdjson::T_ATOM_ERROR:
    case simdjson::F_ATOM_ERROR:
    case simdjson::N_ATOM_ERROR:
      return "not JSON: a bare word that is not true, false or null";
    case simdjson::NUMBER_ERROR:
      return "not JSON: a number that JSON does not know";
    case simdjson::NUMBER_OUT_OF_RANGE:
      return "not JSON: a number is out of range";
    case simdjson::DEPTH_ERROR:
      return "not JSON: too many brackets inside each other";
    case simdjson::EMPTY:
      return "not JSON: there is nothing";
    default:
      return "not JSON: a bracket, comma, colon or quote is missing or too many";
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
    if (error) return json_problem(error);
    simdjson::dom::object object;
    if (root.get(object)) return "not a JSON object";
    std::string_view text;
    if (object[options_.text_key].get(text)) return no_text(object);
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
    for (const simdjson::dom::key_value_pair field : object) {
      if (is_own(field.key)) continue;
      document.other += ',';
      append_json_string(document.other, field.key);
      document.other += ':';
      document.other += simdjson::minify(field.value);
    }
    return "";
  }

  std::string no_text(const simdjson::dom::object& object) const {
    std::vector<std::string_view> texts;
    for (const simdjson::dom::key_value_pair field : object) {
      if (field.value.is_string() && texts.size() < 5) texts.push_back(field.key);
    }
    return fmt::format("no string '{}'{}", options_.text_key,
                       texts.empty() ? "" : fmt::format("; there are '{}'", fmt::join(texts, "', '")));
  }

  // Fields that a document has a place for, or is written with.
  bool is_own(std::string_view key) const {
    static constexpr std::string_view kNames[] = {"text",      "id",       "url",   "date",
                                                  "timestamp", "language", "title", "source"};
    return key == options_.text_key || key == options_.id_key || key == options_.url_key ||
           std::find(std::begin(kNames), std::end(kNames), key) != std::end(kNames);
  }

  const FilePart& part_;
  const ReadOptions& options_;
  const ReadVisitor& visitor_;
  simdjson::dom::parser parser_;
  std::string padded_;
};

// Whether a .json file that begins so is one list of objects, or one object over many lines.
bool begins_whole_json(const std::string& path, std::string_view head) {
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (!lower_path(path).ends_with(".json") || first == std::string_view::npos) return false;
  const std::string_view line = head.substr(first, std::min(head.find('\n', first), head.size()) - first);
  return line.starts_with('[') || strip(line) == "{";
}

void read_whole_json(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  JsonLineParser parser(part, options, visitor);
  try {
    const simdjson::padded_string bytes(read_unpacked(part.path, kMostWholeBytes));
    simdjson::dom::parser whole;
    simdjson::dom::element root;
    const auto error = whole.parse(bytes).get(root);
    SINTER_CHECK(!error, "{}", json_problem(error));
    simdjson::dom::array list;
    if (root.get(list)) return parser.parse(simdjson::minify(root), 0);
    uint64_t number = 0;
    for (const simdjson::dom::element entry : list) parser.parse(simdjson::minify(entry), number++);
  } catch (const base::Error& e) {
    visitor.bad({part.path, e.what(), "", 0});
  }
}

void read_lines(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  JsonLineParser parser(part, options, visitor);
  LineReader lines(part.path, part.begin, part.end, options.max_record_bytes);
  std::string_view line;
  bool is_first = part.begin == 0;
  for (;;) {
    const LineReader::Status status = lines.next(line);
    if (status == LineReader::Status::end) return;
    if (std::exchange(is_first, false) && begins_whole_json(part.path, line))
      return read_whole_json(part, options, visitor);
    if (status == LineReader::Status::line) {
      parser.parse(line, lines.offset());
    } else {
      visitor.bad({part.path, lines.problem(), to_valid_utf8(line.substr(0, 200)), lines.offset()});
    }
  }
}

void read_text(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  const std::string name = fs::path(part.path).filename().string();
  auto add = [&](std::string_view piece, uint64_t offset) {
    Document document;
    document.id = fmt::format("{}:{}", name, offset);
    document.source = part.source;
    document.text = decode_page(piece, "").text;
    if (!strip(document.text).empty()) visitor.document(std::move(document));
  };
  if (options.separator.empty()) {
    try {
      add(read_unpacked(part.path, options.max_record_bytes), 0);
    } catch (const base::Error& e) {
      visitor.bad({part.path, e.what(), "", 0});
    }
    return;
  }
  LineReader pieces(part.path, part.begin, part.end, options.max_record_bytes, options.separator);
  std::string_view piece;
  for (LineReader::Status status; (status = pieces.next(piece)) != LineReader::Status::end;) {
    if (status == LineReader::Status::line) {
      add(piece, pieces.offset());
    } else {
      visitor.bad({part.path, pieces.problem(), to_valid_utf8(piece.substr(0, 200)), pieces.offset()});
    }
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

namespace {

void append_files(const std::string& path, std::vector<std::string>& files) {
  if (is_file_pattern(path)) {
    for (const std::string& match : match_files(path)) {
      if (fs::is_directory(match) || is_known(match)) append_files(match, files);
    }
    SINTER_CHECK(!files.empty(), "'{}' matches no file that is read (.jsonl, .txt, .html, .csv, .warc, .parquet)",
                 path);
  } else if (fs::is_directory(path)) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (entry.is_regular_file() && is_known(entry.path().string())) files.push_back(entry.path().string());
    }
    SINTER_CHECK(!files.empty(), "'{}' holds no file that is read (.jsonl, .txt, .html, .csv, .warc, .parquet)", path);
  } else {
    SINTER_CHECK(fs::is_regular_file(path), "'{}' is not there; expected a file or a folder of files", path);
    files.push_back(path);
  }
}

// Plain lines, plain texts and archives can be read from the middle.
bool is_splittable(const std::string& file, FileKind kind, const ReadOptions& options) {
  if (kind == FileKind::warc) return true;
  if (kind != FileKind::jsonl && !(kind == FileKind::text && can_be_cut(options.separator))) return false;
  const base::MappedFile map(file);
  return detect_packing(map.text()) == CompressionKind::none &&
         !(kind == FileKind::jsonl && begins_whole_json(file, map.text().substr(0, 4096)));
}

}  // namespace

std::vector<FilePart> list_parts(const std::string& path, const std::string& source, uint64_t part_bytes,
                                 const ReadOptions& options) {
  std::vector<std::string> files;
  append_files(path, files);
  std::sort(files.begin(), files.end());
  std::vector<FilePart> parts;
  for (const std::string& file : files) {
    const FileKind kind = file_kind(file);
    const uint64_t size = fs::file_size(file);
    const bool can_cut = size > 0 && is_splittable(file, kind, options);
    const uint64_t step = can_cut ? std::max<uint64_t>(part_bytes, 1) : std::max<uint64_t>(size, 1);
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
  out += document.other;
  return out + "}";
}

}  // namespace sinter::data
