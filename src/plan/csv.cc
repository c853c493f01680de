#include "plan/csv.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace sinter::plan {
namespace {

std::string trimmed(const std::string& cell) {
  size_t begin = cell.find_first_not_of(" \t\r"), end = cell.find_last_not_of(" \t\r");
  return begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1);
}

// A quote begins and ends a quoted part; two inside one are a quote.
std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back() += line[++i];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == separator && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += line[i];
    }
  }
  for (std::string& cell : cells) cell = trimmed(cell);
  return cells;
}

char separator_of(const std::string& header) {
  char best = ',';
  for (char c : {',', ';', '\t'}) {
    if (std::count(header.begin(), header.end(), c) > std::count(header.begin(), header.end(), best)) best = c;
  }
  return best;
}

}  // namespace

CsvTable::CsvTable(const std::string& text, std::string origin) : origin_(std::move(origin)) {
  size_t begin = text.starts_with("\xef\xbb\xbf") ? 3 : 0, number = 0;
  char separator = ',';
  while (begin < text.size()) {
    size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (trimmed(line).empty() || line[0] == '#') continue;
    if (header_.empty()) {
      separator = separator_of(line);
      header_ = split(line, separator);
    } else {
      rows_.push_back({number, split(line, separator)});
    }
  }
  SINTER_CHECK(!header_.empty(), "{}: the file is empty; expected a header line", origin_);
}

bool CsvTable::has(const std::string& column) const {
  return std::find(header_.begin(), header_.end(), column) != header_.end();
}

std::string CsvTable::place(size_t row) const { return origin_ + ":" + std::to_string(rows_[row].line); }

const std::string& CsvTable::text(size_t row, const std::string& column) const {
  static const std::string kNone;
  const std::vector<std::string>& cells = rows_[row].cells;
  SINTER_CHECK(cells.size() == header_.size(), "{}: {} cells; the header has {}", place(row), cells.size(),
               header_.size());
  auto found = std::find(header_.begin(), header_.end(), column);
  return found == header_.end() ? kNone : cells[static_cast<size_t>(found - header_.begin())];
}

double CsvTable::number(size_t row, const std::string& column) const {
  SINTER_CHECK(has(column), "{}: no column '{}'", origin_, column);
  const std::string& cell = text(row, column);
  char* end = nullptr;
  const double value = std::strtod(cell.c_str(), &end);
  SINTER_CHECK(end != cell.c_str() && *end == '\0' && std::isfinite(value), "{}: '{}' in column {} is not a number",
               place(row), cell, column);
  return value;
}

}  // namespace sinter::plan
