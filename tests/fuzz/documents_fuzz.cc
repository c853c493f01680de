// Files of documents: JSON lines, lists, texts and tables, plain and packed, whole and in two parts. What is read from
// parts must be what is read at once.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "data/formats/document.h"

namespace {

using namespace sinter::data;

std::string read_all(const std::string& path, uint64_t part_bytes, const ReadOptions& options) {
  std::string lines;
  for (const FilePart& part : list_parts(path, "", part_bytes, options))
    read_part(part, options, {[&](Document&& d) { lines += document_line(d) + "\n"; }, [](BadRecord&&) {}});
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static constexpr const char* kEndings[] = {".jsonl", ".json", ".txt", ".csv"};
  const std::string folder = std::filesystem::temp_directory_path().string();
  for (const char* ending : kEndings) {
    const std::string path = folder + "/sinter_fuzz_" + std::to_string(::getpid()) + ending;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    ReadOptions options;
    options.separator = "<>";
    options.max_record_bytes = 2000;
    const std::string whole = read_all(path, UINT64_MAX, options), cut = read_all(path, size / 2 + 1, options);
    std::filesystem::remove(path);
    if (whole != cut) std::abort();
  }
  return 0;
}
