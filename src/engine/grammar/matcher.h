// A grammar at work: which tokens may come next, step by step.
//
// While matching, the rules are turned into a deterministic automaton over bytes, a state at a time, as far as the
// output goes. A state is a set of (place in a rule, places to return to). Its mask over the vocabulary is found by one
// walk of the tree of tokens and kept, so that a state that was seen before costs nothing. Tokens that hold a part of a
// character need no care: everything is bytes.
#pragma once
#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/grammar/program.h"
#include "engine/grammar/vocabulary.h"
#include "engine/request.h"

namespace sinter::engine::grammar {

// A grammar together with what has been found out about it. Shared by requests; safe to use from several threads.
class CompiledGrammar {
 public:
  // The vocabulary must outlive it.
  CompiledGrammar(Program program, const TokenBytes& vocabulary);

  using StateId = int32_t;
  static constexpr StateId kDead = 0;
  StateId start() const { return start_; }
  // The state after more bytes; kDead when they do not fit. Throws base::Error past the limits on states.
  StateId advance(StateId state, std::string_view bytes);
  bool accepts(StateId state);
  // Whether nothing can follow.
  bool is_final(StateId state);
  using Mask = std::vector<uint32_t>;
  std::shared_ptr<const Mask> mask(StateId state);
  // Bytes that must follow, at most `limit`.
  std::string forced_bytes(StateId state, size_t limit);

  const TokenBytes& vocabulary() const { return vocabulary_; }
  // Whether so much has been kept that a fresh one should take its place.
  bool is_worn() const;
  int64_t num_states() const;

 private:
  struct Item {
    int32_t node, stack;
    auto operator<=>(const Item&) const = default;
  };
  struct StackNode {
    int32_t parent, node, depth;
  };
  struct State {
    std::vector<Item> items;  // with edges that read a byte
    bool accepts = false;
    std::shared_ptr<const Mask> mask;
  };
  StateId step(StateId state, uint8_t byte);  // with the lock held
  StateId intern(std::vector<Item> items);
  int32_t push(int32_t parent, int32_t node);
  void close(std::vector<Item>& items, bool& accepts);
  void make_byte_classes();
  void build_mask(StateId state, Mask& mask);

  Program program_;
  const TokenBytes& vocabulary_;
  mutable std::mutex mutex_;
  std::array<uint8_t, 256> class_of_{};  // bytes that no edge tells apart
  int32_t num_classes_ = 0;
  std::vector<StackNode> stacks_;
  std::unordered_map<uint64_t, int32_t> stack_ids_;
  std::vector<State> states_;
  std::vector<StateId> next_;  // (state, class of byte); -1 = not known yet
  std::unordered_map<std::string, StateId> state_ids_;
  std::vector<StateId> walk_;  // states along the walk, by depth
  int64_t mask_bytes_ = 0;
  StateId start_ = kDead;
};

// The engine's mask for one choice.
class GrammarMask final : public TokenMask {
 public:
  explicit GrammarMask(std::shared_ptr<CompiledGrammar> grammar, bool jumps_forward = true);
  std::span<const uint32_t> mask() override;
  void accept(int32_t token) override;
  std::span<const int32_t> forced() override;
  bool is_complete() const override;
  std::unique_ptr<TokenMask> clone() const override { return std::make_unique<GrammarMask>(*this); }

 private:
  std::shared_ptr<CompiledGrammar> grammar_;
  bool jumps_forward_;
  CompiledGrammar::StateId state_;
  std::shared_ptr<const CompiledGrammar::Mask> mask_;
  std::vector<int32_t> forced_;
};

}  // namespace sinter::engine::grammar
