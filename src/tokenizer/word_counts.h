// How often each piece of text occurs: the input of BPE training.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace sinter::tokenizer {

class WordCounts {
 public:
  void add(std::string_view word, uint64_t count = 1) {
    const uint64_t hash = hash_bytes(word);
    if (2 * (entries_.size() + 1) > slots_.size()) grow();
    const size_t mask = slots_.size() - 1;
    size_t i = hash & mask;
    for (; slots_[i] != kFree; i = (i + 1) & mask) {
      Entry& entry = entries_[slots_[i]];
      if (entry.hash == hash && this->word(entry) == word) {
        entry.count += count;
        return;
      }
    }
    slots_[i] = static_cast<uint32_t>(entries_.size());
    entries_.push_back({hash, arena_.size(), word.size(), count});
    arena_ += word;
  }
  void add_all(const WordCounts& other) {
    other.for_each([&](std::string_view word, uint64_t count) { add(word, count); });
  }
  template <class F>
  void for_each(F&& visit) const {
    for (const Entry& entry : entries_) visit(word(entry), entry.count);
  }
  size_t size() const { return entries_.size(); }

 private:
  static constexpr uint32_t kFree = 0xffffffff;
  struct Entry {
    uint64_t hash;
    size_t begin, length;
    uint64_t count;
  };
  std::string_view word(const Entry& entry) const { return std::string_view(arena_).substr(entry.begin, entry.length); }
  void grow() {
    slots_.assign(slots_.empty() ? 4096 : slots_.size() * 2, kFree);
    const size_t mask = slots_.size() - 1;
    for (size_t e = 0; e < entries_.size(); ++e) {
      size_t i = entries_[e].hash & mask;
      while (slots_[i] != kFree) i = (i + 1) & mask;
      slots_[i] = static_cast<uint32_t>(e);
    }
  }

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;
};

}  // namespace sinter::tokenizer
