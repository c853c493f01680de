// The files of a run's parts: what the first stage leaves for the second, and markers of finished work.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "data/formats/document.h"
#include "data/pipeline/recipe.h"
#include "data/pipeline/stages.h"

namespace sinter::data {

struct WorkPart {
  std::vector<FilePart> files;  // a piece of a file, or many small files, of one input
  size_t number = 0;
  uint64_t bytes() const;
  uint64_t key = 0;  // of its bytes, the recipe and the models
  size_t input = 0;  // which of the recipe's
};

class WorkFolder {
 public:
  explicit WorkFolder(std::string output) : output_(std::move(output)) {}
  std::string stem(const WorkPart& part) const;                                     // OUTPUT/work/NNNNN-KEY
  std::string result(const char* folder, size_t number, const char* ending) const;  // OUTPUT/FOLDER/NNNNN.ENDING
  const std::string& output() const { return output_; }

 private:
  std::string output_;
};

// A document's id, verdict and columns as a JSON object; what it does not have is left out, or null.
std::string column_line(const Document& document, const Outcome& outcome);

// One kept document for the second stage.
struct DocumentMark {
  uint64_t text_low = 0, text_high = 0;  // a 128-bit hash of the text
  float rank = 0;
  uint32_t text_bytes : 31 = 0;  // at most: a longer text counts as 2 GiB
  uint32_t has_signature : 1 = 0;
};
// PATH: the marks, then bands * count hashes of the bands (0 where there is no signature).
struct PartMarks {
  std::vector<DocumentMark> documents;
  std::vector<uint64_t> bands;  // documents.size() * num_bands
};
void write_marks(const std::string& path, const PartMarks& marks);
PartMarks read_marks(const std::string& path, size_t num_bands);

// A document's first characters, its values and what it is called, for people to look at.
nlohmann::json sample_of(const std::string& id, const std::string& url, std::string_view text);

// Lines into a zstd file, a frame for every few MiB, that appears whole with commit().
class PackedLines {
 public:
  explicit PackedLines(const std::string& path) : file_(path) {}
  void add(std::string_view line);
  void commit();

 private:
  void flush();
  base::AtomicFile file_;
  std::string buffer_;
};

// Reads, judges and writes one part; its statistics are written last and mark it done. A document that cannot be
// judged is a bad record. `on_documents` hears now and then how many documents were read since it was called last.
void process_part(const WorkPart& part, const PipelineRecipe& recipe, const PipelineModels& models,
                  const WorkFolder& folder, const std::function<void(int64_t)>& on_documents);

// Which of all documents, numbered over the parts, are duplicates of an earlier one.
struct Duplicates {
  std::vector<bool> exact, near;
};
Duplicates find_duplicates(const std::vector<WorkPart>& parts, const std::vector<size_t>& first_document,
                           const PipelineRecipe& recipe, const WorkFolder& folder, int rank, int num_ranks,
                           const std::function<void()>& barrier);

}  // namespace sinter::data
