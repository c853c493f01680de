// The documents of a task: JSON lines, a JSON array, CSV, TSV (compressed or not) or Parquet, as values that templates
// read.
#pragma once
#include <string>
#include <vector>

#include "eval/tasks/template.h"

namespace sinter::eval {

struct DocumentSet {
  std::string path;
  std::vector<TaskDocument> documents;
  std::vector<int64_t> lines;  // where each begins in the file, from 1

  size_t size() const { return documents.size(); }
  // "'FILE', line N"
  std::string place(size_t index) const;
};

// The first file there is of `names`, below `folder` where they are relative: as named, with another of the endings
// below, or as a data set's one Parquet file is called (NAME-00000-of-00001.parquet), there or in its folder `data`.
// "" where there is none.
std::string find_documents(const std::vector<std::string>& names, const std::string& folder);

// By the name's ending: .jsonl, .json, .csv, .tsv, each with .gz or .zst behind it or not, .parquet. `columns` names
// the fields of a CSV file that has no header line. Every error names the file, the line and what was found there.
DocumentSet read_documents(const std::string& path, const std::vector<std::string>& columns = {});

}  // namespace sinter::eval
