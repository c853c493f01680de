// The text files that a path stands for, plain or compressed, and the documents in them.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace sinter::data {

struct TextOptions {
  std::string separator = "<|endoftext|>";  // between the documents of a text file; "" = the whole file is one
  std::string text_key = "text";            // the field of a JSON object, the column of a table
};

// Throws base::Error that names `path` for content that is compressed, a table, a PDF or a token shard by its first
// bytes, or has a byte of zero. Warns of what is not UTF-8.
void check_is_text(std::string_view content, const std::string& path);

// True for .txt, .text, .md, .jsonl, .ndjson, .json, .csv and .parquet, with or without .gz or .zst behind.
bool is_text_path(const std::string& path);

// Whether a path that is not there has *, ? or [; and what it then matches, in order of name.
bool is_file_pattern(const std::string& path);
std::vector<std::string> match_files(const std::string& pattern);

// The files that a path stands for, in order of name: itself, those in a folder and the folders below that
// is_text_path() holds of, or those that a pattern (*, ?, [...]) matches. Throws base::Error naming the path when there
// is none.
std::vector<std::string> list_text_files(const std::string& path);
// Whether it is a text file, a folder of text files without token shards, or a pattern that matches such.
bool stands_for_text(const std::string& path);

// Calls visit(document) for every document of a file in order; the view lives for the call only. Compressed files are
// told by their content. Throws base::Error naming the file, and the line where it has lines, for what cannot be read.
void visit_documents(const std::string& path, const TextOptions& options,
                     const std::function<void(std::string_view)>& visit);

// Texts of many files at once, for what counts over all of them. A plain text file is one text and mapped; of other
// files each document is one.
class TextFiles {
 public:
  void add(const std::string& path, const TextOptions& options);
  const std::vector<std::string_view>& texts() const { return texts_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  std::deque<base::MappedFile> files_;
  std::deque<std::string> documents_;
  std::vector<std::string_view> texts_;
  size_t num_bytes_ = 0;
};

}  // namespace sinter::data
