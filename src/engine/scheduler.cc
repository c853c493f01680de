#include "engine/scheduler.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace sinter::engine {
namespace {

// Sequences this near to their end decode; what is further away (a prompt, a recomputation) may be cut into chunks.
constexpr int64_t kDecodeTokens = 8;
// Kernels read whole tiles of keys and hide those outside the window: a tile more is kept.
constexpr int64_t kTileMargin = 128;

bool is_decode(const Sequence& s) { return s.is_decoding() && s.extent() - s.num_computed <= kDecodeTokens; }

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), pool_(options.num_blocks, options.block_size) {}

std::span<const int32_t> Scheduler::block_tokens(const Sequence& s, int64_t block) const {
  const auto size = static_cast<size_t>(options_.block_size);
  return std::span(s.tokens).subspan(static_cast<size_t>(block) * size, size);
}

BlockHash Scheduler::root_of(const Sequence& s) const {
  const Request& r = s.request();
  // Without the prefix cache a request still shares blocks among its own choices.
  const uint64_t salt = options_.prefix_cache ? r.cache_salt : base::mix_bits(s.owner->id, ~r.cache_salt);
  return first_hash(weight_version_ * 2 + (options_.prefix_cache ? 0 : 1), r.adapter, salt);
}

const BlockHash& Scheduler::hash_of(Sequence& s, int64_t block) {
  while (static_cast<int64_t>(s.hashes.size()) <= block) {
    const auto next = static_cast<int64_t>(s.hashes.size());
    s.hashes.push_back(next_hash(next == 0 ? root_of(s) : s.hashes.back(), block_tokens(s, next)));
  }
  return s.hashes[static_cast<size_t>(block)];
}

void Scheduler::add(Sequence& s) {
  s.state = SequenceState::waiting;
  waiting_.insert(&s);
}

void Scheduler::release_blocks(Sequence& s) {
  // The last first: a chain's end is of less use than its beginning.
  for (size_t i = s.blocks.size(); i-- > 0;) {
    if (s.blocks[i] >= 0) pool_.release(s.blocks[i]);
  }
  s.blocks.clear();
  s.num_computed = s.num_named = s.num_dropped = 0;
}

void Scheduler::remove(Sequence& s) {
  if (s.state == SequenceState::waiting) waiting_.erase(&s);
  if (s.state == SequenceState::running) {
    std::erase(running_, &s);
    std::erase(scheduled_, &s);
    release_blocks(s);
  }
  s.state = SequenceState::finished;
}

void Scheduler::preempt(Sequence& s) {
  budget_ += s.num_scheduled;
  s.num_scheduled = 0;
  s.most_computed = std::max(s.most_computed, s.num_computed);
  release_blocks(s);
  std::erase(running_, &s);
  add(s);
  has_preempted_ = true;
  ++counts_.preemptions;
}

void Scheduler::preempt_all() {
  while (!running_.empty()) preempt(*running_.back());
}

void Scheduler::weights_changed() {
  preempt_all();
  pool_.forget_names();
  ++weight_version_;
  for (Sequence* s : waiting_) s->hashes.clear();
}

bool Scheduler::make_room(Sequence& s, int64_t tokens) {
  const int64_t needed = blocks_for(tokens);
  while (static_cast<int64_t>(s.blocks.size()) < needed) {
    if (pool_.num_free() > 0) {
      s.blocks.push_back(pool_.allocate());
      continue;
    }
    Sequence& last = *running_.back();
    preempt(last);
    if (&last == &s) return false;
  }
  return true;
}

void Scheduler::take_tokens(Sequence& s, int64_t count) {
  s.num_scheduled = count;
  budget_ -= count;
}

void Scheduler::schedule_running(bool decoding) {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& s = *running_[i];
    if (s.is_ending || s.num_scheduled > 0 || is_decode(s) != decoding) continue;
    if (is_whole(s)) {
      // Its keys change at every step: blocks that others may find or hold must not be written.
      if (s.num_named > 0) release_blocks(s);
      s.num_computed = 0;
    }
    const int64_t left = s.extent() - s.num_computed;
    const int64_t count = is_whole(s) ? left : std::min(left, budget_);
    if (make_room(s, s.num_computed + count)) take_tokens(s, count);
  }
}

// Full blocks of s that the pool has, from the first on, but for the last token: its logits have to be computed. Where
// log-probabilities of the prompt are asked for, so have those of all before them.
int64_t Scheduler::count_hits(Sequence& s, int64_t* free_hits) {
  *free_hits = 0;
  if (is_whole(s)) return 0;
  int64_t most = s.length() - 1;
  if (s.next_prompt_score < s.prompt_length) most = std::min(most, s.next_prompt_score - 1);
  int64_t hits = 0;
  for (; (hits + 1) * options_.block_size <= most; ++hits) {
    const int32_t block = pool_.peek(hash_of(s, hits), parent_of(s, hits), block_tokens(s, hits));
    if (block < 0) break;
    *free_hits += pool_.references(block) == 0;
  }
  return hits;
}

// Further choices of a request wait until the first has computed what they share.
bool Scheduler::waits_for_sibling(const Sequence& s) const {
  if (s.choice == 0 || s.has_begun) return false;
  const Sequence* leader = s.owner->sequences.front();
  const int64_t shared = (s.prompt_length - 1) / options_.block_size * options_.block_size;
  return leader->choice == 0 && leader->num_computed < shared && !is_whole(s);
}

