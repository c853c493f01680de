// Lines of a file, plain, gzip or zstd, in bounded memory: a line longer than the bound is passed over and named.
// What ends a line may be any text, as what stands between the documents of a text file.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace sinter::data {

class LineReader {
 public:
  // Lines that begin in [begin, end) of a plain file; compressed files are read whole. Where the range begins inside
  // the file, lines are found only if `ending` cannot overlap itself (can_be_cut).
  LineReader(const std::string& path, uint64_t begin, uint64_t end, uint64_t max_line_bytes, std::string ending = "\n");
  ~LineReader();

  enum class Status { line, bad, end };
  // The view lives until the next call. After `bad` (a giant line, damage in the compressed data) reading goes on.
  Status next(std::string_view& line);
  uint64_t offset() const;             // of the line, in the unpacked file
  const std::string& problem() const;  // of the last `bad`

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether a text can be searched for `ending` from the middle and gives the lines that it gives from its beginning: no
// beginning of it is its end, as in "\n\n".
bool can_be_cut(std::string_view ending);

}  // namespace sinter::data
