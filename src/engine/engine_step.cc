// One step of the engine: inbox, schedule, forward, choose, hand out.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "base/threads.h"
#include "engine/engine_state.h"

namespace sinter::engine {
namespace {

// Counting every block's holders costs about as much as scheduling: every so many steps.
constexpr int64_t kDeepCheckEvery = 64;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

bool wants_logprobs(const Request& r) { return r.logprobs >= 0 || r.best_of > r.n; }

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
void Engine::State::build_batch(const std::vector<Sequence*>& scheduled) {
  batch.clear();
  rows.clear();
  const int64_t block_size = options.block_size;
  for (const Sequence* s : scheduled) {
    batch.table_width = std::max(batch.table_width, static_cast<int64_t>(s->blocks.size()));
  }
  for (Sequence* s : scheduled) {
    const int64_t first = s->num_computed, end = first + s->num_scheduled;
    const auto base = static_cast<int64_t>(batch.slots.size());
    batch.tokens.add_sequence(
        std::span(s->tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
        static_cast<int32_t>(first));
    for (int64_t p = first; p < end; ++p) {
      const int32_t block = s->blocks[static_cast<size_t>(p / block_size)];
      batch.slots.push_back(block * static_cast<int32_t>(block_size) + static_cast<int32_t>(p % block_size));
    }
    for (int32_t block : s->blocks) batch.tables.push_back(std::max(block, 0));
    batch.tables.resize(batch.tables.size() + static_cast<size_t>(batch.table_width) - s->blocks.size(), 0);
    const int64_t first_scored = std::max(first + 1, s->next_prompt_score);
    for (int64_t target = first_scored; target <= std::min(end, s->prompt_length - 1); ++target) {
      batch.rows.push_back(static_cast<int32_t>(base + target - 1 - first));
      rows.push_back({s, target});
    }
    if (end == s->length()) {
      batch.rows.push_back(static_cast<int32_t>(base + end - 1 - first));
      rows.push_back({s, end});
    }
  }
}

// What the step under way reads: the weights once, and the keys that its sequences see.
double Engine::State::bytes_of_step(const std::vector<Sequence*>& scheduled) const {
  int64_t keys = 0;
  for (const Sequence* s : scheduled) keys += s->num_computed - s->num_dropped * options.block_size;
  const double key_bytes = static_cast<double>(counts.kv_bytes) / static_cast<double>(num_blocks * options.block_size);
  return model->weight_bytes(batch.tokens.num_tokens(), static_cast<int64_t>(batch.rows.size())) +
         static_cast<double>(keys) * key_bytes;
}

bool Engine::State::run_step() {
  const auto start = Clock::now();
  phase = "scheduling";
  take_inbox();
  expire(start);
  if (!has_memory) return false;
  const std::vector<Sequence*> scheduled = scheduler.schedule();
  scheduler.check(counts.num_steps % kDeepCheckEvery == 0 || options.checks_every_step);
  for (Sequence* s : scheduled) {
    if (s->has_left_queue) continue;
    s->has_left_queue = true;
    leave_queue(*s);
  }
  if (scheduled.empty()) return false;
  build_batch(scheduled);
  describe_choices();
  step_tokens = batch.tokens.num_tokens();
  step_sequences = batch.tokens.num_sequences();
  const auto built = Clock::now();
  try {
    phase = "the model's forward";
    model->forward(batch);
    phase = "choosing tokens";
    for (Sequence* s : scheduled) scheduler.commit(*s);
    const auto computed = Clock::now();
    counts.bytes_read += bytes_of_step(scheduled);  // before sequences end, and are gone
    batch.choices.empty() ? run_rows() : take_choices();
    counts.schedule_seconds += std::chrono::duration<double>(built - start).count();
    counts.model_seconds += std::chrono::duration<double>(computed - built).count();
    counts.sample_seconds += seconds_since(computed);
  } catch (const std::exception& e) {
    for (Sequence* s : scheduled) {
      if (s->state != SequenceState::finished) finish(*s, FinishReason::error, e.what());
    }
    throw;
  }
  for (Sequence* s : scheduled) {
    if (sequences.contains(s)) emit(*s, FinishReason::none);
  }
  ++counts.num_steps;
  return true;
}

void Engine::State::run_rows() {
  const auto total = static_cast<int64_t>(rows.size());
  for (int64_t first = 0; first < total; first += model->max_rows()) {
    run_row_chunk(first, std::min(model->max_rows(), total - first));
  }
}

// Chooses on the host, a row per task; the masks are asked for before, on this thread.
void Engine::State::run_row_chunk(int64_t first, int64_t count) {
  const std::span<const float> logits = model->logits(first, count);
  const auto V = static_cast<size_t>(model->limits().vocab_size);
  const auto n = static_cast<size_t>(count);
  chosen.assign(n, -1);
  row_errors.assign(n, {});
  masks.assign(n, {});
  scratch.resize(static_cast<size_t>(base::num_threads()));
  bool has_logprobs = false;
  auto row_of = [&](size_t i) -> Row& { return rows[static_cast<size_t>(first) + i]; };
  auto is_choice = [&](size_t i) { return row_of(i).target == row_of(i).sequence->length(); };
  for (size_t i = 0; i < n; ++i) {
    Sequence& s = *row_of(i).sequence;
    if (!is_choice(i)) {
      chosen[i] = s.tokens[static_cast<size_t>(row_of(i).target)];
      has_logprobs = true;
      continue;
    }
    has_logprobs |= wants_logprobs(s.request());
    if (s.request().embeds) {
      s.event.embedding = model->hidden_state(first + static_cast<int64_t>(i));
      chosen[i] = 0;  // nothing is to be chosen
      continue;
    }
    if (!s.mask || s.num_new() >= s.request().max_new_tokens) continue;
    const std::span<const int32_t> forced = s.mask->forced();
    if (!forced.empty()) {
      chosen[i] = forced.front();
    } else {
      masks[i] = s.mask->mask();
    }
  }
  base::parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (!is_choice(i) || chosen[i] >= 0) continue;
      try {
        choose(*row_of(i).sequence, logits.subspan(i * V, V), i, scratch[static_cast<size_t>(base::thread_index())]);
      } catch (const std::exception& e) {
        row_errors[i] = e.what();
      }
    }
  });
  logprobs.assign(n, 0.0f);
  if (has_logprobs) model->logprobs(chosen, logprobs);
  for (size_t i = 0; i < n; ++i) {
    Sequence& s = *row_of(i).sequence;
    if (s.state == SequenceState::finished) continue;
    const std::span<const float> own = logits.subspan(i * V, V);
    if (!row_errors[i].empty()) {
      finish(s, FinishReason::error, row_errors[i]);
    } else if (!is_choice(i)) {
      s.event.prompt_tokens.push_back(describe_token(chosen[i], i, s.request().prompt_logprobs, own));
      s.next_prompt_score = row_of(i).target + 1;
      s.has_event = true;
    } else {
      accept(s, chosen[i], i, own);
    }
  }
}

