// A source of training samples: one or more token shards cut into windows of a fixed number of tokens.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/token_shard.h"

namespace sinter::data {

// The shards a path stands for: itself, or a folder's *.tok files in order of name. Throws base::Error for a folder
// without any.
std::vector<std::string> shard_paths(const std::string& path);

// The folder beside a shard (or a folder's first one) that holds the tokenizer it was made with, as `data tokenize`
// leaves it: NAME.tokenizer for NAME.tok, NAME-00001.tok and on. "" where there is none.
std::string tokenizer_beside(const std::string& path);
// That folder's name, for a shard's path or the stem of several.
std::string tokenizer_folder_of(const std::string& shard);

// A stretch of one document inside a window.
struct WindowPiece {
  int64_t begin = 0;  // place in the window
  int64_t count = 0;
};

// Which windows of each shard a source has. All of them: with keep_tail the tokens after the last whole window make one
// more, shorter window; otherwise they are left out.
struct SourcePart {
  bool keep_tail = false;
  double held_share = 0;       // of each shard's windows, from its end
  bool has_held_only = false;  // those, or the others
};

class TokenSource {
 public:
  // path: a shard or a folder of them. Throws base::Error naming what is missing.
  TokenSource(const std::string& path, int64_t window, const SourcePart& part);

  int64_t num_windows() const { return windows_before_.back(); }
  int64_t num_tokens() const;
  int64_t num_documents() const;
  int64_t vocab_size() const;
  uint64_t tokenizer_hash() const { return shards_.front()->tokenizer_hash(); }
  // Throws base::Error naming both unless they were made with one tokenizer, as far as their files tell.
  void check_same_tokenizer(const TokenSource& other) const;
  // Most documents that any window touches.
  int64_t max_pieces() const { return max_pieces_; }
  // Tokens of window i, with one more behind it (the last token's target) where the same document goes on, else -1.
  // `tokens` gets at most window + 1 entries; pieces cover all but the last. Returns the tokens without that last.
  int64_t read(int64_t i, std::vector<int32_t>& tokens, std::vector<WindowPiece>& pieces) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int64_t window_;
  int64_t max_pieces_ = 1;
  std::vector<std::unique_ptr<TokenShard>> shards_;
  std::vector<int64_t> windows_before_{0};  // of each shard, one more at the end
  std::vector<int64_t> first_windows_;      // of each shard
};

}  // namespace sinter::data
