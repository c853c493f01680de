// One step of the engine: inbox, schedule, forward, choose, hand out.
#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/rng.h"
#include "engine/engine_state.h"

namespace sinter::engine {
namespace {

// Counting every block's holders costs about as much as scheduling: every so many steps.
constexpr int64_t kDeepCheckEvery = 64;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int64_t blocks_of(const EngineOptions& o, const StepModel& model) {
  SINTER_CHECK(o.block_size > 0 && o.step_tokens > 0 && o.max_running > 0 && o.kv_tokens >= 0 && o.kv_bytes >= 0,
               "[engine] block size, step tokens and sequences must be positive");
  if (o.kv_tokens > 0) return (o.kv_tokens + o.block_size - 1) / o.block_size;
  const int64_t block_bytes = model.bytes_per_block(o.block_size);
  if (o.kv_bytes > 0) {
    SINTER_CHECK(o.kv_bytes >= block_bytes, "{} bytes of KV memory, but a block of {} tokens takes {}", o.kv_bytes,
                 o.block_size, block_bytes);
    return o.kv_bytes / block_bytes;
  }
  const int64_t full = (model.limits().context_hint + o.block_size) / o.block_size * o.max_running;
  return std::max<int64_t>(1, std::min(full, model.free_bytes() / 5 * 2 / block_bytes));
}

SchedulerOptions scheduler_options(const EngineOptions& o, const ModelLimits& limits, int64_t num_blocks) {
  return {.num_blocks = num_blocks,
          .block_size = o.block_size,
          .step_tokens = o.step_tokens,
          .max_running = o.max_running,
          .prefix_cache = o.prefix_cache,
          .window = limits.window,
          .whole_beyond = limits.whole_beyond};
}

}  // namespace

Engine::State::State(std::unique_ptr<StepModel> own, const EngineOptions& o)
    : model(std::move(own)),
      options(o),
      num_blocks(blocks_of(o, *model)),
      scheduler(scheduler_options(o, model->limits(), num_blocks)) {
  if (options.vocab_limit <= 0 || options.vocab_limit > model->limits().vocab_size)
    options.vocab_limit = model->limits().vocab_size;
  model->take_cache(num_blocks, options.block_size);
  counts.kv_blocks = num_blocks;
  counts.block_size = options.block_size;
  counts.kv_bytes = num_blocks * model->bytes_per_block(options.block_size);
  publish();
}

double Engine::State::retry_seconds() const {
  const std::lock_guard lock(stats_mutex);
  return std::clamp(seconds_per_finish, 0.1, 60.0);
}

Sequence& Engine::State::make_sequence(const std::shared_ptr<RequestState>& owner, int32_t choice) {
  auto made = std::make_unique<Sequence>();
  Sequence& s = *made;
  const Request& r = owner->request;
  s.owner = owner;
  s.choice = choice;
  s.number = next_number++;
  s.tokens.reserve(r.prompt.size() + static_cast<size_t>(std::min<int64_t>(r.max_new_tokens, 4096)));
  s.tokens = r.prompt;
  s.prompt_length = static_cast<int64_t>(r.prompt.size());
  s.usage.prompt_tokens = s.prompt_length;
  const bool scores_prompt = r.prompt_logprobs >= 0 && choice == 0;
  s.next_prompt_score = scores_prompt ? std::min(r.prompt_logprobs_from, s.prompt_length) : s.prompt_length;
  s.sampling = r.sampling;
  if (choice > 0) s.sampling.seed = base::mix_bits(r.sampling.seed, static_cast<uint64_t>(choice));
  s.mask = r.mask && choice > 0 ? std::shared_ptr<TokenMask>(r.mask->clone()) : r.mask;
  if (!r.stop_strings.empty()) s.text_stop.emplace(*options.tokenizer, r.stop_strings, r.prompt);
  s.event.id = owner->id;
  s.event.choice = choice;
  owner->sequences.push_back(&s);
  sequences.emplace(&s, std::move(made));
  return s;
}

void Engine::State::take_inbox() {
  std::vector<std::shared_ptr<RequestState>> arrived;
  std::vector<RequestId> gone;
  bool all_gone = false;
  {
    const std::lock_guard lock(inbox_mutex);
    arrived.swap(inbox);
    gone.swap(cancelled);
    all_gone = std::exchange(cancels_all, false);
  }
  for (const auto& owner : arrived) {
    requests.emplace(owner->id, owner);
    for (int32_t c = 0; c < owner->num_choices; ++c) scheduler.add(make_sequence(owner, c));
  }
  if (all_gone) {
    for (const auto& [id, owner] : requests) gone.push_back(id);
    std::sort(gone.begin(), gone.end());
  }
  for (RequestId id : gone) {
    const auto found = requests.find(id);
    if (found == requests.end()) continue;
    const auto owner = found->second;
    for (Sequence* s : std::vector<Sequence*>(owner->sequences)) finish(*s, FinishReason::cancelled);
  }
}

void Engine::State::expire(Clock::time_point now) {
  std::vector<Sequence*> late;
  auto look = [&](Sequence* s) {
    const auto& deadline = s->request().deadline;
    if (deadline && *deadline <= now) late.push_back(s);
  };
  for (Sequence* s : scheduler.running()) look(s);
  for (Sequence* s : scheduler.waiting()) look(s);
  for (Sequence* s : late) finish(*s, FinishReason::deadline);
}

void Engine::State::leave_queue(const Sequence& s) {
  num_waiting -= 1;
  waiting_tokens -= s.prompt_length;
}

// The batch of the scheduled sequences, and which of its tokens' logits are wanted for what.
void Engine::State::build_batch(StepUnderWay& step) {
  StepBatch& batch = step.batch;
  batch.clear();
  step.rows.clear();
  const auto block_size = static_cast<int32_t>(options.block_size);
  for (const Sequence* s : step.scheduled) {
    batch.table_width = std::max(batch.table_width, static_cast<int64_t>(s->blocks.size()));
  }
  for (Sequence* s : step.scheduled) {
    const int64_t first = s->num_computed, end = first + s->num_scheduled;
    const auto base = static_cast<int64_t>(batch.slots.size());
    if (s->num_pending > 0) {  // all before it is computed
      const int32_t fed = -(s->pending_row + 1);
      batch.tokens.add_sequence({&fed, 1}, static_cast<int32_t>(first));
    } else {
      batch.tokens.add_sequence(
          std::span(s->tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
          static_cast<int32_t>(first));
    }
    for (int64_t p = first; p < end; ++p) {
      const int32_t block = s->blocks[static_cast<size_t>(p / block_size)];
      batch.slots.push_back(block * block_size + static_cast<int32_t>(p % block_size));
    }
    for (int32_t block : s->blocks) batch.tables.push_back(std::max(block, 0));
    batch.tables.resize(batch.tables.size() + static_cast<size_t>(batch.table_width) - s->blocks.size(), 0);
    const int64_t first_scored = std::max(first + 1, s->next_prompt_score);
    for (int64_t target = first_scored; target <= std::min(end, s->prompt_length - 1); ++target) {
      batch.rows.push_back(static_cast<int32_t>(base + target - 1 - first));
      step.rows.push_back({s, target});
    }
    if (end == s->extent()) {
      batch.rows.push_back(static_cast<int32_t>(base + end - 1 - first));
      step.rows.push_back({s, end});
    }
  }
}

// What a step reads: the weights once, and the keys that its sequences see.
double Engine::State::bytes_of(const StepUnderWay& step) const {
  int64_t keys = 0;
  for (const Sequence* s : step.scheduled) keys += s->num_computed - s->num_dropped * options.block_size;
  const double key_bytes = static_cast<double>(counts.kv_bytes) / static_cast<double>(num_blocks * options.block_size);
  return model->weight_bytes(step.batch.tokens.num_tokens(), static_cast<int64_t>(step.batch.rows.size())) +
         static_cast<double>(keys) * key_bytes;
}

bool Engine::State::run_step() {
  const auto start = Clock::now();
  phase = "scheduling";
  take_inbox();
  expire(start);
  counts.schedule_seconds += seconds_since(start);
  if (!has_memory) return false;
  try {
    if (num_under_way == 0 && !start_step()) return false;
    if (may_look_ahead()) start_step();
    end_step();
  } catch (const std::exception& e) {
    fail_steps(e.what());
    throw;
  }
  ++counts.num_steps;
  return true;
}

// Whether the step behind the one under way can be made without the tokens that this one chooses.
bool Engine::State::may_look_ahead() const {
  const StepUnderWay& step = under_way(0);
  if (!options.looks_ahead || num_under_way != 1 || !step.is_chosen_by_model) return false;
  return std::all_of(step.rows.begin(), step.rows.end(), [&](const Row& row) {
    if (!row.sequence) return true;
    const Sequence& s = *row.sequence;
    return ends_next(s) || (!needs_own_tokens(s) && !scheduler.is_whole(s.length() + 1));
  });
}

// Schedules a step and enqueues it; false: there is nothing to do. What the step under way chooses is taken as given:
// a sequence that turns out to have ended is dropped from the next step when that becomes known. The keys that it
// writes there lie in blocks without a name, and whoever gets these blocks writes them in a later step still.
bool Engine::State::start_step() {
  const auto start = Clock::now();
  phase = "scheduling";
  if (num_under_way > 0) {
    const std::vector<Row>& rows = under_way(0).rows;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].sequence) continue;
      Sequence& s = *rows[i].sequence;
      s.is_ending = ends_next(s);
      s.num_pending = s.is_ending ? 0 : 1;
      s.pending_row = static_cast<int32_t>(i);
    }
  }
  const std::vector<Sequence*>& scheduled = scheduler.schedule();
  scheduler.check((counts.num_steps + num_under_way) % kDeepCheckEvery == 0 || options.checks_every_step);
  if (scheduled.empty()) return false;
  for (Sequence* s : scheduled) {
    if (s->has_left_queue) continue;
    s->has_left_queue = true;
    leave_queue(*s);
  }
  StepUnderWay& step = under_way(num_under_way++);
  step.scheduled = scheduled;
  step.is_enqueued = step.is_awaited = false;
  build_batch(step);
  describe_choices(step);
  step.is_chosen_by_model = model->chooses() && (step.rows.empty() || !step.batch.choices.empty());
  step_tokens = step.batch.tokens.num_tokens();
  step_sequences = step.batch.tokens.num_sequences();
  const auto built = Clock::now();
  phase = "the model's forward";
  model->forward(step.batch);
  step.is_enqueued = true;
  step.is_awaited = step.is_chosen_by_model;
  for (Sequence* s : step.scheduled) scheduler.commit(*s);
  counts.schedule_seconds += std::chrono::duration<double>(built - start).count();
  counts.model_seconds += seconds_since(built);
  counts.bytes_read += bytes_of(step);
  return true;
}

