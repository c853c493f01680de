// A model for tests of the engine: no arithmetic, but a cache that shows every misplaced or stale key.
//
// Each slot holds a token and the hash of all tokens up to it. A forward walks every sequence's table and throws where
// a key is not the one that belongs there; logits are a function of the hash, so a request's tokens tell whether it saw
// its own past and nothing else.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "engine/request.h"
#include "engine/step_model.h"

namespace sinter::engine {

class FakeModel : public StepModel {
 public:
  explicit FakeModel(int64_t vocab_size, int64_t window = 0) {
    limits_.vocab_size = vocab_size;
    limits_.window = window;
  }
  static uint64_t next_state(uint64_t state, int32_t token) {
    return base::mix_bits(state, static_cast<uint64_t>(token));
  }
  // Logits after a prefix, as the model gives them.
  std::vector<float> logits_after(uint64_t state) const {
    std::vector<float> row(static_cast<size_t>(limits_.vocab_size));
    for (size_t v = 0; v < row.size(); ++v)
      row[v] = static_cast<float>(base::mix_bits(state ^ version_, v) % 1024) / 128.0f;
    return row;
  }
  void change_weights() { ++version_; }

  const ModelLimits& limits() const override { return limits_; }
  int64_t bytes_per_block(int64_t block_size) const override { return 16 * block_size; }
  int64_t free_bytes() const override { return 1 << 24; }
  void take_cache(int64_t num_blocks, int64_t block_size) override {
    block_size_ = block_size;
    slots_.assign(static_cast<size_t>(num_blocks * block_size), {});
  }
  void release_cache() override { slots_.clear(); }
  void forward(const StepBatch& batch) override {
    if (fails_next) {
      fails_next = false;
      base::fail("the fake model failed");
    }
    const core::HostBatch& host = batch.tokens;
    states_.assign(host.tokens.size(), 0);
    for (size_t t = 0; t < host.tokens.size(); ++t) {  // keys are written before any is read, as in the real model
      slots_[static_cast<size_t>(batch.slots[t])] = {host.tokens[t], host.positions[t], 0, version_};
    }
    for (size_t s = 0; s < host.contexts.size(); ++s) walk(batch, s);
    rows_ = &batch.rows;
  }
  std::span<const float> logits(int64_t first, int64_t count) override {
    out_.clear();
    for (int64_t r = first; r < first + count; ++r) {
      const std::vector<float> row = logits_after(states_[static_cast<size_t>((*rows_)[static_cast<size_t>(r)])]);
      out_.insert(out_.end(), row.begin(), row.end());
    }
    return out_;
  }
  int64_t max_rows() const override { return 7; }
  void logprobs(std::span<const int32_t> targets, std::span<float> out) override {
    for (size_t i = 0; i < targets.size(); ++i) {
      const auto at = i * static_cast<size_t>(limits_.vocab_size) + static_cast<size_t>(std::max(targets[i], 0));
      out[i] = out_[at];
    }
  }
  bool fails_next = false;

 private:
  struct Slot {
    int32_t token = -1, position = -1;
    uint64_t state = 0, version = 0;
  };
  void walk(const StepBatch& batch, size_t s) {
    const core::HostBatch& host = batch.tokens;
    const auto end = static_cast<int64_t>(host.contexts[s]);
    const int64_t fresh = end - (host.offsets[s + 1] - host.offsets[s]);
    auto slot_at = [&](int64_t p) -> Slot& {
      const auto entry = static_cast<int64_t>(s) * batch.table_width + p / block_size_;
      return slots_[static_cast<size_t>(batch.tables[static_cast<size_t>(entry)] * block_size_ + p % block_size_)];
    };
    const int64_t first = limits_.window > 0 ? std::max<int64_t>(0, fresh - limits_.window + 1) : 0;
    uint64_t state = 0;
    for (int64_t p = first; p < end; ++p) {
      Slot& slot = slot_at(p);
      SINTER_CHECK(slot.position == p && slot.version == version_,
                   "sequence {} of the step reads position {} where {} lies (weights {} of {})", s, p, slot.position,
                   slot.version, version_);
      const uint64_t expected = next_state(state, slot.token);
      if (p < fresh) {
        SINTER_CHECK((first > 0 && p == first) || slot.state == expected,
                     "sequence {} of the step reads another's key at position {}", s, p);
        state = slot.state;
        continue;
      }
      state = slot.state = expected;
      states_[static_cast<size_t>(host.offsets[s] + p - fresh)] = state;
    }
  }

  ModelLimits limits_;
  int64_t block_size_ = 0;
  uint64_t version_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint64_t> states_;
  const std::vector<int32_t>* rows_ = nullptr;
  std::vector<float> out_;
};

// What the model says to a request on its own: the tokens an engine has to give, whatever else it does.
inline std::vector<int32_t> expected_tokens(const FakeModel& model, const Request& request, int32_t choice = 0) {
  SamplingOptions sampling = request.sampling;
  if (choice > 0) sampling.seed = base::mix_bits(sampling.seed, static_cast<uint64_t>(choice));
  uint64_t state = 0;
  for (int32_t token : request.prompt) state = FakeModel::next_state(state, token);
  std::vector<int32_t> tokens = request.prompt, made;
  SamplerScratch scratch;
  while (static_cast<int64_t>(made.size()) < request.max_new_tokens) {
    const SamplingHistory history{.tokens = tokens, .prompt_length = static_cast<int64_t>(request.prompt.size())};
    const int32_t token = sample_token(model.logits_after(state), sampling, tokens.size(), history, scratch);
    if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) != request.stop_tokens.end()) break;
    tokens.push_back(token);
    made.push_back(token);
    state = FakeModel::next_state(state, token);
  }
  return made;
}

}  // namespace sinter::engine
