#include "engine/grammar/matcher.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace sinter::engine::grammar {

namespace {
constexpr size_t kMaxItems = 4096;  // of one state: more come from a grammar that is far too ambiguous
}

CompiledGrammar::CompiledGrammar(Program program, const TokenBytes& vocabulary)
    : program_(std::move(program)), vocabulary_(vocabulary) {
  make_byte_classes();
  stacks_.push_back({-1, -1, 0});
  states_.emplace_back();  // kDead
  next_.assign(static_cast<size_t>(num_classes_), kDead);
  state_ids_.emplace("", kDead);
  walk_.resize(static_cast<size_t>(vocabulary.max_depth) + 1);
  start_ = intern({{program_.rule_starts[static_cast<size_t>(program_.root)], 0}});
}

void CompiledGrammar::make_byte_classes() {
  std::array<bool, 257> is_cut{};
  for (const auto& node : program_.nodes) {
    for (const auto& e : node.bytes) is_cut[e.first] = is_cut[e.last + 1u] = true;
  }
  int32_t current = 0;
  for (int b = 0; b < 256; ++b) {
    if (b > 0 && is_cut[static_cast<size_t>(b)]) ++current;
    class_of_[static_cast<size_t>(b)] = static_cast<uint8_t>(current);
  }
  num_classes_ = current + 1;
}

int32_t CompiledGrammar::push(int32_t parent, int32_t node) {
  const uint64_t key = (static_cast<uint64_t>(static_cast<uint32_t>(parent)) << 32) | static_cast<uint32_t>(node);
  auto [at, is_new] = stack_ids_.try_emplace(key, static_cast<int32_t>(stacks_.size()));
  if (is_new) stacks_.push_back({parent, node, stacks_[static_cast<size_t>(parent)].depth + 1});
  return at->second;
}

// Everything that can be reached without reading a byte; what remains are places that read one.
void CompiledGrammar::close(std::vector<Item>& items, bool& accepts) {
  std::set<Item> seen(items.begin(), items.end());
  std::vector<Item> work(seen.begin(), seen.end());
  items.clear();
  accepts = false;
  auto add = [&](Item item) {
    if (seen.insert(item).second) work.push_back(item);
    SINTER_CHECK(seen.size() <= 16 * kMaxItems, "the grammar is too ambiguous: more than {} ways at once", kMaxItems);
  };
  while (!work.empty()) {
    const Item item = work.back();
    work.pop_back();
    const Program::Node& node = program_.nodes[static_cast<size_t>(item.node)];
    if (!node.bytes.empty()) items.push_back(item);
    for (int32_t to : node.epsilon) add({to, item.stack});
    for (const auto& call : node.calls) {
      const int32_t start = program_.rule_starts[static_cast<size_t>(call.rule)];
      if (program_.nodes[static_cast<size_t>(call.to)].is_tail) {
        add({start, item.stack});
      } else if (stacks_[static_cast<size_t>(item.stack)].depth < program_.limits.max_stack) {
        add({start, push(item.stack, call.to)});
      }
    }
    if (!node.is_end) continue;
    if (item.stack == 0) {
      accepts = true;
    } else {
      const StackNode top = stacks_[static_cast<size_t>(item.stack)];
      add({top.node, top.parent});
    }
  }
  std::sort(items.begin(), items.end());
  SINTER_CHECK(items.size() <= kMaxItems, "the grammar is too ambiguous: more than {} ways at once", kMaxItems);
}

CompiledGrammar::StateId CompiledGrammar::intern(std::vector<Item> items) {
  bool accepts = false;
  close(items, accepts);
  if (items.empty() && !accepts) return kDead;
  std::string key(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item));
  key += accepts ? 'a' : 'n';
  auto [at, is_new] = state_ids_.try_emplace(std::move(key), static_cast<StateId>(states_.size()));
  if (is_new) {
    const bool has_room = static_cast<int64_t>(states_.size()) < program_.limits.max_states;
    if (!has_room) state_ids_.erase(at);
    SINTER_CHECK(has_room, "the grammar needs more than {} states for this output", program_.limits.max_states);
    states_.push_back({std::move(items), accepts, nullptr});
    next_.resize(next_.size() + static_cast<size_t>(num_classes_), -1);
  }
  return at->second;
}

CompiledGrammar::StateId CompiledGrammar::step(StateId state, uint8_t byte) {
  const size_t slot = static_cast<size_t>(state) * static_cast<size_t>(num_classes_) + class_of_[byte];
  if (next_[slot] >= 0) return next_[slot];
  std::vector<Item> items;
  for (const Item& item : states_[static_cast<size_t>(state)].items) {
    for (const auto& e : program_.nodes[static_cast<size_t>(item.node)].bytes) {
      if (e.first <= byte && byte <= e.last) items.push_back({e.to, item.stack});
    }
  }
  const StateId to = items.empty() ? kDead : intern(std::move(items));
  next_[slot] = to;
  return to;
}

CompiledGrammar::StateId CompiledGrammar::advance(StateId state, std::string_view bytes) {
  std::lock_guard lock(mutex_);
  for (char c : bytes) {
    if (state == kDead) break;
    state = step(state, static_cast<uint8_t>(c));
  }
  return state;
}