void Engine::State::choose(Sequence& s, std::span<const float> logits, size_t row, SamplerScratch& own) {
  const Request& r = s.request();
  if (s.num_new() >= r.max_new_tokens) return;  // only the prompt was asked for
  logits = logits.first(static_cast<size_t>(options.vocab_limit));
  const SamplingHistory history{
      .tokens = s.tokens,
      .prompt_length = s.prompt_length,
      .mask = masks[row],
      .banned = s.num_new() < r.min_new_tokens ? std::span<const int32_t>(r.stop_tokens) : std::span<const int32_t>{}};
  chosen[row] = sample_token(logits, s.sampling, static_cast<uint64_t>(s.length()), history, own);
}

OutputToken Engine::State::describe_token(int32_t token, size_t row, int32_t wanted,
                                          std::span<const float> logits) const {
  const float logprob = logprobs[row];
  OutputToken out{.token = token, .logprob = logprob, .top = {}, .rank = 0};
  if (wanted < 0) return out;
  if (logits.empty()) {
    out.rank = ranks[row];
    return out;
  }
  const float own = logits[static_cast<size_t>(token)];
  for (size_t i = 0; i < logits.size(); ++i) {
    out.rank += logits[i] > own || (logits[i] == own && static_cast<int32_t>(i) < token);
  }
  if (wanted == 0) return out;
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto count = std::min<int64_t>(wanted, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (int64_t i = 0; i < count; ++i) {
    const int32_t t = order[static_cast<size_t>(i)];
    // Beside the token's own, so that equal logits have equal numbers.
    out.top.push_back({t, logprob + (logits[static_cast<size_t>(t)] - own)});
  }
  return out;
}

// A token was chosen or forced (-1: none may come): it ends the choice or becomes part of it.
void Engine::State::accept(Sequence& s, int32_t token, size_t row, std::span<const float> logits) {
  const Request& r = s.request();
  if (r.embeds) return finish(s, FinishReason::stop);
  if (s.num_new() >= r.max_new_tokens) return finish(s, FinishReason::length);
  if (!s.has_token) {
    s.has_token = true;
    s.first_token = Clock::now();
  }
  if (token < 0) return finish(s, FinishReason::stop);
  ++counts.output_tokens;
  if (s.num_new() >= r.min_new_tokens &&
      std::find(r.stop_tokens.begin(), r.stop_tokens.end(), token) != r.stop_tokens.end()) {
    s.event.stop_token = token;
    return finish(s, FinishReason::stop);
  }
  OutputToken described = describe_token(token, row, r.logprobs, logits);
  if (!wants_logprobs(r)) described.logprob = 0;
  append(s, std::move(described));
  bool goes_on = after_token(s, token);
  // Forced tokens need no logits of their own; where log-probabilities are asked for they come one a step.
  while (goes_on && s.mask && !wants_logprobs(s.request())) {
    const std::span<const int32_t> forced = s.mask->forced();
    if (forced.empty()) break;
    const int32_t next = forced.front();
    append(s, {.token = next, .logprob = 0, .top = {}, .rank = 0});
    ++counts.output_tokens;
    goes_on = after_token(s, next);
  }
}

void Engine::State::append(Sequence& s, OutputToken&& token) {
  s.tokens.push_back(token.token);
  ++s.usage.output_tokens;
  s.logprob_sum += static_cast<double>(token.logprob);
  s.event.tokens.push_back(std::move(token));
  s.has_event = true;
}

bool Engine::State::after_token(Sequence& s, int32_t token) {
  const Request& r = s.request();
  auto end = [&](FinishReason reason) {
    finish(s, reason);
    return false;
  };
  if (s.mask) {
    s.mask->accept(token);
    if (s.mask->is_complete()) return end(FinishReason::stop);
  }
  if (s.text_stop) {
    const int32_t found = s.text_stop->push(token);
    if (found >= 0 && s.num_new() >= r.min_new_tokens) {
      s.event.stop_string = found;
      return end(FinishReason::stop);
    }
  }
  return s.num_new() < r.max_new_tokens || end(FinishReason::length);
}

void Engine::State::finish(Sequence& s, FinishReason reason, const std::string& error) {
  if (!s.has_left_queue) leave_queue(s);
  --num_choices;
  scheduler.remove(s);
  s.event.error = error;
  emit(s, reason);
  int64_t* const counters[] = {nullptr,           &counts.finished_stop, &counts.finished_length,
                               &counts.cancelled, &counts.expired,       &counts.failed};
  ++*counters[static_cast<size_t>(reason)];
  const double since = seconds_since(last_finish);
  last_finish = Clock::now();
  {
    const std::lock_guard lock(stats_mutex);
    seconds_per_finish += 0.1 * (since - seconds_per_finish);
  }
  const std::shared_ptr<RequestState> owner = s.owner;
  std::erase(owner->sequences, &s);
  sequences.erase(&s);
  if (!owner->sequences.empty()) return;
  if (!owner->finished.empty()) emit_best(owner);
  requests.erase(owner->id);
  --num_alive;
}

void Engine::State::emit(Sequence& s, FinishReason reason) {
  if (!s.has_event && reason == FinishReason::none) return;
  const Request& r = s.request();
  if (r.best_of > r.n && reason == FinishReason::none) return;  // all at the end
  Output& out = s.event;
  out.finish = reason;
  out.usage = s.usage;
  if (s.has_begun) out.queue_seconds = std::chrono::duration<double>(s.begun - s.owner->submitted).count();
  if (s.has_token) out.prefill_seconds = std::chrono::duration<double>(s.first_token - s.begun).count();
  Output next;
  next.id = out.id;
  next.choice = out.choice;
  if (r.best_of > r.n) {
    s.owner->finished.push_back(std::move(out));
    s.owner->means.push_back(s.logprob_sum / static_cast<double>(std::max<int64_t>(1, s.num_new())));
  } else {
    events.push_back({std::move(out), s.owner});
  }
  s.event = std::move(next);
  s.has_event = false;
}

void Engine::State::emit_best(const std::shared_ptr<RequestState>& shared) {
  RequestState& owner = *shared;
  std::vector<size_t> order(owner.finished.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto rank = [&](size_t i) { return std::pair(-owner.means[i], owner.finished[i].choice); };
    return rank(a) < rank(b);
  });
  for (size_t i = 0; i < order.size() && i < static_cast<size_t>(owner.request.n); ++i) {
    Output out = std::move(owner.finished[order[i]]);
    out.choice = static_cast<int32_t>(i);
    if (owner.request.logprobs < 0) {
      for (OutputToken& t : out.tokens) t.logprob = 0;
    }
    events.push_back({std::move(out), shared});
  }
}

void Engine::State::deliver(std::vector<Event>& ready) {
  for (Event& event : ready) {
    if (event.owner->request.on_output) {
      event.owner->request.on_output(std::move(event.output));
    } else {
      polled.push_back(std::move(event.output));
    }
  }
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
