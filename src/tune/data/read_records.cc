// Files of rows: JSON lines, JSON arrays, Parquet.
#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "data/formats/compression.h"
#include "data/formats/document.h"
#include "data/formats/line_reader.h"
#include "tune/data/record.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxRowBytes = uint64_t{64} << 20;

struct Stop {};  // enough rows have been read

class FileReader {
 public:
  FileReader(const RecordSource& source, const RecordVisitor& visitor) : source_(source), visitor_(visitor) {}

  void read(const std::string& path) {
    name_ = fs::path(path).filename().string();
    number_ = 0;
    const bool is_parquet = data::file_kind(path) == data::FileKind::parquet;
    SINTER_CHECK(is_parquet || !is_utf16(path), "'{}' is UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8 '{}' > {}",
                 path, path, "utf8.jsonl");
    if (is_parquet) {
      data::read_parquet(path, {[&](std::string&& row) { take(row); }, [&](const std::string& what) { bad(what); }});
    } else if (const std::string bytes = head_of(path); bytes.starts_with('[')) {
      read_array(data::read_unpacked(path));
    } else {
      read_lines(path);
    }
  }

  int64_t num_read() const { return num_read_; }
  const std::string& first_problem() const { return first_problem_; }

 private:
  static bool is_utf16(const std::string& path) {
    data::LineReader lines(path, 0, UINT64_MAX, kMaxRowBytes);
    std::string_view line;
    return lines.next(line) == data::LineReader::Status::line &&
           (line.starts_with("\xFF\xFE") || line.starts_with("\xFE\xFF"));
  }
  // The first character that is no white space.
  static std::string head_of(const std::string& path) {
    data::LineReader lines(path, 0, UINT64_MAX, kMaxRowBytes);
    std::string_view line;
    for (;;) {
      if (lines.next(line) != data::LineReader::Status::line) return "";
      const size_t at = line.find_first_not_of(" \t\r\xEF\xBB\xBF");
      if (at != std::string_view::npos) return std::string(line.substr(at, 1));
    }
  }

  void read_lines(const std::string& path) {
    data::LineReader lines(path, 0, UINT64_MAX, kMaxRowBytes);
    std::string_view line;
    for (;;) {
      const data::LineReader::Status status = lines.next(line);
      if (status == data::LineReader::Status::end) return;
      if (number_ == 0 && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
      if (status == data::LineReader::Status::bad) {
        ++number_;
        bad(lines.problem());
      } else if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
        ++number_;
      } else {
        take(line);
      }
    }
  }

  // The elements of a JSON array, each as its own text.
  void read_array(std::string_view text) {
    size_t begin = text.find('[') + 1;
    int depth = 0;
    bool in_text = false, is_closed = false;
    for (size_t i = begin; i < text.size() && !is_closed; ++i) {
      const char c = text[i];
      if (in_text) {
        if (c == '\\') ++i;
        in_text = c != '"';
        continue;
      }
      in_text = c == '"';
      if (c == '[' || c == '{') ++depth;
      is_closed = depth == 0 && c == ']';
      if (is_closed || (depth == 0 && c == ',')) {
        element(text.substr(begin, i - begin));
        begin = i + 1;
      }
      if (!is_closed && (c == ']' || c == '}')) --depth;
    }
    if (!is_closed) {
      ++number_;
      bad("the JSON array is cut off: its ']' is missing");
    }
  }

  void element(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return;
    take(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
  }

  void take(std::string_view row) {
    ++number_;
    const std::string origin = fmt::format("{}:{}", name_, number_);
    try {
      Record record = parse_record(row, source_, origin);
      ++num_read_;
      visitor_.record(std::move(record));
    } catch (const base::Error& e) {
      bad_at(origin, e.what());
    }
    if (source_.max_rows > 0 && num_read_ >= source_.max_rows) throw Stop();
  }

  void bad(const std::string& what) {
    const std::string origin = fmt::format("{}:{}", name_, number_);
    bad_at(origin, origin + ": " + what);
  }
  void bad_at(const std::string& origin, const std::string& what) {
    if (first_problem_.empty()) first_problem_ = what;
    if (visitor_.bad) visitor_.bad({origin, what});
  }

  const RecordSource& source_;
  const RecordVisitor& visitor_;
  std::string name_, first_problem_;
  int64_t number_ = 0, num_read_ = 0;
};

std::vector<std::string> files_of(const std::string& path) {
  SINTER_CHECK(fs::exists(path), "there is no file or folder '{}'", path);
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    const bool is_data = name.find(".json") != std::string::npos || name.find(".ndjson") != std::string::npos ||
                         name.ends_with(".parquet");
    if (entry.is_regular_file() && is_data) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  SINTER_CHECK(!files.empty(), "the folder '{}' has no .jsonl, .json or .parquet file", path);
  return files;
}

}  // namespace

void read_records(const RecordSource& source, const RecordVisitor& visitor) {
  check_source(source);
  FileReader reader(source, visitor);
  try {
    for (const std::string& file : files_of(source.path)) {
      const data::FileKind kind = data::file_kind(file);
      SINTER_CHECK(kind == data::FileKind::jsonl || kind == data::FileKind::parquet,
                   "'{}': tuning data are .jsonl, .json or .parquet files (.gz and .zst too)", file);
      reader.read(file);
    }
  } catch (const Stop&) {
  }
  SINTER_CHECK(reader.num_read() > 0, "'{}': no row could be read; the first problem: {}", source.path,
               reader.first_problem().empty() ? "there are no rows" : reader.first_problem());
}

}  // namespace sinter::tune