// Takes up what the oldest step under way chose.
void Engine::State::end_step() {
  phase = "choosing tokens";
  StepUnderWay& step = under_way(0);
  if (step.is_chosen_by_model) {
    take_choices(step);
  } else {
    const auto start = Clock::now();
    run_rows(step);
    counts.sample_seconds += seconds_since(start);
  }
  for (const Row& row : step.rows) {
    if (row.sequence) emit(*row.sequence, FinishReason::none);
  }
  first_under_way ^= 1;
  --num_under_way;
}

// Waits for the steps under way and forgets what they chose: their sequences choose again.
void Engine::State::drop_steps() {
  for (; num_under_way > 0; --num_under_way, first_under_way ^= 1) {
    if (!std::exchange(under_way(0).is_awaited, false)) continue;
    try {
      model->chosen();
    } catch (const std::exception& e) {  // an error that lasts will end the next step
      base::log_warning("a step that is not wanted any more failed: {}", e.what());
    }
  }
}

// Ends all that took part in the steps under way.
void Engine::State::fail_steps(const std::string& error) {
  bool has_written = false;
  for (int64_t i = 0; i < num_under_way; ++i) {
    StepUnderWay& step = under_way(i);
    has_written |= step.is_enqueued;
    for (size_t k = 0; k < step.scheduled.size(); ++k) {
      if (Sequence* s = step.scheduled[k]) finish(*s, FinishReason::error, error);
    }
  }
  drop_steps();
  if (has_written) scheduler.weights_changed();  // blocks may not hold what their names say
}

void Engine::State::publish() {
  const BlockPool& pool = scheduler.pool();
  counts.running = static_cast<int64_t>(scheduler.running().size());
  counts.kv_blocks_used = pool.num_blocks() - pool.num_free();
  counts.kv_blocks_cached = pool.num_named_free();
  counts.preemptions = scheduler.counts().preemptions;
  counts.prompt_tokens = scheduler.counts().prompt_tokens;
  counts.cached_tokens = scheduler.counts().cached_tokens;
  counts.recomputed_tokens = scheduler.counts().recomputed_tokens;
  counts.kv_tokens_used = counts.contiguous_tokens = 0;
  for (const Sequence* s : scheduler.running()) {
    counts.kv_tokens_used += s->num_computed - s->num_dropped * options.block_size;
    counts.contiguous_tokens += s->prompt_length + s->request().max_new_tokens;
  }
  last_step = Clock::now().time_since_epoch().count();
  phase = "between steps";
  const std::lock_guard lock(stats_mutex);
  published = counts;
}

}  // namespace sinter::engine
