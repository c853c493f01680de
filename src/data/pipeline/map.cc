#include "data/pipeline/map.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "data/formats/compression.h"

namespace sinter::data {
namespace {

constexpr uint64_t kPartBytes = uint64_t{16} << 20;
constexpr size_t kMaxShownBad = 5;

struct PartResult {
  std::string lines;
  MapResult counts;
};

PartResult map_part(const FilePart& part, const ReadOptions& options, const DocumentFunction& function) {
  PartResult result;
  read_part(part, options,
            {[&](Document&& document) {
               ++result.counts.documents;
               result.counts.bytes += static_cast<int64_t>(document.text.size());
               const std::string line = function(document);
               if (line.empty()) return;
               ++result.counts.written;
               result.lines += line;
               result.lines += '\n';
             },
             [&](BadRecord&& bad) {
               ++result.counts.bad;
               if (result.counts.first_bad.size() < kMaxShownBad) result.counts.first_bad.push_back(std::move(bad));
             }});
  return result;
}

void add_counts(MapResult& to, const MapResult& from) {
  to.documents += from.documents;
  to.written += from.written;
  to.bad += from.bad;
  to.bytes += from.bytes;
  for (const BadRecord& bad : from.first_bad) {
    if (to.first_bad.size() < kMaxShownBad) to.first_bad.push_back(bad);
  }
}

}  // namespace

LineFile::LineFile(const std::string& path) : path_(path) {
  if (path.empty() || path == "-") return;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) base::create_folders(folder);
  file_ = std::make_unique<base::AtomicFile>(path);
}
void LineFile::add(std::string_view lines) {
  if (path_ == "-") {
    std::fwrite(lines.data(), 1, lines.size(), stdout);
  } else if (file_ && !lines.empty()) {
    const std::string packed = path_.ends_with(".gz")    ? pack_gzip(lines)
                               : path_.ends_with(".zst") ? pack_zstd(lines)
                                                         : std::string(lines);
    file_->append(std::as_bytes(std::span(packed)));
  }
}
void LineFile::commit() {
  if (file_) file_->commit();
}

MapResult map_documents(const std::vector<std::string>& inputs, const std::string& output, const ReadOptions& options,
                        const std::function<DocumentFunction()>& make_function) {
  std::vector<FilePart> parts;
  uint64_t all = 0, done = 0;
  for (const std::string& input : inputs) {
    for (FilePart& part : list_parts(input, "", kPartBytes, options)) {
      all += part.end - part.begin;
      parts.push_back(std::move(part));
    }
  }
  LineFile file(output);
  MapResult result;
  base::ProgressLine progress;
  const auto wave = static_cast<size_t>(base::num_threads());
  for (size_t first = 0; first < parts.size(); first += wave) {
    const size_t count = std::min(wave, parts.size() - first);
    std::vector<PartResult> results(count);
    base::parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        results[static_cast<size_t>(i)] = map_part(parts[first + static_cast<size_t>(i)], options, make_function());
    });
    for (size_t i = 0; i < count; ++i) {
      file.add(results[i].lines);
      add_counts(result, results[i].counts);
      done += parts[first + i].end - parts[first + i].begin;
    }
    progress.update(fmt::format("{} of {}, {} documents (Ctrl-C: nothing is written)", base::format_bytes(double(done)),
                                base::format_bytes(double(all)), base::format_grouped(result.documents)));
  }
  progress.finish();
  file.commit();
  return result;
}

std::vector<Document> load_documents(const std::vector<std::string>& inputs, const ReadOptions& options,
                                     MapResult& result) {
  std::vector<Document> documents;
  for (const std::string& input : inputs) {
    for (const FilePart& part : list_parts(input, "", UINT64_MAX, options)) {
      read_part(part, options,
                {[&](Document&& document) {
                   result.bytes += static_cast<int64_t>(document.text.size());
                   documents.push_back(std::move(document));
                 },
                 [&](BadRecord&& bad) {
                   ++result.bad;
                   if (result.first_bad.size() < kMaxShownBad) result.first_bad.push_back(std::move(bad));
                 }});
    }
  }
  result.documents = static_cast<int64_t>(documents.size());
  return documents;
}

void write_lines(const std::vector<std::string>& lines, const std::string& output) {
  LineFile file(output);
  std::string buffer;
  for (const std::string& line : lines) {
    buffer += line;
    buffer += '\n';
    if (buffer.size() > (size_t{4} << 20)) {
      file.add(buffer);
      buffer.clear();
    }
  }
  file.add(buffer);
  file.commit();
}

}  // namespace sinter::data
