// Token shards: documents as token ids in one binary file (docs/formats.md), memory-mapped, checked before use.
//
// Damage is found before it can do harm: the header and the index when a shard is opened, a block of tokens by its own
// hash the first time one of its tokens is read.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "base/file.h"

namespace sinter::data {

inline constexpr const char* kShardExtension = ".tok";
inline constexpr std::string_view kShardMagic = "SINTRTOK";  // the first bytes of every shard
inline constexpr size_t kShardBlockBytes = 1 << 20;          // tokens are hashed in blocks of this many bytes

class TokenShard {
 public:
  // Throws base::Error naming the path and what is wrong with it.
  explicit TokenShard(const std::string& path);
  // Over bytes that stay alive (aligned to 8); `origin` stands in errors.
  TokenShard(std::span<const std::byte> file, std::string origin);

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  int64_t vocab_size() const { return vocab_size_; }
  uint64_t tokenizer_hash() const { return tokenizer_hash_; }  // 0 = not known
  int token_bytes() const { return token_bytes_; }             // 2 or 4
  const std::string& path() const { return origin_; }
  // First token of document d; d may be num_documents(), which gives num_tokens().
  int64_t document_begin(int64_t d) const { return static_cast<int64_t>(offsets_[static_cast<size_t>(d)]); }
  // The document that token `position` belongs to.
  int64_t document_of(int64_t position) const;
  // Tokens [begin, begin + count) as ids. Throws base::Error when their block is damaged or an id is not below
  // vocab_size. Thread-safe.
  void read(int64_t begin, int64_t count, int32_t* out) const;
  // Checks every block.
  void verify() const;

 private:
  void open();
  void check_block(int64_t block) const;
  base::MappedFile map_;
  std::string origin_;
  std::span<const std::byte> file_, tokens_;
  std::span<const uint64_t> offsets_, block_hashes_;
  int64_t num_tokens_ = 0, num_documents_ = 0, vocab_size_ = 0;
  uint64_t tokenizer_hash_ = 0;
  int token_bytes_ = 2;
  mutable std::vector<std::atomic<uint8_t>> checked_;
};

// Writes a shard that appears whole with commit() and not at all without. Ids are stored as u16 when vocab_size is at
// most 65,536, else as u32.
class TokenShardWriter {
 public:
  TokenShardWriter(const std::string& path, int64_t vocab_size, uint64_t tokenizer_hash);
  // Throws base::Error on an id outside the vocabulary or a full disk. Empty documents are left out.
  void add_document(std::span<const int32_t> tokens);
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  // Writes all that is left; no document comes after it. Until commit() the shard has a temporary name.
  void seal();
  // Gives the shard its name; seals it first if that was not done.
  void commit();

 private:
  void flush_blocks(bool last);
  bool is_sealed_ = false;
  base::AtomicFile file_;
  int64_t vocab_size_ = 0, num_tokens_ = 0, num_documents_ = 0;
  uint64_t tokenizer_hash_ = 0;
  int token_bytes_ = 2;
  std::vector<std::byte> pending_;
  std::vector<uint64_t> offsets_{0}, block_hashes_;
};

}  // namespace sinter::data
