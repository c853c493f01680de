// Tables in text: comma, semicolon or tab between cells (as the header has them), cells in quotes or not, Windows line
// ends, a byte-order mark, empty lines and lines that begin with '#'.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace sinter::plan {

class CsvTable {
 public:
  // `origin` names the file in messages. Throws base::Error when there is no header.
  CsvTable(const std::string& text, std::string origin);

  size_t num_rows() const { return rows_.size(); }
  const std::vector<std::string>& header() const { return header_; }
  bool has(const std::string& column) const;
  // "sweep.csv:12": file and line of a row.
  std::string place(size_t row) const;
  // The cell, or "" where the table has no such column. Throws base::Error when the row has another number of cells
  // than the header.
  const std::string& text(size_t row, const std::string& column) const;
  // Throws base::Error that names the place and the column when the cell is no finite number.
  double number(size_t row, const std::string& column) const;

 private:
  struct Row {
    size_t line = 0;
    std::vector<std::string> cells;
  };
  std::string origin_;
  std::vector<std::string> header_;
  std::vector<Row> rows_;
};

}  // namespace sinter::plan
