// MinHash signatures and their clusters: near duplicates by the share of word n-grams they have in common.
//
// Signatures equal datatrove's bit for bit: n-grams of the simplified text's words (data/text/segment.h), joined by one
// space and hashed to 64 bits, h_i(x) = ((x * a_i + b_i) mod 2^64) mod (2^61 - 1), the minimum over the n-grams. A pair
// whose signatures agree in one band of `rows` values is a candidate: with Jaccard similarity s that happens with
// probability 1 - (1 - s^rows)^bands.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

enum class ShingleHash { xxhash64, sha1 };

struct MinHashOptions {
  int64_t ngram = 5, bands = 14, rows = 8;
  uint64_t seed = 1;
  ShingleHash hash = ShingleHash::xxhash64;
  int64_t num_hashes() const { return bands * rows; }
};

// Makes signatures; keeps its scratch from one text to the next. One per thread.
class MinHasher {
 public:
  explicit MinHasher(const MinHashOptions& options);
  // bands * rows values into `out`; false, with `out` untouched, for a text of fewer than `ngram` words, which has no
  // signature and is never a duplicate.
  bool sign(std::string_view text, std::span<uint64_t> out);
  // The hashes of the n-grams of the last text.
  const std::vector<uint64_t>& shingles() const { return shingles_; }
  std::span<const uint64_t> a() const { return a_; }
  std::span<const uint64_t> b() const { return b_; }

 private:
  MinHashOptions options_;
  std::vector<uint64_t> a_, b_, shingles_;
};

// Sets joined pair by pair; the root of a set is its lowest member, so the outcome does not depend on the order.
class DisjointSets {
 public:
  explicit DisjointSets(size_t count);
  uint32_t root(uint32_t member);
  void join(uint32_t a, uint32_t b);

 private:
  std::vector<uint32_t> parent_;
};

// Whether each document is a duplicate of one before it: documents that share a band are joined, and all but the first
// of a cluster go. `signatures` holds num_hashes values for every document with has_signature.
std::vector<bool> find_near_duplicates(const MinHashOptions& options, std::span<const uint64_t> signatures,
                                       const std::vector<bool>& has_signature,
                                       std::vector<uint32_t>* cluster = nullptr);

}  // namespace sinter::data
