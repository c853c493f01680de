// Byte-pair encoding of one piece of text, over bytes or over characters.
#pragma once
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace sinter::tokenizer {

// Token ids being collected; grows geometrically and hands out room to write into.
class IdSink {
 public:
  explicit IdSink(std::vector<int32_t>& ids) : ids_(ids), data_(ids.data()), size_(ids.size()) {}
  ~IdSink() { ids_.resize(size_); }
  IdSink(const IdSink&) = delete;
  // Room for n more ids; commit what was written.
  int32_t* room(size_t n) {
    if (capacity_ - size_ < n) [[unlikely]]
      grow(n);
    return data_ + size_;
  }
  void commit(size_t n) { size_ += n; }
  size_t size() const { return size_; }
  const int32_t* data() const { return data_; }
  void push(int32_t id) {
    *room(1) = id;
    commit(1);
  }

 private:
  void grow(size_t n) {
    ids_.resize(std::max(capacity_ + capacity_ / 2, size_ + n + 60));
    data_ = ids_.data();
    capacity_ = ids_.size();
  }

  std::vector<int32_t>& ids_;
  int32_t* data_ = nullptr;
  size_t size_, capacity_ = size_;
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
  PieceCache() : entries_(static_cast<Entry*>(std::calloc(kSize, sizeof(Entry))), std::free) {
    if (!entries_) throw std::bad_alloc();
  }

  // `readable` bytes may be read from the piece's start without leaving the text.
  static Key make_key(std::string_view piece, size_t readable) {
    Key key{0, 0};
    if (readable >= 16) {
      std::memcpy(&key, piece.data(), 16);
      key.low &= kMasks[piece.size()][0];
      key.high &= kMasks[piece.size()][1];
    } else {
      std::memcpy(&key, piece.data(), piece.size());
    }
    key.high |= static_cast<uint64_t>(piece.size()) << 56;
    return key;
  }
  Entry& entry(const Key& key) {
    uint64_t hash = (key.low * 0x9ddfea08eb382d69ull) ^ std::rotl(key.high * 0xc2b2ae3d27d4eb4full, 31);
    hash *= 0x9e3779b97f4a7c15ull;
    return entries_[hash >> (64 - kBits)];
  }

 private:
  // 4 MiB, touched as it fills: some 100,000 distinct pieces make up ordinary text, the frequent ones stay in L2.
  static constexpr int kBits = 17;
  static constexpr size_t kSize = size_t{1} << kBits;
  static constexpr auto kMasks = [] {
    std::array<std::array<uint64_t, 2>, 16> masks{};
    for (size_t n = 0; n < 16; ++n) {
      masks[n][0] = n >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * n)) - 1;
      masks[n][1] = n <= 8 ? 0 : (uint64_t{1} << (8 * (n - 8))) - 1;
    }
    return masks;
  }();
  std::unique_ptr<Entry[], void (*)(void*)> entries_;  // all zero is empty: no key has length 0
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
  // The ids of one piece, appended. `readable` as for PieceCache::make_key.
  void encode_piece(std::string_view piece, size_t readable, PieceCache& cache, IdSink& out) const {
    if (piece.size() > PieceCache::kMaxBytes || piece.empty()) return encode_uncached(piece, out);
    const PieceCache::Key key = PieceCache::make_key(piece, readable);
    PieceCache::Entry& entry = cache.entry(key);
    if (entry.key != key) return encode_and_keep(piece, key, entry, out);
    const auto& ids = entry.ids;
    std::memcpy(out.room(PieceCache::kMaxIds), ids.data(), sizeof ids);
    out.commit(static_cast<size_t>((ids[0] >= 0) + (ids[1] >= 0) + (ids[2] >= 0) + (ids[3] >= 0)));
  }

  std::array<int32_t, 256> byte_ids{};   // of single bytes (over_bytes) or of <0xXX> tokens; -1 when absent
  std::array<int32_t, 128> ascii_ids{};  // of single ASCII characters; -1 when absent

 private:
  void encode_uncached(std::string_view piece, IdSink& out) const;
  void encode_and_keep(std::string_view piece, const PieceCache::Key& key, PieceCache::Entry& entry, IdSink& out) const;
  void first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  size_t merge_short(int32_t* symbols, size_t count) const;
  size_t merge_long(std::vector<int32_t>& symbols) const;
};

}  // namespace sinter::tokenizer
