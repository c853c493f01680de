// Which sequences get how many tokens in the next step, and which blocks hold their keys.
//
// There are no phases: a sequence has tokens, of which some are computed, and each step gives it some of the rest under
// one budget. Those that decode go first, then prompts that have begun, then those that wait. Where blocks run out the
// running sequence that came last gives up its own and waits again; what it had is computed again, mostly found by
// name.
#pragma once
#include <cstdint>
#include <set>
#include <vector>

#include "engine/block_pool.h"
#include "engine/sequence.h"
#include "engine/step_model.h"

namespace sinter::engine {

struct SchedulerOptions {
  int64_t num_blocks = 0, block_size = 16, step_tokens = 512, max_running = 64;
  bool prefix_cache = true;
  int64_t window = 0;        // ModelLimits
  int64_t whole_beyond = 0;  // ModelLimits
};

struct SchedulerCounts {
  int64_t preemptions = 0, prompt_tokens = 0, cached_tokens = 0, recomputed_tokens = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  void add(Sequence& sequence);     // to those that wait
  void remove(Sequence& sequence);  // from wherever it is; its blocks are released
  // The sequences of the next step, num_scheduled of each set; valid until the next call.
  const std::vector<Sequence*>& schedule();
  // The scheduled tokens of a sequence are computed, or will be before anything of a later step is: names full blocks,
  // releases those behind the window.
  void commit(Sequence& sequence);
  // Names full blocks whose tokens are known by now. A block with a pending token has no name yet.
  void name_blocks(Sequence& sequence);
  // All running sequences wait again, without blocks.
  void preempt_all();
  // Keys of before are of no use any more: preempt_all(), and no prefix of before is found.
  void weights_changed();
  // Whether the sequence is computed from its beginning at every step.
  bool is_whole(const Sequence& s) const { return is_whole(s.extent()); }
  bool is_whole(int64_t extent) const { return options_.whole_beyond > 0 && extent > options_.whole_beyond; }

  const std::vector<Sequence*>& running() const { return running_; }
  const std::set<Sequence*, GoesFirst>& waiting() const { return waiting_; }
  const BlockPool& pool() const { return pool_; }
  const SchedulerCounts& counts() const { return counts_; }
  int64_t most_tokens() const { return options_.num_blocks * options_.block_size; }  // of one sequence
  // Throws base::Error where what the scheduler believes contradicts itself. `deep` also counts every block's holders.
  void check(bool deep) const;

 private:
  int64_t blocks_for(int64_t tokens) const { return (tokens + options_.block_size - 1) / options_.block_size; }
  std::span<const int32_t> block_tokens(const Sequence& s, int64_t block) const;
  const BlockHash& hash_of(Sequence& s, int64_t block);
  BlockHash root_of(const Sequence& s) const;
  BlockHash parent_of(Sequence& s, int64_t block) { return block == 0 ? root_of(s) : hash_of(s, block - 1); }
  int64_t count_hits(Sequence& s, int64_t* free_hits);
  void schedule_running(bool decoding);
  void admit_waiting();
  bool admit(Sequence& s);
  bool waits_for_sibling(const Sequence& s) const;
  // Gives s blocks for `tokens` tokens, taking them from those that go last where none is free. False: s itself was
  // the last one and waits again.
  bool make_room(Sequence& s, int64_t tokens);
  void preempt(Sequence& s);
  void release_blocks(Sequence& s);
  void take_tokens(Sequence& s, int64_t count);
  void drop_behind_window(Sequence& s);

  SchedulerOptions options_;
  BlockPool pool_;
  std::set<Sequence*, GoesFirst> waiting_;
  std::vector<Sequence*> running_;  // in the order of GoesFirst
  std::vector<Sequence*> scheduled_;
  int64_t budget_ = 0;
  bool has_preempted_ = false;
  int64_t num_ending_ = 0;  // running sequences that take part in no further step
  uint64_t weight_version_ = 0;
  SchedulerCounts counts_;
};

}  // namespace sinter::engine
