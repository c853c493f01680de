#include "data/token_shard.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"

namespace sinter::data {
namespace {

constexpr uint32_t kVersion = 1;

// The first 64 bytes of a shard, little-endian. Then tokens, zeros up to a multiple of 8, the document offsets
// (num_documents + 1) and a hash per block of tokens.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t vocab_size;
  uint64_t num_documents;
  uint64_t num_tokens;
  uint64_t tokenizer_hash;
  uint64_t index_hash;   // of everything after the padding
  uint64_t header_hash;  // of the 56 bytes before it
};
static_assert(sizeof(Header) == 64);

uint64_t hash_of_header(const Header& h) { return base::hash_bytes(std::as_bytes(std::span(&h, 1)).first(56)); }
uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }
uint64_t blocks_of(uint64_t bytes) { return (bytes + kShardBlockBytes - 1) / kShardBlockBytes; }

}  // namespace

TokenShard::TokenShard(const std::string& path) : map_(path), origin_(path) {
  file_ = map_.bytes();
  open();
}

TokenShard::TokenShard(std::span<const std::byte> file, std::string origin) : origin_(std::move(origin)), file_(file) {
  open();
}

void TokenShard::open() {
  SINTER_CHECK(file_.size() >= sizeof(Header),
               "token shard '{}': {} bytes is shorter than a header; the file is cut off", origin_, file_.size());
  Header h;
  std::memcpy(&h, file_.data(), sizeof h);
  const auto* bytes = reinterpret_cast<const unsigned char*>(file_.data());
  const bool is_gzip = bytes[0] == 0x1f && bytes[1] == 0x8b, is_zstd = bytes[0] == 0x28 && bytes[1] == 0xb5;
  SINTER_CHECK(!is_gzip && !is_zstd, "'{}' is compressed, but token shards are read as they lie on disk: {} '{}'",
               origin_, is_gzip ? "gzip -d" : "zstd -d", origin_);
  SINTER_CHECK(std::memcmp(h.magic, kShardMagic.data(), 8) == 0,
               "'{}' is not a token shard (its first bytes are not SINTRTOK)", origin_);
  SINTER_CHECK(h.version == kVersion, "token shard '{}': version {}; this program reads version {}", origin_, h.version,
               kVersion);
  SINTER_CHECK(h.header_hash == hash_of_header(h), "token shard '{}': the header is damaged (its hash does not fit)",
               origin_);
  SINTER_CHECK(
      (h.token_bytes == 2 || h.token_bytes == 4) && h.vocab_size > 0 && h.vocab_size <= 1ull << 31 &&
          h.num_tokens < 1ull << 56 && h.num_documents <= h.num_tokens,
      "token shard '{}': sizes in the header make no sense (token bytes {}, vocabulary {}, {} documents, {} tokens)",
      origin_, h.token_bytes, h.vocab_size, h.num_documents, h.num_tokens);
  const uint64_t token_size = h.num_tokens * h.token_bytes, blocks = blocks_of(token_size);
  const uint64_t index_begin = sizeof(Header) + padded(token_size);
  const uint64_t expected = index_begin + (h.num_documents + 1 + blocks) * 8;
  SINTER_CHECK(file_.size() == expected, "token shard '{}': {} bytes, expected {}; the file is {}", origin_,
               file_.size(), expected, file_.size() < expected ? "cut off" : "too long");
  SINTER_CHECK(base::hash_bytes(file_.subspan(index_begin)) == h.index_hash,
               "token shard '{}': the document index is damaged (its hash does not fit)", origin_);
  tokens_ = file_.subspan(sizeof(Header), token_size);
  for (std::byte b : file_.subspan(sizeof(Header) + token_size, padded(token_size) - token_size)) {
    SINTER_CHECK(b == std::byte{0}, "token shard '{}': the padding behind the tokens is damaged", origin_);
  }
  const auto* index = reinterpret_cast<const uint64_t*>(file_.data() + index_begin);
  offsets_ = {index, h.num_documents + 1};
  block_hashes_ = {index + h.num_documents + 1, blocks};
  SINTER_CHECK(
      offsets_.front() == 0 && offsets_.back() == h.num_tokens && std::is_sorted(offsets_.begin(), offsets_.end()),
      "token shard '{}': document offsets do not run from 0 to {} in order", origin_, h.num_tokens);
  num_tokens_ = static_cast<int64_t>(h.num_tokens);
  num_documents_ = static_cast<int64_t>(h.num_documents);
  vocab_size_ = static_cast<int64_t>(h.vocab_size);
  tokenizer_hash_ = h.tokenizer_hash;
  token_bytes_ = static_cast<int>(h.token_bytes);
  checked_ = std::vector<std::atomic<uint8_t>>(blocks);
}

int64_t TokenShard::document_of(int64_t position) const {
  return std::upper_bound(offsets_.begin(), offsets_.end(), static_cast<uint64_t>(position)) - offsets_.begin() - 1;
}

void TokenShard::check_block(int64_t block) const {
  auto b = static_cast<size_t>(block);
  if (checked_[b].load(std::memory_order_acquire)) return;
  size_t begin = b * kShardBlockBytes;
  auto bytes = tokens_.subspan(begin, std::min(kShardBlockBytes, tokens_.size() - begin));
  SINTER_CHECK(base::hash_bytes(bytes) == block_hashes_[b],
               "token shard '{}': tokens {} to {} are damaged (their hash does not fit); make the shard again", origin_,
               begin / static_cast<size_t>(token_bytes_), (begin + bytes.size()) / static_cast<size_t>(token_bytes_));
  checked_[b].store(1, std::memory_order_release);
}

