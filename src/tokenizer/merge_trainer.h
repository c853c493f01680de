// The merge loop of BPE training: which pair of neighbouring symbols is the most frequent, merged everywhere, again.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/word_counts.h"

namespace sinter::tokenizer {

class MergeTrainer {
 public:
  struct MergeStep {
    int32_t left, right, result;
  };

  // Tokens start as the 256 bytes.
  explicit MergeTrainer(const WordCounts& words);
  // Merges the most frequent pair (ties: see train.h). False when none occurs `min_count` times (at least once).
  bool merge_next(uint64_t min_count);
  int32_t num_tokens() const { return static_cast<int32_t>(tokens_.size()); }
  const std::string& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  const std::vector<MergeStep>& steps() const { return steps_; }

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  // A place in the distinct words, which lie one after another; merged symbols live at the place of their first byte.
  struct Place {
    int32_t symbol;           // -1: swallowed by a merge
    uint32_t next, previous;  // places in the same word, or kNone
    uint32_t word;
  };
  struct Pair {
    int32_t left, right;
    uint64_t count = 0;
    std::vector<uint32_t> places;  // of the left symbol; some may be out of date
    bool touched = false;          // its count grew in this step
  };
  struct Candidate {
    uint64_t count;
    uint32_t pair;
  };

  uint32_t find_or_add_pair(int32_t left, int32_t right);
  void grow_index();
  void add_place(int32_t left, int32_t right, uint32_t place, uint64_t count);
  void remove_count(int32_t left, int32_t right, uint64_t count);
  void merge_at(uint32_t place, const MergeStep& step);
  bool is_worse(const Candidate& a, const Candidate& b) const;
  void push(uint32_t pair);
  bool pop_best(uint64_t min_count, uint32_t& pair);

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> token_ids_;
  std::vector<MergeStep> steps_;
  std::vector<Place> places_;
  std::vector<uint64_t> word_counts_;
  std::vector<Pair> pairs_;
  std::vector<uint32_t> index_;  // open addressing over (left, right) into pairs_
  std::vector<uint32_t> touched_;
  std::vector<Candidate> heap_;
};

}  // namespace sinter::tokenizer
