// Lines of a file, plain, gzip or zstd, in bounded memory: a line longer than the bound is passed over and named.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace sinter::data {

class LineReader {
 public:
  // Lines that begin in [begin, end) of a plain file; compressed files are read whole.
  LineReader(const std::string& path, uint64_t begin, uint64_t end, uint64_t max_line_bytes);
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

}  // namespace sinter::data
