// A document on its way through the pipeline, and the readers that give documents out of files of every kind.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

struct Document {
  std::string text;  // valid UTF-8; of a web page its HTML until it is extracted
  std::string id, url, date, language, title, source;
  std::string other;  // further fields of a JSON line, as `,"name":value...`: they go through as they are
  bool is_html = false;
};

// What could not be read: counted and kept aside.
struct BadRecord {
  std::string file, what, excerpt;
  uint64_t offset = 0;
};

enum class FileKind { jsonl, text, html, csv, warc, parquet };
// By the name's ending, a .gz or .zst behind it passed over; throws base::Error naming the endings for any other.
FileKind file_kind(const std::string& path);

struct ReadOptions {
  std::string text_key = "text", id_key = "id", url_key = "url";
  std::string separator = "<|endoftext|>";         // between the documents of a text file; "" = the whole file is one
  uint64_t max_record_bytes = uint64_t{64} << 20;  // a longer line or page is a bad record
};

// A part of a file: documents that begin in [begin, end).
struct FilePart {
  std::string path, source;
  FileKind kind = FileKind::jsonl;
  uint64_t begin = 0, end = 0;
};

struct ReadVisitor {
  std::function<void(Document&&)> document;
  std::function<void(BadRecord&&)> bad;
};
// Throws base::Error only when the file cannot be opened. What a part gives does not depend on how the file was cut.
void read_part(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor);

// The files of a path (a file, a folder's files in order of name, or those that a pattern of *, ? and [...] matches),
// cut into parts of about `part_bytes`. Files that cannot be read from the middle (compressed text, tables) are one
// part each. Throws base::Error naming the path where there is none.
std::vector<FilePart> list_parts(const std::string& path, const std::string& source, uint64_t part_bytes,
                                 const ReadOptions& options = {});

// Rows of a Parquet file as JSON objects; false when the program was built without Apache Arrow.
bool has_parquet();
struct ParquetVisitor {
  std::function<void(std::string&& row)> row;
  std::function<void(const std::string& what)> bad;
};
void read_parquet(const std::string& path, const ParquetVisitor& visitor);
void read_parquet_bytes(std::string_view bytes, const ParquetVisitor& visitor);

// JSON in its shortest form.
void append_json_string(std::string& out, std::string_view text);
std::string document_line(const Document& document);
// The text in such a line; throws base::Error where it is none.
std::string text_of_line(std::string_view line);

}  // namespace sinter::data