bool Scheduler::admit(Sequence& s) {
  int64_t free_hits = 0;
  const int64_t hits = count_hits(s, &free_hits);
  const int64_t needed = blocks_for(s.length()) - hits + free_hits;
  // A little is left for those that run, or they would push this one out again at once.
  const int64_t reserve = running_.empty() ? 0 : std::max<int64_t>(1, options_.num_blocks / 100);
  if (needed > pool_.num_free() - reserve) return false;
  waiting_.erase(&s);
  for (int64_t b = 0; b < hits; ++b) {
    s.blocks.push_back(pool_.find_and_hold(hash_of(s, b), parent_of(s, b), block_tokens(s, b)));
  }
  s.num_computed = hits * options_.block_size;
  s.num_named = hits;
  s.state = SequenceState::running;
  if (!s.has_begun) {
    s.has_begun = true;
    s.begun = Clock::now();
    s.usage.cached_tokens = s.num_computed;
    counts_.cached_tokens += s.num_computed;
    s.most_computed = s.num_computed;
  }
  running_.insert(std::lower_bound(running_.begin(), running_.end(), &s, GoesFirst{}), &s);
  const int64_t left = s.length() - s.num_computed;
  const int64_t count = is_whole(s) ? left : std::min(left, budget_);
  // There are blocks enough for all of it, so nobody is preempted here.
  if (make_room(s, s.num_computed + count)) take_tokens(s, count);
  return true;
}

void Scheduler::admit_waiting() {
  for (auto next = waiting_.begin(); next != waiting_.end() && budget_ > 0;) {
    if (static_cast<int64_t>(running_.size()) - num_ending_ >= options_.max_running) break;
    Sequence& s = **next++;
    if (waits_for_sibling(s)) continue;
    if (!admit(s)) break;  // first come, first served: a short one does not overtake
  }
}

const std::vector<Sequence*>& Scheduler::schedule() {
  budget_ = options_.step_tokens;
  has_preempted_ = false;
  num_ending_ = 0;
  for (Sequence* s : running_) {
    s->num_scheduled = 0;
    num_ending_ += s->is_ending;
  }
  schedule_running(true);
  schedule_running(false);
  if (!has_preempted_) admit_waiting();
  scheduled_.clear();
  for (Sequence* s : running_) {
    if (s->num_scheduled > 0) scheduled_.push_back(s);
  }
  return scheduled_;
}

void Scheduler::drop_behind_window(Sequence& s) {
  if (options_.window == 0) return;
  const int64_t first_seen = s.num_computed - options_.window + 1 - kTileMargin;
  for (; (s.num_dropped + 1) * options_.block_size <= first_seen; ++s.num_dropped) {
    int32_t& block = s.blocks[static_cast<size_t>(s.num_dropped)];
    pool_.release(block);
    block = -1;
  }
}

void Scheduler::commit(Sequence& s) {
  const int64_t before = s.num_computed;
  s.num_computed += s.num_scheduled;
  s.num_scheduled = 0;
  const int64_t again = std::clamp<int64_t>(s.most_computed - before, 0, s.num_computed - before);
  counts_.recomputed_tokens += again;
  counts_.prompt_tokens += std::max<int64_t>(0, std::min(s.num_computed, s.prompt_length) - before - again);
  s.most_computed = std::max(s.most_computed, s.num_computed);
  name_blocks(s);
  if (!is_whole(s)) drop_behind_window(s);
}

void Scheduler::name_blocks(Sequence& s) {
  if (is_whole(s)) return;
  const int64_t certain = std::min(s.num_computed, s.length());
  for (; (s.num_named + 1) * options_.block_size <= certain; ++s.num_named) {
    const int32_t block = s.blocks[static_cast<size_t>(s.num_named)];
    pool_.name(block, hash_of(s, s.num_named), parent_of(s, s.num_named), block_tokens(s, s.num_named));
  }
}

void Scheduler::check(bool deep) const {
  int64_t total = 0, taking_part = 0;
  bool has_whole = false;
  for (const Sequence* s : running_) {
    const auto room = static_cast<int64_t>(s->blocks.size()) * options_.block_size;
    SINTER_CHECK(s->state == SequenceState::running && s->num_computed + s->num_scheduled <= s->extent() &&
                     s->num_computed + s->num_scheduled <= room,
                 "[scheduler] request {} choice {}: {} computed and {} scheduled of {} tokens, {} blocks of {}",
                 s->owner->id, s->choice, s->num_computed, s->num_scheduled, s->extent(), s->blocks.size(),
                 options_.block_size);
    total += s->num_scheduled;
    taking_part += !s->is_ending;
    has_whole |= is_whole(*s);
  }
  SINTER_CHECK((total <= options_.step_tokens || has_whole) && taking_part <= options_.max_running &&
                   scheduled_.size() <= running_.size(),
               "[scheduler] {} tokens scheduled, at most {}; {} running, at most {}", total, options_.step_tokens,
               taking_part, options_.max_running);
  if (!deep) return;
  std::vector<int32_t> held(static_cast<size_t>(pool_.num_blocks()), 0);
  for (const Sequence* s : running_) {
    for (int32_t block : s->blocks) {
      if (block >= 0) ++held[static_cast<size_t>(block)];
    }
  }
  for (const Sequence* s : waiting_) {
    SINTER_CHECK(s->state == SequenceState::waiting && s->blocks.empty() && s->num_computed == 0,
                 "[scheduler] request {} waits with {} blocks", s->owner->id, s->blocks.size());
  }
  pool_.check(held);
}

}  // namespace sinter::engine
