// A model for tests of the engine: no arithmetic, but a cache that shows every misplaced or stale key.
//
// Each slot holds a token and the hash of all tokens up to it. A forward walks every sequence's table and throws where
// a key is not the one that belongs there; logits are a function of the hash, so a request's tokens tell whether it saw
// its own past and nothing else.
//
// With `chooses_itself` it works as a device does: forward() only takes the batch over, and steps are done in their
// order, each when it is waited for.
#pragma once
#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "core/tensor.h"
#include "engine/request.h"
#include "engine/step_model.h"
#include "kernels/table.h"

namespace sinter::engine {

class FakeModel : public StepModel {
 public:
  explicit FakeModel(int64_t vocab_size, int64_t window = 0, bool chooses_itself = false)
      : chooses_itself_(chooses_itself) {
    limits_.vocab_size = vocab_size;
    limits_.window = window;
  }
  static uint64_t next_state(uint64_t state, int32_t token) {
    return base::mix_bits(state, static_cast<uint64_t>(token));
  }
  // Logits after a prefix, as the model gives them.
  std::vector<float> logits_after(uint64_t state) const { return logits_after(state, version_); }
  std::vector<float> logits_after(uint64_t state, uint64_t version) const {
    std::vector<float> row(static_cast<size_t>(limits_.vocab_size));
    for (size_t v = 0; v < row.size(); ++v)
      row[v] = static_cast<float>(base::mix_bits(state ^ version, v) % 1024) / 128.0f;
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
  void release_cache() override {
    finish_unasked();
    SINTER_CHECK(queue_.empty(), "the cache is released while {} steps use it", queue_.size());
    slots_.clear();
  }
  void forward(const StepBatch& batch) override {
    if (fails_next) {
      fails_next = false;
      base::fail("the fake model failed");
    }
    calls += 'f';
    finish_unasked();
    SINTER_CHECK(queue_.size() < 2, "a third step is enqueued before the first was waited for");
    queue_.push_back({batch, version_});
    most_enqueued = std::max(most_enqueued, queue_.size());
    if (!chooses_itself_) run_oldest();
  }
  bool chooses() const override { return chooses_itself_; }
  Chosen chosen() override {
    calls += 'c';
    finish_unasked();
    SINTER_CHECK(!queue_.empty(), "no step is there to wait for");
    if (fails_next_wait) {
      fails_next_wait = false;
      queue_.pop_front();
      while (!queue_.empty() && !is_awaited(queue_.front().batch)) queue_.pop_front();  // it may need what did not come
      base::fail("the fake device failed");
    }
    run_oldest();
    return {.tokens = chosen_, .logprobs = chosen_logprobs_, .ranks = ranks_};
  }
  std::span<const float> logits(int64_t first, int64_t count) override {
    while (!queue_.empty()) run_oldest();
    out_.clear();
    for (int64_t r = first; r < first + count; ++r) {
      const std::vector<float> row = logits_of_row(r);
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
  bool fails_next = false, fails_next_wait = false;
  std::string calls;  // f: forward, c: chosen
  size_t most_enqueued = 0;

 private:
  struct Queued {
    StepBatch batch;
    uint64_t version;
  };
  static bool is_awaited(const StepBatch& batch) { return batch.rows.empty() || !batch.choices.empty(); }
  // Steps whose logits nobody asked for.
  void finish_unasked() {
    while (!queue_.empty() && !is_awaited(queue_.front().batch)) run_oldest();
  }
  void run_oldest() {
    const Queued step = std::move(queue_.front());
    queue_.pop_front();
    StepBatch batch = step.batch;
    step_version_ = step.version;
    core::HostBatch& host = batch.tokens;
    for (int32_t& token : host.tokens) {
      if (token >= 0) continue;
      const auto row = static_cast<size_t>(-token) - 1;
      SINTER_CHECK(row < chosen_.size(), "row {} is asked for; the last step chose {}", row, chosen_.size());
      token = std::max(0, chosen_[row]);
    }
    states_.assign(host.tokens.size(), 0);
    for (size_t t = 0; t < host.tokens.size(); ++t) {  // keys are written before any is read, as in the real model
      slots_[static_cast<size_t>(batch.slots[t])] = {host.tokens[t], host.positions[t], 0, step_version_};
    }
    for (size_t s = 0; s < host.contexts.size(); ++s) walk(batch, s);
    rows_ = batch.rows;
    if (!batch.choices.empty()) choose(batch);
  }
  std::vector<float> logits_of_row(int64_t row) const {
    return logits_after(states_[static_cast<size_t>(rows_[static_cast<size_t>(row)])], step_version_);
  }
  void choose(StepBatch& batch) {
    const auto rows = static_cast<int64_t>(rows_.size()), words = (limits_.vocab_size + 31) / 32;
    std::vector<float> logits;
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<float> row = logits_of_row(r);
      logits.insert(logits.end(), row.begin(), row.end());
    }
    chosen_.resize(rows_.size());
    ranks_.resize(batch.wants_logprobs ? rows_.size() : 0);
    auto view = [](auto& values, core::Shape shape, core::DType dtype) {
      return values.empty() ? core::Tensor() : core::Tensor::view_of(values.data(), shape, dtype, {});
    };
    auto bytes = [&](auto& values) {
      return view(values, {static_cast<int64_t>(values.size() * sizeof(values[0]))}, core::DType::u8);
    };
    core::Stream stream;
    kernels::kernels_for({}).sample(
        stream,
        {.logits = view(logits, {rows, limits_.vocab_size}, core::DType::f32),
         .vocab = batch.vocab_limit,
         .rows = bytes(batch.choices),
         .edits = bytes(batch.edits),
         .masks = view(batch.masks, {static_cast<int64_t>(batch.masks.size()) / words, words}, core::DType::i32),
         .tokens = view(chosen_, {rows}, core::DType::i32),
         .ranks = view(ranks_, {rows}, core::DType::i32)});
    chosen_logprobs_.assign(ranks_.size(), 0.0f);
    for (size_t r = 0; r < ranks_.size(); ++r)
      chosen_logprobs_[r] =
          logits[r * static_cast<size_t>(limits_.vocab_size) + static_cast<size_t>(std::max(chosen_[r], 0))];
  }
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
      SINTER_CHECK(slot.position == p && slot.version == step_version_,
                   "sequence {} of the step reads position {} where {} lies (weights {} of {})", s, p, slot.position,
                   slot.version, step_version_);
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
  uint64_t version_ = 0, step_version_ = 0;
  bool chooses_itself_ = false;
  std::deque<Queued> queue_;
  std::vector<int32_t> chosen_, ranks_;
  std::vector<float> chosen_logprobs_;
  std::vector<Slot> slots_;
  std::vector<uint64_t> states_;
  std::vector<int32_t> rows_;
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
