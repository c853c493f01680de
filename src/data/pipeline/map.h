// Documents of some files through one function, on all cores, written in the order they were read.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "data/formats/document.h"

namespace sinter::data {

// Gives the line to write for a document, "" to leave it out. One is made for every part, so it may keep scratch.
using DocumentFunction = std::function<std::string(Document&)>;

struct MapResult {
  int64_t documents = 0, written = 0, bad = 0, bytes = 0;
  std::vector<BadRecord> first_bad;  // some of them, to show
};

// `output`: a .jsonl file, .gz or .zst behind it; "" writes nothing, "-" to standard output. It appears whole at the
// end.
MapResult map_documents(const std::vector<std::string>& inputs, const std::string& output, const ReadOptions& options,
                        const std::function<DocumentFunction()>& make_function);

// Where lines are written: a file, packed where .gz or .zst ends its name, that appears whole with commit(); standard
// output for "-"; nowhere for "".
class LineFile {
 public:
  explicit LineFile(const std::string& path);
  void add(std::string_view lines);  // whole lines; packed together
  void commit();

 private:
  std::string path_;
  std::unique_ptr<base::AtomicFile> file_;
};

// All documents of the files, in order: for what needs them together.
std::vector<Document> load_documents(const std::vector<std::string>& inputs, const ReadOptions& options,
                                     MapResult& result);
void write_lines(const std::vector<std::string>& lines, const std::string& output);

}  // namespace sinter::data
