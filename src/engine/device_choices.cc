// What a model that chooses tokens itself is told of every row: the sampler's options (engine/sampler.h) as numbers.
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/rng.h"
#include "engine/engine_state.h"

namespace sinter::engine {
namespace {

constexpr uint64_t kNoiseStream = 0x5a3b1e;  // as the sampler's

// What sets single tokens' logits, a token once.
class Edits {
 public:
  kernels::LogitEdit& of(int32_t token) {
    auto [found, is_new] = places_.try_emplace(token, list_.size());
    if (is_new) list_.push_back({.token = token});
    return list_[found->second];
  }
  void drop(int32_t token) { of(token).bias = -std::numeric_limits<float>::infinity(); }
  const std::vector<kernels::LogitEdit>& list() const { return list_; }

 private:
  std::vector<kernels::LogitEdit> list_;
  std::unordered_map<int32_t, size_t> places_;
};

bool has_penalties(const SamplingOptions& o) {
  return o.repetition_penalty != 1.0f || o.presence_penalty != 0.0f || o.frequency_penalty != 0.0f;
}

void add_penalties(Edits& edits, const SamplingOptions& o, const Sequence& s) {
  if (!has_penalties(o)) return;
  std::unordered_map<int32_t, int32_t> counts;  // in the output
  for (size_t i = 0; i < s.tokens.size(); ++i)
    counts[s.tokens[i]] += static_cast<int64_t>(i) >= s.prompt_length ? 1 : 0;
  for (const auto& [token, count] : counts) {
    kernels::LogitEdit& edit = edits.of(token);
    edit.divisor = o.repetition_penalty;
    if (count > 0) edit.loss = o.presence_penalty + o.frequency_penalty * static_cast<float>(count);
  }
}

void add_bad_words(Edits& edits, const SamplingOptions& o, const std::vector<int32_t>& tokens) {
  for (const std::vector<int32_t>& word : o.bad_words) {
    const size_t before = word.empty() ? 0 : word.size() - 1;
    if (word.empty() || before > tokens.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, tokens.end() - static_cast<int64_t>(before))) edits.drop(word.back());
  }
}

// What only the host's sampler knows.
bool needs_host(const Request& r, const SamplingOptions& o) {
  return o.typical_p < 1.0f || o.dry.multiplier > 0.0f || !o.allowed_tokens.empty() || r.logprobs > 0 || r.embeds;
}

}  // namespace

bool ends_next(const Sequence& s) { return s.num_new() + 1 >= s.request().max_new_tokens; }

bool needs_own_tokens(const Sequence& s) {
  const SamplingOptions& o = s.sampling;
  return s.mask || has_penalties(o) ||
         std::any_of(o.bad_words.begin(), o.bad_words.end(), [](const auto& word) { return word.size() > 1; });
}

// Fills the batch's choices; leaves them empty where a row asks for what the model cannot do.
void Engine::State::describe_choices(StepUnderWay& step) const {
  if (!model->chooses()) return;
  StepBatch& batch = step.batch;
  batch.vocab_limit = options.vocab_limit;
  for (const Row& row : step.rows) {
    const Sequence& s = *row.sequence;
    const Request& r = s.request();
    if (row.target != s.extent() || needs_host(r, s.sampling)) {
      batch.choices.clear(), batch.edits.clear(), batch.masks.clear();
      batch.wants_logprobs = false;
      return;
    }
    kernels::SampleRow choice;
    const int64_t num_new = s.extent() - s.prompt_length;  // what is pending counts
    if (num_new < r.max_new_tokens && !(s.mask && !s.mask->forced().empty())) {
      const SamplingOptions& o = s.sampling;
      choice = {.temperature = o.temperature,
                .top_p = o.top_p,
                .min_p = o.min_p,
                .top_k = static_cast<int32_t>(std::min<int64_t>(o.top_k, std::numeric_limits<int32_t>::max())),
                .seed = o.seed,
                .stream = base::mix_bits(kNoiseStream, static_cast<uint64_t>(s.extent())),
                .mask = -1,
                .first_edit = static_cast<int32_t>(batch.edits.size()),
                .num_edits = 0,
                .is_used = 1};
      Edits edits;
      for (const auto& [token, bias] : o.logit_bias) edits.of(token).bias += bias;
      if (num_new < r.min_new_tokens) {
        for (int32_t token : r.stop_tokens) edits.drop(token);
      }
      add_bad_words(edits, o, s.tokens);
      add_penalties(edits, o, s);
      batch.edits.insert(batch.edits.end(), edits.list().begin(), edits.list().end());
      choice.num_edits = static_cast<int32_t>(edits.list().size());
      if (const std::span<const uint32_t> mask = s.mask ? s.mask->mask() : std::span<const uint32_t>(); !mask.empty()) {
        const auto words = static_cast<size_t>((model->limits().vocab_size + 31) / 32);
        choice.mask = static_cast<int32_t>(batch.masks.size() / words);
        batch.masks.insert(batch.masks.end(), mask.begin(),
                           mask.begin() + static_cast<int64_t>(std::min(words, mask.size())));
        batch.masks.resize((static_cast<size_t>(choice.mask) + 1) * words, 0);
      }
    }
    batch.choices.push_back(choice);
    batch.wants_logprobs |= r.logprobs >= 0 || r.best_of > r.n;
  }
}

// Takes what the model chose.
void Engine::State::take_choices(StepUnderWay& step) {
  const auto start = Clock::now();
  step.is_awaited = false;
  const StepModel::Chosen all = model->chosen();
  const auto arrived = Clock::now();
  counts.model_seconds += std::chrono::duration<double>(arrived - start).count();
  chosen.assign(all.tokens.begin(), all.tokens.end());
  logprobs.assign(all.logprobs.begin(), all.logprobs.end());
  logprobs.resize(chosen.size(), 0.0f);
  ranks.assign(all.ranks.begin(), all.ranks.end());
  ranks.resize(chosen.size(), 0);
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (!step.rows[i].sequence) continue;
    Sequence& s = *step.rows[i].sequence;
    s.num_pending = 0;
    s.is_ending = false;
    if (chosen[i] == -2) {
      finish(s, FinishReason::error, kLogitsNotFinite);
      continue;
    }
    if (!step.batch.choices[i].is_used && s.mask && s.num_new() < s.request().max_new_tokens &&
        !s.mask->forced().empty())
      chosen[i] = s.mask->forced().front();
    accept(s, chosen[i], i, {});
    if (step.rows[i].sequence) scheduler.name_blocks(s);
  }
  counts.sample_seconds += std::chrono::duration<double>(Clock::now() - arrived).count();
}

}  // namespace sinter::engine
