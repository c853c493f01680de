#include "tokenizer/vocabulary.h"

#include <algorithm>

namespace sinter::tokenizer {

bool Vocabulary::add(int32_t id, std::string_view bytes, bool hidden) {
  if (id < 0 || id > kMaxId || has(id) || arena_.size() + bytes.size() >= kNone) return false;
  if (!hidden && find(bytes) >= 0) return false;
  if (id >= size()) spans_.resize(static_cast<size_t>(id) + 1);
  Span& span = spans_[static_cast<size_t>(id)];
  span.begin = static_cast<uint32_t>(arena_.size());
  span.length = static_cast<uint32_t>(bytes.size());
  span.hidden = hidden;
  arena_ += bytes;
  ++count_;
  if (hidden) return true;
  if (2 * (used_ + 1) > slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  size_t i = hash_bytes(bytes) & mask;
  while (slots_[i] >= 0) i = (i + 1) & mask;
  slots_[i] = id;
  ++used_;
  return true;
}

void Vocabulary::grow() {
  std::vector<int32_t> old = std::move(slots_);
  slots_.assign(std::max<size_t>(1024, old.size() * 2), -1);
  const size_t mask = slots_.size() - 1;
  for (int32_t id : old) {
    if (id < 0) continue;
    size_t i = hash_bytes(bytes(id)) & mask;
    while (slots_[i] >= 0) i = (i + 1) & mask;
    slots_[i] = id;
  }
}

int32_t Vocabulary::find(std::string_view wanted) const {
  if (slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash_bytes(wanted) & mask; slots_[i] >= 0; i = (i + 1) & mask) {
    if (bytes(slots_[i]) == wanted) return slots_[i];
  }
  return -1;
}

std::string_view Vocabulary::bytes(int32_t id) const {
  if (!has(id)) return {};
  const Span& span = spans_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(span.begin, span.length);
}

void MergeTable::reserve(size_t num_pairs) {
  std::vector<Slot> old = std::move(slots_);
  const size_t size = std::bit_ceil(std::max<size_t>(16, std::max(num_pairs, size_) * 2));
  slots_.assign(size, Slot{});
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  size_ = 0;
  for (const Slot& slot : old) {
    if (slot.key != kFree) add(static_cast<int32_t>(slot.key >> 32), static_cast<int32_t>(slot.key), slot.merge);
  }
}

bool MergeTable::add(int32_t left, int32_t right, Merge merge, bool replaces) {
  if (2 * (size_ + 1) > slots_.size()) reserve(2 * (size_ + 1));
  const uint64_t key = key_of(left, right);
  size_t i = slot_of(key);
  for (; slots_[i].key != kFree; i = (i + 1) & mask_) {
    if (slots_[i].key != key) continue;
    if (replaces) slots_[i].merge = merge;
    return false;
  }
  slots_[i] = {key, merge};
  ++size_;
  return true;
}

}  // namespace sinter::tokenizer
