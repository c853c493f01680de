#include "tokenizer/merge_trainer.h"

#include <algorithm>

#include "base/error.h"

namespace sinter::tokenizer {
namespace {

size_t hash_pair(int32_t left, int32_t right) {
  uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  key *= 0x9e3779b97f4a7c15ull;
  return key ^ (key >> 32);
}

}  // namespace

MergeTrainer::MergeTrainer(const WordCounts& words) {
  for (int b = 0; b < 256; ++b) {
    tokens_.emplace_back(1, static_cast<char>(b));
    token_ids_.emplace(tokens_.back(), b);
  }
  size_t total = 0;
  words.for_each([&](std::string_view word, uint64_t) { total += word.size() > 1 ? word.size() : 0; });
  SINTER_CHECK(total < kNone, "the text has {} bytes of distinct words; training takes at most {}", total, kNone - 1);
  places_.reserve(total);
  grow_index();
  words.for_each([&](std::string_view word, uint64_t count) {
    if (word.size() < 2) return;
    const auto first = static_cast<uint32_t>(places_.size()), last = first + static_cast<uint32_t>(word.size()) - 1;
    const auto index = static_cast<uint32_t>(word_counts_.size());
    word_counts_.push_back(count);
    for (uint32_t place = first; place <= last; ++place) {
      places_.push_back({static_cast<unsigned char>(word[place - first]), place < last ? place + 1 : kNone,
                         place > first ? place - 1 : kNone, index});
    }
    for (uint32_t place = first; place < last; ++place)
      add_place(places_[place].symbol, places_[place + 1].symbol, place, count);
  });
  for (uint32_t pair : touched_) push(pair);
  touched_.clear();
}

bool MergeTrainer::merge_next(uint64_t min_count) {
  uint32_t best = 0;
  if (!pop_best(min_count, best)) return false;
  MergeStep step{pairs_[best].left, pairs_[best].right, -1};
  auto [made, is_new] = token_ids_.try_emplace(token(step.left) + token(step.right), num_tokens());
  step.result = made->second;
  if (is_new) tokens_.push_back(made->first);
  steps_.push_back(step);

  std::vector<uint32_t> places = std::move(pairs_[best].places);
  pairs_[best].places = {};
  // Runs such as aaa merge from the left. Places come in order unless a token was made in two ways.
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  for (uint32_t place : places) merge_at(place, step);
  pairs_[best].count = 0;
  for (uint32_t pair : touched_) push(pair);
  touched_.clear();
  return true;
}

void MergeTrainer::merge_at(uint32_t place, const MergeStep& step) {
  Place& here = places_[place];
  if (here.symbol != step.left || here.next == kNone || places_[here.next].symbol != step.right) return;
  const uint64_t count = word_counts_[here.word];
  const uint32_t gone = here.next, after = places_[gone].next, before = here.previous;
  if (before != kNone) remove_count(places_[before].symbol, step.left, count);
  if (after != kNone) remove_count(step.right, places_[after].symbol, count);
  here.symbol = step.result;
  here.next = after;
  places_[gone].symbol = -1;
  if (after != kNone) places_[after].previous = place;
  if (before != kNone) add_place(places_[before].symbol, step.result, before, count);
  if (after != kNone) add_place(step.result, places_[after].symbol, place, count);
}

uint32_t MergeTrainer::find_or_add_pair(int32_t left, int32_t right) {
  if (2 * (pairs_.size() + 1) > index_.size()) grow_index();
  const size_t mask = index_.size() - 1;
  size_t i = hash_pair(left, right) & mask;
  for (; index_[i] != kNone; i = (i + 1) & mask) {
    const Pair& pair = pairs_[index_[i]];
    if (pair.left == left && pair.right == right) return index_[i];
  }
  index_[i] = static_cast<uint32_t>(pairs_.size());
  pairs_.push_back({.left = left, .right = right});
  return index_[i];
}

void MergeTrainer::grow_index() {
  index_.assign(index_.empty() ? 1 << 16 : index_.size() * 2, kNone);
  const size_t mask = index_.size() - 1;
  for (size_t p = 0; p < pairs_.size(); ++p) {
    size_t i = hash_pair(pairs_[p].left, pairs_[p].right) & mask;
    while (index_[i] != kNone) i = (i + 1) & mask;
    index_[i] = static_cast<uint32_t>(p);
  }
}

void MergeTrainer::add_place(int32_t left, int32_t right, uint32_t place, uint64_t count) {
  const uint32_t index = find_or_add_pair(left, right);
  Pair& pair = pairs_[index];
  pair.count += count;
  pair.places.push_back(place);
  if (!pair.touched) touched_.push_back(index);
  pair.touched = true;
}

// The candidate in the heap keeps its old count: pop_best sees that and puts it back where it belongs.
void MergeTrainer::remove_count(int32_t left, int32_t right, uint64_t count) {
  pairs_[find_or_add_pair(left, right)].count -= count;
}

bool MergeTrainer::is_worse(const Candidate& a, const Candidate& b) const {
  if (a.count != b.count) return a.count < b.count;
  const Pair &p = pairs_[a.pair], &q = pairs_[b.pair];
  if (p.left != q.left) {
    if (int order = token(p.left).compare(token(q.left)); order != 0) return order < 0;
  }
  return token(p.right) < token(q.right);
}

void MergeTrainer::push(uint32_t pair) {
  pairs_[pair].touched = false;
  if (pairs_[pair].count == 0) return;
  heap_.push_back({pairs_[pair].count, pair});
  std::push_heap(heap_.begin(), heap_.end(), [&](const Candidate& a, const Candidate& b) { return is_worse(a, b); });
}

bool MergeTrainer::pop_best(uint64_t min_count, uint32_t& pair) {
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), [&](const Candidate& a, const Candidate& b) { return is_worse(a, b); });
    const Candidate top = heap_.back();
    heap_.pop_back();
    if (top.count == pairs_[top.pair].count) {
      if (top.count < std::max<uint64_t>(min_count, 1)) return false;
      pair = top.pair;
      return true;
    }
    if (top.count > pairs_[top.pair].count) push(top.pair);
  }
  return false;
}

}  // namespace sinter::tokenizer