bool CompiledGrammar::accepts(StateId state) {
  std::lock_guard lock(mutex_);
  return states_[static_cast<size_t>(state)].accepts;
}

bool CompiledGrammar::is_final(StateId state) {
  std::lock_guard lock(mutex_);
  return states_[static_cast<size_t>(state)].items.empty();
}

void CompiledGrammar::build_mask(StateId state, Mask& mask) {
  walk_[0] = state;
  const auto& nodes = vocabulary_.nodes;
  const auto count = static_cast<int32_t>(nodes.size());
  for (int32_t i = 0; i < count;) {
    const TokenBytes::Node node = nodes[static_cast<size_t>(i)];
    const StateId from = walk_[node.depth - 1u];
    const size_t slot = static_cast<size_t>(from) * static_cast<size_t>(num_classes_) + class_of_[node.byte];
    StateId to = next_[slot];
    if (to < 0) to = step(from, node.byte);
    if (to == kDead) {
      i = node.skip;
      continue;
    }
    walk_[node.depth] = to;
    for (int32_t t = node.token; t >= 0; t = vocabulary_.next_same[static_cast<size_t>(t)]) {
      mask[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
    }
    ++i;
  }
  if (!states_[static_cast<size_t>(state)].accepts) return;
  for (int32_t t : vocabulary_.end_tokens) {
    if (t >= 0 && t < vocabulary_.size) mask[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
  }
}

std::shared_ptr<const CompiledGrammar::Mask> CompiledGrammar::mask(StateId state) {
  std::lock_guard lock(mutex_);
  if (auto& known = states_[static_cast<size_t>(state)].mask) return known;
  auto made = std::make_shared<Mask>((static_cast<size_t>(vocabulary_.size) + 31) / 32, 0u);
  build_mask(state, *made);
  mask_bytes_ += static_cast<int64_t>(made->size() * sizeof(uint32_t));
  if (mask_bytes_ > program_.limits.max_mask_bytes) {
    for (State& s : states_) s.mask = nullptr;
    mask_bytes_ = 0;
  }
  states_[static_cast<size_t>(state)].mask = made;
  return made;
}

std::string CompiledGrammar::forced_bytes(StateId state, size_t limit) {
  std::lock_guard lock(mutex_);
  std::string forced;
  while (forced.size() < limit && state != kDead) {
    const State& here = states_[static_cast<size_t>(state)];
    if (here.accepts || here.items.empty()) break;
    int only = -1;
    for (const Item& item : here.items) {
      for (const auto& e : program_.nodes[static_cast<size_t>(item.node)].bytes) {
        if (e.first != e.last || (only >= 0 && only != e.first)) return forced;
        only = e.first;
      }
    }
    forced += static_cast<char>(only);
    state = step(state, static_cast<uint8_t>(only));
  }
  return forced;
}

bool CompiledGrammar::is_worn() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(states_.size()) > program_.limits.max_states / 4 || stacks_.size() > 1000000;
}

int64_t CompiledGrammar::num_states() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(states_.size());
}

// ---- one choice ----------------------------------------------------------------------------------------------------

GrammarMask::GrammarMask(std::shared_ptr<CompiledGrammar> grammar, bool jumps_forward)
    : grammar_(std::move(grammar)), jumps_forward_(jumps_forward), state_(grammar_->start()) {}

std::span<const uint32_t> GrammarMask::mask() {
  mask_ = grammar_->mask(state_);
  return *mask_;
}

void GrammarMask::accept(int32_t token) {
  const auto& vocabulary = grammar_->vocabulary();
  SINTER_CHECK(token >= 0 && token < vocabulary.size, "token {} is not in the vocabulary", token);
  const std::string& bytes = vocabulary.bytes[static_cast<size_t>(token)];
  const auto next = bytes.empty() ? CompiledGrammar::kDead : grammar_->advance(state_, bytes);
  SINTER_CHECK(next != CompiledGrammar::kDead, "token {} does not fit the grammar", token);
  state_ = next;
}

// Tokens as the tokenizer would write the bytes that must come, but for the last: what follows might be part of it.
std::span<const int32_t> GrammarMask::forced() {
  forced_.clear();
  const auto& vocabulary = grammar_->vocabulary();
  if (!jumps_forward_ || !vocabulary.encode) return forced_;
  const std::string bytes = grammar_->forced_bytes(state_, 256);
  if (bytes.size() < 4) return forced_;
  if (static_cast<uint8_t>(bytes[0]) == kSpecialMark) return forced_;
  const bool is_text = std::none_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x80; });
  if (!is_text) return forced_;
  std::vector<int32_t> tokens = vocabulary.encode(bytes);
  if (tokens.size() < 2) return forced_;
  tokens.pop_back();
  size_t at = 0;
  for (int32_t t : tokens) {
    const std::string& text = vocabulary.bytes[static_cast<size_t>(t)];
    if (text.empty() || bytes.compare(at, text.size(), text) != 0) return forced_;  // written otherwise than it reads
    at += text.size();
  }
  forced_ = std::move(tokens);
  return forced_;
}

bool GrammarMask::is_complete() const { return grammar_->accepts(state_) && grammar_->is_final(state_); }

}  // namespace sinter::engine::grammar