void TokenShard::read(int64_t begin, int64_t count, int32_t* out) const {
  if (count == 0) return;
  const auto first = static_cast<int64_t>(static_cast<size_t>(begin * token_bytes_) / kShardBlockBytes);
  const auto last = static_cast<int64_t>((static_cast<size_t>((begin + count) * token_bytes_) - 1) / kShardBlockBytes);
  for (int64_t block = first; block <= last; ++block) check_block(block);
  uint32_t largest = 0;
  auto copy = [&](const auto* source) {
    for (int64_t i = 0; i < count; ++i) {
      largest = std::max<uint32_t>(largest, source[i]);
      out[i] = static_cast<int32_t>(source[i]);
    }
  };
  const std::byte* at = tokens_.data() + begin * token_bytes_;
  token_bytes_ == 2 ? copy(reinterpret_cast<const uint16_t*>(at)) : copy(reinterpret_cast<const uint32_t*>(at));
  SINTER_CHECK(largest < vocab_size_, "token shard '{}': id {} between tokens {} and {} is not in the vocabulary of {}",
               origin_, largest, begin, begin + count, vocab_size_);
}

void TokenShard::verify() const {
  for (size_t block = 0; block < block_hashes_.size(); ++block) check_block(static_cast<int64_t>(block));
  constexpr int64_t kPiece = 1 << 16;
  std::vector<int32_t> ids(static_cast<size_t>(std::min(kPiece, num_tokens())));
  for (int64_t begin = 0; begin < num_tokens(); begin += kPiece) {
    read(begin, std::min(kPiece, num_tokens() - begin), ids.data());  // which refuses what is no id
  }
}

TokenShardWriter::TokenShardWriter(const std::string& path, int64_t vocab_size, uint64_t tokenizer_hash)
    : file_(path), vocab_size_(vocab_size), tokenizer_hash_(tokenizer_hash), token_bytes_(vocab_size <= 65536 ? 2 : 4) {
  SINTER_CHECK(vocab_size > 0 && vocab_size <= int64_t{1} << 31, "token shard '{}': vocabulary of {} tokens", path,
               vocab_size);
  const Header empty{};
  file_.append(std::as_bytes(std::span(&empty, 1)));
}

void TokenShardWriter::add_document(std::span<const int32_t> tokens) {
  if (tokens.empty()) return;
  const size_t start = pending_.size();
  pending_.resize(start + tokens.size() * static_cast<size_t>(token_bytes_));
  auto store = [&](auto* out) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      SINTER_CHECK(tokens[i] >= 0 && tokens[i] < vocab_size_, "token shard '{}': id {} is not in the vocabulary of {}",
                   file_.path(), tokens[i], vocab_size_);
      out[i] = static_cast<std::remove_reference_t<decltype(out[0])>>(tokens[i]);
    }
  };
  std::byte* at = pending_.data() + start;
  token_bytes_ == 2 ? store(reinterpret_cast<uint16_t*>(at)) : store(reinterpret_cast<uint32_t*>(at));
  num_tokens_ += static_cast<int64_t>(tokens.size());
  offsets_.push_back(static_cast<uint64_t>(num_tokens_));
  num_documents_ += 1;
  flush_blocks(false);
}

void TokenShardWriter::flush_blocks(bool last) {
  size_t done = 0;
  while (pending_.size() - done >= kShardBlockBytes || (last && done < pending_.size())) {
    auto block = std::span(pending_).subspan(done, std::min(kShardBlockBytes, pending_.size() - done));
    block_hashes_.push_back(base::hash_bytes(block));
    file_.append(block);
    done += block.size();
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(done));
}

void TokenShardWriter::seal() {
  flush_blocks(true);
  const uint64_t token_size = static_cast<uint64_t>(num_tokens_) * static_cast<uint64_t>(token_bytes_);
  const std::byte zeros[8] = {};
  file_.append(std::span(zeros).first(padded(token_size) - token_size));
  pending_.shrink_to_fit();  // a sealed shard may wait long for its name
  std::vector<uint64_t> index = std::move(offsets_);
  index.insert(index.end(), block_hashes_.begin(), block_hashes_.end());
  file_.append(std::as_bytes(std::span(index)));
  Header h{};
  std::memcpy(h.magic, kShardMagic.data(), 8);
  h.version = kVersion;
  h.token_bytes = static_cast<uint32_t>(token_bytes_);
  h.vocab_size = static_cast<uint64_t>(vocab_size_);
  h.num_documents = static_cast<uint64_t>(num_documents());
  h.num_tokens = static_cast<uint64_t>(num_tokens_);
  h.tokenizer_hash = tokenizer_hash_;
  h.index_hash = base::hash_bytes(std::as_bytes(std::span(index)));
  h.header_hash = hash_of_header(h);
  file_.write_at(std::as_bytes(std::span(&h, 1)), 0);
  is_sealed_ = true;
}

void TokenShardWriter::commit() {
  if (!is_sealed_) seal();
  file_.commit();
}

}  // namespace sinter::data
