#include "data/dedup/minhash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/clones.h"
#include "base/error.h"
#include "base/threads.h"
#include "data/text/hash.h"
#include "data/text/segment.h"

namespace sinter::data {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;

// numpy's RandomState(seed).randint(low, 2^61 - 1): masked rejection over 64 bits made of two words.
std::vector<uint64_t> draw(std::mt19937& generator, int64_t count, uint64_t low) {
  std::vector<uint64_t> values;
  while (static_cast<int64_t>(values.size()) < count) {
    const uint64_t high = generator();
    const uint64_t v = (high << 32 | generator()) & kPrime;
    if (v <= kPrime - 1 - low) values.push_back(low + v);
  }
  return values;
}

constexpr size_t kBlock = 16;  // hash functions at once: their minima stay in registers

// The minima of a block of hash functions over all shingles. Values are below 2^61, so signed comparisons do.
SINTER_CLONES void minimum_block(const uint64_t* shingles, size_t count, const uint64_t* a, const uint64_t* b,
                                 int64_t* out) {
  int64_t least[kBlock];
  for (size_t j = 0; j < kBlock; ++j) least[j] = static_cast<int64_t>(kPrime);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t x = shingles[i];
    for (size_t j = 0; j < kBlock; ++j) {
      const uint64_t v = x * a[j] + b[j];
      auto r = static_cast<int64_t>((v & kPrime) + (v >> 61));
      r = r >= static_cast<int64_t>(kPrime) ? r - static_cast<int64_t>(kPrime) : r;
      least[j] = r < least[j] ? r : least[j];
    }
  }
  for (size_t j = 0; j < kBlock; ++j) out[j] = least[j];
}

}  // namespace

MinHasher::MinHasher(const MinHashOptions& options) : options_(options) {
  SINTER_CHECK(options.ngram >= 1 && options.bands >= 1 && options.rows >= 1 && options.num_hashes() <= 65536,
               "MinHash needs an n-gram, bands and rows of at least 1 and at most 65,536 hashes; found n-gram {}, {} "
               "bands of {} rows",
               options.ngram, options.bands, options.rows);
  std::mt19937 generator(static_cast<uint32_t>(options.seed));
  a_ = draw(generator, options.num_hashes(), 1);
  b_ = draw(generator, options.num_hashes(), 0);
  const size_t padded = (a_.size() + kBlock - 1) / kBlock * kBlock;
  a_.resize(padded, 1);
  b_.resize(padded, 0);
}

bool MinHasher::sign(std::string_view text, std::span<uint64_t> out) {
  const std::string simple = simplify(text);
  static thread_local std::vector<Word> words;
  segment_words(simple, words);
  shingles_.clear();
  const auto n = static_cast<size_t>(options_.ngram);
  if (words.size() < n) return false;
  // Words of a simplified text stand behind single spaces, or behind nothing (a symbol beside a letter): where the
  // bytes between are not the joined form, the n-gram is put together.
  std::string joined;
  for (size_t i = 0; i + n <= words.size(); ++i) {
    std::string_view gram(simple.data() + words[i].begin, words[i + n - 1].end - words[i].begin);
    size_t bytes = n - 1;
    for (size_t k = i; k < i + n; ++k) bytes += words[k].end - words[k].begin;
    if (bytes != gram.size()) {
      joined.clear();
      for (size_t k = i; k < i + n; ++k) {
        if (k > i) joined.push_back(' ');
        joined.append(words[k].in(simple));
      }
      gram = joined;
    }
    shingles_.push_back(options_.hash == ShingleHash::xxhash64 ? XXH64(gram.data(), gram.size(), 0)
                                                               : sha1_prefix64(gram));
  }
  const auto count = static_cast<size_t>(options_.num_hashes());
  int64_t least[kBlock];
  for (size_t j = 0; j < count; j += kBlock) {
    minimum_block(shingles_.data(), shingles_.size(), a_.data() + j, b_.data() + j, least);
    std::memcpy(out.data() + j, least, sizeof(int64_t) * std::min(kBlock, count - j));
  }
  return true;
}

DisjointSets::DisjointSets(size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), 0u); }

uint32_t DisjointSets::root(uint32_t member) {
  while (parent_[member] != member) member = parent_[member] = parent_[parent_[member]];
  return member;
}

void DisjointSets::join(uint32_t a, uint32_t b) {
  a = root(a);
  b = root(b);
  if (a != b) parent_[std::max(a, b)] = std::min(a, b);
}

std::vector<bool> find_near_duplicates(const MinHashOptions& options, std::span<const uint64_t> signatures,
                                       const std::vector<bool>& has_signature, std::vector<uint32_t>* cluster) {
  const auto rows = static_cast<size_t>(options.rows), bands = static_cast<size_t>(options.bands);
  const size_t count = has_signature.size();
  std::vector<uint32_t> signed_documents;
  for (uint32_t d = 0; d < count; ++d) {
    if (has_signature[d]) signed_documents.push_back(d);
  }
  DisjointSets sets(count);
  std::vector<uint32_t> order;
  for (size_t band = 0; band < bands; ++band) {
    auto row = [&](uint32_t d) { return signatures.data() + d * bands * rows + band * rows; };
    order = signed_documents;
    std::sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) {
      const int c = std::memcmp(row(x), row(y), rows * sizeof(uint64_t));
      return c != 0 ? c < 0 : x < y;
    });
    for (size_t i = 1; i < order.size(); ++i) {
      if (std::memcmp(row(order[i - 1]), row(order[i]), rows * sizeof(uint64_t)) == 0)
        sets.join(order[i - 1], order[i]);
    }
  }
  std::vector<bool> is_duplicate(count);
  if (cluster) cluster->resize(count);
  for (uint32_t d = 0; d < count; ++d) {
    const uint32_t root = sets.root(d);
    is_duplicate[d] = root != d;
    if (cluster) (*cluster)[d] = root;
  }
  return is_duplicate;
}

}  // namespace sinter::data
