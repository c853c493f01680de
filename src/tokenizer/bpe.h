// Byte-pair encoding of one piece of text, over bytes or over characters.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace sinter::tokenizer {

// Token ids being collected; grows geometrically and hands out room to write into.
class IdSink {
 public:
  explicit IdSink(std::vector<int32_t>& ids) : ids_(ids), size_(ids.size()) {}
  ~IdSink() { ids_.resize(size_); }
  IdSink(const IdSink&) = delete;
  // Room for n more ids; commit what was written.
  int32_t* room(size_t n) {
    if (ids_.size() - size_ < n) ids_.resize(std::max(ids_.size() + ids_.size() / 2, size_ + n + 256));
    return ids_.data() + size_;
  }
  void commit(size_t n) { size_ += n; }
  void push(int32_t id) {
    *room(1) = id;
    commit(1);
  }

 private:
  std::vector<int32_t>& ids_;
  size_t size_;
};

// The ids of short pieces seen lately. Direct-mapped and of fixed size: a new piece takes the place of the one whose
// slot it falls on, so memory is bounded whatever the text. An entry is half a cache line.
class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 15, kMaxIds = 4;
  struct Key {
    uint64_t low, high;  // the bytes, zero-padded; the last byte is their number
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::array<int32_t, kMaxIds> ids;  // -1 beyond the last
  };
  PieceCache() : entries_(kSize, Entry{{0, 0}, {-1, -1, -1, -1}}) {}

  // `readable` bytes may be read from the piece's start without leaving the text.
  static Key make_key(std::string_view piece, size_t readable);
  Entry& entry(const Key& key) {
    uint64_t hash = (key.low * 0x9ddfea08eb382d69ull) ^ std::rotl(key.high * 0xc2b2ae3d27d4eb4full, 31);
    hash *= 0x9e3779b97f4a7c15ull;
    return entries_[hash >> (64 - kBits)];
  }

 private:
  static constexpr int kBits = 15;
  static constexpr size_t kSize = size_t{1} << kBits;
  std::vector<Entry> entries_;
};

// The model of a tokenizer: vocabulary and merges. Const methods may be called from several threads at once.
struct BpeModel {
  Vocabulary vocabulary;
  MergeTable merges;
  bool over_bytes = false;     // symbols start as bytes (byte-level vocabularies); otherwise as characters
  bool ignore_merges = false;  // a piece that is itself in the vocabulary is that token
  bool byte_fallback = false;  // a character outside the vocabulary becomes its bytes' <0xXX> tokens
  bool fuse_unknown = false;   // neighbouring unknown characters become one unknown token
  int32_t unknown_id = -1;     // -1: unknown characters vanish
  std::string continuing_prefix, end_suffix;

  // Fills the tables of single bytes. Call once vocabulary and flags are complete.
  void finish();
  // The ids of one piece, appended. `readable` as for PieceCache::make_key, `cache` may be null.
  void encode_piece(std::string_view piece, size_t readable, PieceCache* cache, IdSink& out) const;

  std::array<int32_t, 256> byte_ids{};  // of single bytes (over_bytes) or of <0xXX> tokens; -1 when absent

 private:
  void encode_uncached(std::string_view piece, IdSink& out) const;
  void first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  size_t merge_short(int32_t* symbols, size_t count) const;
  size_t merge_long(std::vector<int32_t>& symbols) const;
};

}  // namespace sinter::tokenizer
