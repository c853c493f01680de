#include "tokenizer/bpe.h"

#include <fmt/core.h>

#include <algorithm>
#include <queue>

#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

// Up to here a linear search for the lowest rank beats a heap.
constexpr size_t kShortSymbols = 48;

}  // namespace

void BpeModel::finish() {
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids[static_cast<size_t>(b)] =
        over_bytes ? vocabulary.find({&byte, 1}) : vocabulary.find(fmt::format("<0x{:02X}>", b));
    if (b < 128) ascii_ids[static_cast<size_t>(b)] = vocabulary.find({&byte, 1});
  }
}

void BpeModel::encode_and_keep(std::string_view piece, const PieceCache::Key& key, PieceCache::Entry& entry,
                               IdSink& out) const {
  const size_t before = out.size();
  encode_uncached(piece, out);
  const size_t count = out.size() - before;
  if (count > PieceCache::kMaxIds) return;
  entry.key = key;
  for (size_t i = 0; i < PieceCache::kMaxIds; ++i) entry.ids[i] = i < count ? out.data()[before + i] : -1;
}

void BpeModel::encode_uncached(std::string_view piece, IdSink& out) const {
  if (piece.empty()) return;
  if (ignore_merges) {
    if (int32_t id = vocabulary.find(piece); id >= 0) return out.push(id);
  }
  if (over_bytes && piece.size() <= kShortSymbols) {
    int32_t symbols[kShortSymbols];
    size_t count = 0;
    for (unsigned char b : piece) {
      if (byte_ids[b] >= 0)
        symbols[count++] = byte_ids[b];
      else if (unknown_id >= 0)
        symbols[count++] = unknown_id;
    }
    count = merge_short(symbols, count);
    std::copy(symbols, symbols + count, out.room(count));
    return out.commit(count);
  }
  std::vector<int32_t> symbols;
  first_symbols(piece, symbols);
  size_t count = symbols.size() <= kShortSymbols ? merge_short(symbols.data(), symbols.size()) : merge_long(symbols);
  std::copy(symbols.begin(), symbols.begin() + static_cast<ptrdiff_t>(count), out.room(count));
  out.commit(count);
}

void BpeModel::first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  symbols.reserve(piece.size());
  if (over_bytes) {
    for (unsigned char b : piece) {
      if (byte_ids[b] >= 0)
        symbols.push_back(byte_ids[b]);
      else if (unknown_id >= 0)
        symbols.push_back(unknown_id);
    }
    return;
  }
  bool unknown_open = false;  // an unknown token not yet written: the next known one puts it before itself
  auto close_unknown = [&] {
    if (unknown_open) symbols.push_back(unknown_id);
    unknown_open = false;
  };
  std::string dressed;
  for (size_t pos = 0; pos < piece.size();) {
    const Char c = decode_char(piece, pos);
    std::string_view text = piece.substr(pos, c.length);
    const bool is_first = pos == 0, is_last = pos + c.length == piece.size();
    if ((!is_first && !continuing_prefix.empty()) || (is_last && !end_suffix.empty())) {
      dressed = is_first ? "" : continuing_prefix;
      dressed += text;
      if (is_last) dressed += end_suffix;
      text = dressed;
    }
    pos += c.length;
    const int32_t id = c.code < 128 && text.size() == 1 ? ascii_ids[c.code] : vocabulary.find(text);
    if (id >= 0) {
      close_unknown();
      symbols.push_back(id);
      continue;
    }
    if (byte_fallback &&
        std::all_of(text.begin(), text.end(), [&](char b) { return byte_ids[static_cast<unsigned char>(b)] >= 0; })) {
      for (unsigned char b : text) symbols.push_back(byte_ids[b]);
      continue;
    }
    if (unknown_id < 0) continue;
    if (!fuse_unknown) close_unknown();
    unknown_open = true;
  }
  close_unknown();
}

// Merges in place: the pair of lowest rank first, the leftmost of equals. Returns the number of symbols left.
size_t BpeModel::merge_short(int32_t* symbols, size_t count) const {
  if (count < 2) return count;
  Merge pairs[kShortSymbols];  // pairs[i]: symbols i and i + 1
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges.find(symbols[i], symbols[i + 1]);
  for (;;) {
    uint32_t lowest = Merge::kNoRank;
    size_t at = 0;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (pairs[i].rank < lowest) lowest = pairs[i].rank, at = i;
    }
    if (lowest == Merge::kNoRank) return count;
    symbols[at] = pairs[at].id;
    --count;
    for (size_t i = at + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = at + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (at + 1 < count) pairs[at] = merges.find(symbols[at], symbols[at + 1]);
    if (at > 0) pairs[at - 1] = merges.find(symbols[at - 1], symbols[at]);
  }
}

// The same by a heap over a linked list: n log n however long the piece is.
size_t BpeModel::merge_long(std::vector<int32_t>& symbols) const {
  const auto count = static_cast<uint32_t>(symbols.size());
  constexpr uint32_t kEnd = 0xffffffff;
  std::vector<uint32_t> next(count), previous(count);
  std::vector<Merge> pairs(count);  // of a symbol and the one after it
  std::vector<uint64_t> queued;     // rank << 32 | position
  queued.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
    if (i + 1 < count) pairs[i] = merges.find(symbols[i], symbols[i + 1]);
    if (pairs[i].rank != Merge::kNoRank) queued.push_back(static_cast<uint64_t>(pairs[i].rank) << 32 | i);
  }
  std::priority_queue heap(std::greater<uint64_t>{}, std::move(queued));
  auto look_again = [&](uint32_t i) {
    pairs[i] = next[i] == kEnd ? Merge{} : merges.find(symbols[i], symbols[next[i]]);
    if (pairs[i].rank != Merge::kNoRank) heap.push(static_cast<uint64_t>(pairs[i].rank) << 32 | i);
  };
  while (!heap.empty()) {
    const auto at = static_cast<uint32_t>(heap.top());
    const auto rank = static_cast<uint32_t>(heap.top() >> 32);
    heap.pop();
    if (pairs[at].rank != rank) continue;  // its neighbours have changed since
    const uint32_t gone = next[at];
    symbols[at] = pairs[at].id;
    next[at] = next[gone];
    if (next[at] != kEnd) previous[next[at]] = at;
    pairs[gone] = Merge{};
    symbols[gone] = -1;
    look_again(at);
    if (previous[at] != kEnd) look_again(previous[at]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i != kEnd; i = next[i]) symbols[kept++] = symbols[i];
  return kept;
}

}  // namespace sinter::tokenizer
