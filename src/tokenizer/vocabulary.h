// Token ids and the byte strings they stand for, and the flat tables that encoding looks things up in.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::tokenizer {

// A 64-bit hash of a byte string, the same on every machine of one byte order.
inline uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kMultiplier = 0x9ddfea08eb382d69ull;
  uint64_t hash = bytes.size() * kMultiplier;
  const char* p = bytes.data();
  size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    hash = std::rotl((hash ^ word) * kMultiplier, 29);
  }
  uint64_t tail = 0;
  if (n > 0) std::memcpy(&tail, p, n);
  hash = (hash ^ tail) * kMultiplier;
  return hash ^ (hash >> 32);
}

// Byte strings with ids. An id may be without a string (a gap), and a string may be kept out of find() (`hidden`):
// it has an id and a text, but no text encodes to it through the model.
class Vocabulary {
 public:
  // Ids of real vocabularies stay far below this; a larger one is a broken file.
  static constexpr int32_t kMaxId = 1 << 22;

  // False when the id or the (not hidden) string is taken already.
  bool add(int32_t id, std::string_view bytes, bool hidden = false);
  int32_t find(std::string_view bytes) const;  // -1 when absent
  bool has(int32_t id) const { return id >= 0 && id < size() && spans_[static_cast<size_t>(id)].begin != kNone; }
  bool is_hidden(int32_t id) const { return spans_[static_cast<size_t>(id)].hidden; }
  std::string_view bytes(int32_t id) const;                             // "" for a gap
  int32_t size() const { return static_cast<int32_t>(spans_.size()); }  // one more than the largest id
  int32_t count() const { return count_; }                              // ids that have a string

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  struct Span {
    uint32_t begin = kNone;
    uint32_t length : 31 = 0;
    uint32_t hidden : 1 = 0;
  };
  void grow();

  std::string arena_;
  std::vector<Span> spans_;
  std::vector<int32_t> slots_;  // open addressing; -1 is free
  size_t used_ = 0;
  int32_t count_ = 0;
};

// What a pair of neighbouring symbols merges to. Lower rank merges first.
struct Merge {
  uint32_t rank = kNoRank;
  int32_t id = -1;
  static constexpr uint32_t kNoRank = 0xffffffff;
};

// (left id, right id) -> Merge.
class MergeTable {
 public:
  MergeTable() { reserve(0); }
  void reserve(size_t num_pairs);
  // False when the pair is there already; the table keeps the first, or with `replaces` takes the new one.
  bool add(int32_t left, int32_t right, Merge merge, bool replaces = false);
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      const Slot& slot = slots_[i];
      if (slot.key == key) return slot.merge;
      if (slot.key == kFree) return {};
    }
  }
  size_t size() const { return size_; }
  template <class F>
  void for_each(F&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.key != kFree) visit(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key), slot.merge);
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9e3779b97f4a7c15ull) >> shift_; }

  std::vector<Slot> slots_;
  size_t mask_ = 0, size_ = 0;
  int shift_ = 0;
};

}  // namespace sinter::tokenizer
