#include "engine/block_pool.h"

#include <algorithm>

#include "base/error.h"
#include "base/hash.h"

namespace sinter::engine {

BlockHash first_hash(uint64_t weight_version, uint64_t adapter, uint64_t salt) {
  const uint64_t a = base::mix_bits(base::mix_bits(weight_version, adapter), salt);
  return {base::mix_bits(a, 1), base::mix_bits(a, 2)};
}

BlockHash next_hash(const BlockHash& parent, std::span<const int32_t> tokens) {
  const auto bytes = std::as_bytes(tokens);
  return {base::hash_bytes(bytes, parent.low), base::hash_bytes(bytes, base::mix_bits(parent.high, parent.low))};
}

BlockPool::BlockPool(int64_t num_blocks, int64_t block_size)
    : block_size_(block_size),
      blocks_(static_cast<size_t>(num_blocks)),
      tokens_(static_cast<size_t>(num_blocks * block_size)) {
  index_.reserve(static_cast<size_t>(num_blocks));
  for (int64_t b = 0; b < num_blocks; ++b) push_back(static_cast<int32_t>(b));
}

void BlockPool::push_front(int32_t block) {
  Block& b = blocks_[static_cast<size_t>(block)];
  b.previous = -1;
  b.next = first_;
  (first_ >= 0 ? blocks_[static_cast<size_t>(first_)].previous : last_) = block;
  first_ = block;
  ++num_free_;
  num_named_free_ += b.is_named;
}

void BlockPool::push_back(int32_t block) {
  Block& b = blocks_[static_cast<size_t>(block)];
  b.next = -1;
  b.previous = last_;
  (last_ >= 0 ? blocks_[static_cast<size_t>(last_)].next : first_) = block;
  last_ = block;
  ++num_free_;
  num_named_free_ += b.is_named;
}

void BlockPool::unlink(int32_t block) {
  Block& b = blocks_[static_cast<size_t>(block)];
  (b.previous >= 0 ? blocks_[static_cast<size_t>(b.previous)].next : first_) = b.next;
  (b.next >= 0 ? blocks_[static_cast<size_t>(b.next)].previous : last_) = b.previous;
  b.previous = b.next = -1;
  --num_free_;
  num_named_free_ -= b.is_named;
}

void BlockPool::drop_name(int32_t block) {
  Block& b = blocks_[static_cast<size_t>(block)];
  if (!b.is_named) return;
  index_.erase(b.hash);
  b.is_named = false;
}

int32_t BlockPool::allocate() {
  SINTER_CHECK(first_ >= 0, "[block_pool] all {} blocks are in use", num_blocks());
  const int32_t block = first_;
  unlink(block);
  drop_name(block);
  blocks_[static_cast<size_t>(block)].references = 1;
  return block;
}

void BlockPool::release(int32_t block) {
  SINTER_CHECK(block >= 0 && block < num_blocks() && references(block) > 0,
               "[block_pool] block {} is released but not in use", block);
  Block& b = blocks_[static_cast<size_t>(block)];
  if (--b.references > 0) return;
  if (b.is_named) {
    push_back(block);
  } else {
    push_front(block);
  }
}

int32_t BlockPool::peek(const BlockHash& hash, const BlockHash& parent, std::span<const int32_t> tokens) const {
  const auto found = index_.find(hash);
  if (found == index_.end()) return -1;
  const Block& b = blocks_[static_cast<size_t>(found->second)];
  const auto begin = tokens_.begin() + found->second * block_size_;
  return b.parent == parent && std::equal(tokens.begin(), tokens.end(), begin) ? found->second : -1;
}

int32_t BlockPool::find_and_hold(const BlockHash& hash, const BlockHash& parent, std::span<const int32_t> tokens) {
  const int32_t block = peek(hash, parent, tokens);
  if (block < 0) return -1;
  Block& b = blocks_[static_cast<size_t>(block)];
  if (b.references++ == 0) unlink(block);
  return block;
}

void BlockPool::name(int32_t block, const BlockHash& hash, const BlockHash& parent, std::span<const int32_t> tokens) {
  Block& b = blocks_[static_cast<size_t>(block)];
  SINTER_CHECK(b.references > 0 && static_cast<int64_t>(tokens.size()) == block_size_,
               "[block_pool] block {} with {} tokens cannot be named: {} holders", block, tokens.size(), b.references);
  if (b.is_named || !index_.try_emplace(hash, block).second) return;
  b.is_named = true;
  b.hash = hash;
  b.parent = parent;
  std::copy(tokens.begin(), tokens.end(), tokens_of(block).begin());
}

void BlockPool::forget_names() {
  index_.clear();
  num_named_free_ = 0;
  for (Block& b : blocks_) b.is_named = false;
}

void BlockPool::check(std::span<const int32_t> held) const {
  int64_t num_free = 0, named_free = 0, named = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    SINTER_CHECK(blocks_[i].references == held[i], "[block_pool] block {} has {} holders, but {} sequences hold it", i,
                 blocks_[i].references, held[i]);
    num_free += blocks_[i].references == 0;
    named += blocks_[i].is_named;
    named_free += blocks_[i].is_named && blocks_[i].references == 0;
  }
  int64_t listed = 0;
  for (int32_t b = first_; b >= 0 && listed <= num_blocks(); b = blocks_[static_cast<size_t>(b)].next) ++listed;
  SINTER_CHECK(num_free == num_free_ && listed == num_free_ && named_free == num_named_free_ &&
                   named == static_cast<int64_t>(index_.size()),
               "[block_pool] {} blocks are free, {} counted, {} in the list; {} named, {} in the index", num_free,
               num_free_, listed, named, index_.size());
}

}  // namespace sinter::engine
