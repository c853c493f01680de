#include "data/formats/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "data/formats/charset.h"
#include "data/formats/line_reader.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

// RFC 4180: quoted fields may hold commas, quotes (doubled) and line breaks.
class CsvRow {
 public:
  // Adds a line without its break; true when the row ends with it, false when a quoted field goes on.
  bool add(std::string_view line) {
    if (is_complete_) {
      fields_.assign(1, "");
      size_ = 0;
    } else {
      fields_.back().push_back('\n');
    }
    size_ += line.size() + 1;
    for (size_t pos = 0; pos < line.size(); ++pos) {
      const char c = line[pos];
      if (is_quoted_ && c == '"' && pos + 1 < line.size() && line[pos + 1] == '"') {
        fields_.back().push_back('"');
        ++pos;
      } else if (is_quoted_ && c == '"') {
        is_quoted_ = false;
      } else if (is_quoted_) {
        fields_.back().push_back(c);
      } else if (c == '"' && fields_.back().empty()) {
        is_quoted_ = true;
      } else if (c == ',') {
        fields_.emplace_back();
      } else if (c != '\r') {
        fields_.back().push_back(c);
      }
    }
    return is_complete_ = !is_quoted_;
  }
  void drop() {
    is_quoted_ = false;
    is_complete_ = true;
  }
  bool is_complete() const { return is_complete_; }
  bool is_blank() const { return fields_.size() == 1 && fields_[0].empty(); }
  size_t size() const { return size_; }  // bytes
  const std::vector<std::string>& fields() const { return fields_; }

 private:
  std::vector<std::string> fields_;
  size_t size_ = 0;
  bool is_quoted_ = false, is_complete_ = true;
};

// Documents of rows, once the first of them has named the columns.
class CsvDocuments {
 public:
  CsvDocuments(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor)
      : part_(part), options_(options), visitor_(visitor) {}

  // False when the rest of the file is of no use.
  bool add(const std::vector<std::string>& fields, uint64_t offset) {
    if (header_.empty()) return begin(fields);
    if (fields.size() != header_.size()) {
      bad(fmt::format("a row of {} fields; expected {}", fields.size(), header_.size()), fields[0], offset);
      return true;
    }
    Document document;
    document.text = fields[text_];
    document.id =
        id_ < fields.size() ? fields[id_] : fmt::format("{}:{}", fs::path(part_.path).filename().string(), offset);
    if (url_ < fields.size()) document.url = fields[url_];
    document.source = part_.source;
    visitor_.document(std::move(document));
    return true;
  }
  void bad(std::string what, std::string_view excerpt, uint64_t offset) const {
    visitor_.bad({part_.path, std::move(what), to_valid_utf8(excerpt.substr(0, 200)), offset});
  }

 private:
  bool begin(const std::vector<std::string>& fields) {
    header_ = fields;
    if (header_[0].starts_with("\xef\xbb\xbf")) header_[0].erase(0, 3);
    auto column = [&](const std::string& name) {
      return static_cast<size_t>(std::find(header_.begin(), header_.end(), name) - header_.begin());
    };
    text_ = column(options_.text_key);
    id_ = column(options_.id_key);
    url_ = column(options_.url_key);
    if (text_ < header_.size()) return true;
    bad(fmt::format("no column '{}' in the first line; there are '{}'", options_.text_key, fmt::join(header_, "', '")),
        "", 0);
    return false;
  }

  const FilePart& part_;
  const ReadOptions& options_;
  const ReadVisitor& visitor_;
  std::vector<std::string> header_;
  size_t text_ = 0, id_ = 0, url_ = 0;
};

}  // namespace

void read_csv(const FilePart& part, const ReadOptions& options, const ReadVisitor& visitor) {
  CsvDocuments documents(part, options, visitor);
  CsvRow row;
  LineReader lines(part.path, 0, UINT64_MAX, options.max_record_bytes);
  std::string_view line;
  uint64_t begin = 0;
  for (LineReader::Status status; (status = lines.next(line)) != LineReader::Status::end;) {
    if (row.is_complete()) begin = lines.offset();
    if (begin == 0 && (line.starts_with("\xff\xfe") || line.starts_with("\xfe\xff"))) {
      documents.bad("a table in UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8", "", 0);
      return;
    }
    if (status == LineReader::Status::bad) {
      documents.bad(lines.problem(), line, lines.offset());
      row.drop();
      continue;
    }
    const bool is_complete = row.add(decode_page(line, "").text);
    if (row.size() > options.max_record_bytes) {
      documents.bad(fmt::format("a row longer than {} bytes", options.max_record_bytes), row.fields()[0], begin);
      row.drop();
    } else if (is_complete && !row.is_blank() && !documents.add(row.fields(), begin)) {
      return;
    }
  }
  if (!row.is_complete()) documents.bad("a quoted field that does not end", row.fields()[0], begin);
}

}  // namespace sinter::data
