// The blocks of a paged KV cache: who holds which, and which prefixes they can be found by.
//
// A block that holds block_size computed tokens gets a name: the hash of its tokens and of the name of the block before
// it. Sequences that begin alike find each other's blocks by these names and hold them together (reference counts). A
// block that nobody holds any more keeps its name until it is needed: the one released longest ago goes first.
#pragma once
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace sinter::engine {

// 128 bits that stand for all tokens from the sequence's first to the block's last, and what else the keys depend on.
struct BlockHash {
  uint64_t low = 0, high = 0;
  bool operator==(const BlockHash&) const = default;
};
// What the first block of a sequence follows: keys of other weights, adapters or salts are others.
BlockHash first_hash(uint64_t weight_version, uint64_t adapter, uint64_t salt);
BlockHash next_hash(const BlockHash& parent, std::span<const int32_t> tokens);

// Not thread-safe: one owner.
class BlockPool {
 public:
  BlockPool(int64_t num_blocks, int64_t block_size);
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t block_size() const { return block_size_; }
  int64_t num_free() const { return num_free_; }  // that nobody holds, named ones included
  int64_t num_named_free() const { return num_named_free_; }
  int32_t references(int32_t block) const { return blocks_[static_cast<size_t>(block)].references; }

  // A block without a name, held once. Throws base::Error when none is free: callers ask num_free() first.
  int32_t allocate();
  // One holder fewer. Throws base::Error on a block that is not held.
  void release(int32_t block);
  // The block of that name whose tokens and predecessor are these, held once more; -1: there is none.
  int32_t find_and_hold(const BlockHash& hash, const BlockHash& parent, std::span<const int32_t> tokens);
  // Whether find_and_hold would succeed; and then whether the block is free now.
  int32_t peek(const BlockHash& hash, const BlockHash& parent, std::span<const int32_t> tokens) const;
  // Gives a held block its name, once all its tokens are computed. Of two blocks with one name the first is found.
  void name(int32_t block, const BlockHash& hash, const BlockHash& parent, std::span<const int32_t> tokens);
  // Forgets all names: blocks that are held stay held.
  void forget_names();
  // Throws base::Error where the lists contradict each other; `held` is what the owner believes each block's count is.
  void check(std::span<const int32_t> held) const;

 private:
  struct Block {
    int32_t references = 0;
    int32_t previous = -1, next = -1;  // in the list of free ones
    bool is_named = false;
    BlockHash hash, parent;
  };
  struct Hasher {
    size_t operator()(const BlockHash& h) const {
      return static_cast<size_t>(h.low ^ (h.high * 0x9e3779b97f4a7c15ull));
    }
  };
  void push_front(int32_t block);
  void push_back(int32_t block);
  void unlink(int32_t block);
  void drop_name(int32_t block);
  std::span<int32_t> tokens_of(int32_t block) {
    return std::span(tokens_).subspan(static_cast<size_t>(block * block_size_), static_cast<size_t>(block_size_));
  }

  int64_t block_size_;
  std::vector<Block> blocks_;
  std::vector<int32_t> tokens_;  // (num_blocks, block_size) of named ones: equal hashes alone are not believed
  std::unordered_map<BlockHash, int32_t, Hasher> index_;
  int32_t first_ = -1, last_ = -1;  // of the free list: taken from the front
  int64_t num_free_ = 0, num_named_free_ = 0;
};

}  // namespace sinter::engine
