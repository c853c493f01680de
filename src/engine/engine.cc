#include "engine/engine.h"

#include <algorithm>
#include <mutex>

#include "engine/engine_state.h"
#include "engine/transformer_runner.h"

namespace sinter::engine {

const char* finish_reason_name(FinishReason reason) {
  constexpr const char* kNames[] = {"none", "stop", "length", "cancelled", "deadline", "error"};
  return kNames[static_cast<size_t>(reason)];
}

Engine::Engine(const models::Transformer& transformer, const EngineOptions& options)
    : Engine(
          std::make_unique<TransformerRunner>(transformer, RunnerOptions{.fixed_shapes = options.fixed_shapes,
                                                                         .graphs = true,
                                                                         .keeps_choices = options.keeps_choices,
                                                                         .kv_format = options.kv_format,
                                                                         .kv_plain_layers = options.kv_plain_layers}),
          options) {}

Engine::Engine(std::unique_ptr<StepModel> model, const EngineOptions& options)
    : state_(std::make_unique<State>(std::move(model), options)) {}

Engine::~Engine() = default;

void Engine::check(const Request& r, const std::string& name) const {
  const ModelLimits& limits = state_->model->limits();
  const EngineOptions& o = state_->options;
  SINTER_CHECK(!r.prompt.empty(), "{}: the prompt has no tokens", name);
  for (int32_t token : r.prompt) {
    SINTER_CHECK(token >= 0 && token < limits.vocab_size, "{}: token {} is outside the model's vocabulary of {}", name,
                 token, limits.vocab_size);
  }
  SINTER_CHECK(r.max_new_tokens >= 0, "{}: {} new tokens asked for", name, r.max_new_tokens);
  const auto prompt = static_cast<int64_t>(r.prompt.size());
  // A position table has an end; rotary positions go on, though not as trained. The last token is chosen, not computed.
  SINTER_CHECK(limits.max_positions == 0 || r.max_new_tokens <= limits.max_positions + 1 - prompt,
               "{}: {} prompt and {} new tokens, but the model has {} positions", name, prompt, r.max_new_tokens,
               limits.max_positions);
  SINTER_CHECK(r.max_new_tokens <= max_request_tokens() - prompt,
               "{}: {} prompt and {} new tokens, but the cache has room for {}; ask for fewer, or give the engine more "
               "KV memory",
               name, prompt, r.max_new_tokens, max_request_tokens());
  auto check_range = [&](bool holds, const char* what, int64_t value, int64_t most) {
    if (!holds) base::fail_usage("{} is {}; expected at most {}", what, value, most);
  };
  if (r.n < 1) base::fail_usage("n is {}; expected 1 or more", r.n);
  check_range(std::max(r.n, r.best_of) <= o.max_choices, "n or best_of", std::max(r.n, r.best_of), o.max_choices);
  if (r.best_of != 0 && r.best_of < r.n) base::fail_usage("best_of is {}, below n = {}", r.best_of, r.n);
  check_range(r.logprobs <= o.max_logprobs, "logprobs", r.logprobs, o.max_logprobs);
  check_range(r.prompt_logprobs <= o.max_logprobs, "prompt logprobs", r.prompt_logprobs, o.max_logprobs);
  if (r.prompt_logprobs_from < 1)
    base::fail_usage("prompt logprobs from {}; the first token has none", r.prompt_logprobs_from);
  if (!r.stop_strings.empty() && !o.tokenizer) base::fail_usage("stop strings need the engine to have a tokenizer");
  for (const std::string& stop : r.stop_strings) {
    if (stop.empty()) base::fail_usage("a stop string is empty");
  }
  check_sampling(r.sampling, limits.vocab_size);
}

RequestId Engine::submit(Request request) {
  check(request);
  State& s = *state_;
  const int32_t choices = std::max(request.n, request.best_of);
  const auto tokens = static_cast<int64_t>(request.prompt.size()) * choices;
  const int64_t places = s.options.max_running + s.options.max_waiting;
  if (choices > places) base::fail_usage("{} choices; the queue has room for {} at most", choices, places);
  const std::lock_guard lock(s.inbox_mutex);
  if (s.is_draining) {
    ++s.refused;
    throw Draining("the engine is ending and takes no more requests");
  }
  // One that comes as another ends takes the place that this leaves: places that run count, not only those that wait.
  if (s.num_choices + choices > places || s.waiting_tokens + tokens > s.options.max_waiting_tokens) {
    ++s.refused;
    throw QueueFull(
        fmt::format("the queue is full: {} choices are there, at most {}; {} prompt tokens wait, at most {}",
                    s.num_choices.load(), places, s.waiting_tokens.load(), s.options.max_waiting_tokens),
        s.retry_seconds());
  }
  s.num_choices += choices;
  s.num_waiting += choices;
  s.waiting_tokens += tokens;
  ++s.num_alive;
  ++s.submitted;
  auto owner = std::make_shared<RequestState>();
  owner->id = ++s.last_id;
  owner->request = std::move(request);
  owner->num_choices = choices;
  owner->submitted = Clock::now();
  s.inbox.push_back(owner);
  return owner->id;
}

void Engine::cancel(RequestId id) {
  const std::lock_guard lock(state_->inbox_mutex);
  state_->cancelled.push_back(id);
}

void Engine::cancel_all() {
  const std::lock_guard lock(state_->inbox_mutex);
  state_->cancels_all = true;
}

bool Engine::has_work() const { return state_->num_alive.load() > 0; }

void Engine::drain() {
  const std::lock_guard lock(state_->inbox_mutex);
  state_->is_draining = true;
}

const EngineOptions& Engine::options() const { return state_->options; }
int64_t Engine::max_request_tokens() const { return state_->num_blocks * state_->options.block_size; }
int64_t Engine::vocab_size() const { return state_->model->limits().vocab_size; }

bool Engine::step() {
  std::vector<State::Event> events;
  std::exception_ptr error;
  bool did = false;
  {
    const std::lock_guard lock(state_->step_mutex);
    try {
      did = state_->run_step();
    } catch (...) {
      error = std::current_exception();
    }
    events.swap(state_->events);
    state_->publish();
  }
  state_->phase = "handing out tokens";
  state_->deliver(events);
  state_->phase = "between steps";
  if (error) std::rethrow_exception(error);
  return did || !events.empty();
}

std::vector<Output> Engine::take_outputs() { return std::exchange(state_->polled, {}); }

void Engine::weights_changed() {
  change_weights([] {});
}

void Engine::change_weights(const std::function<void()>& change) {
  const std::lock_guard lock(state_->step_mutex);
  state_->drop_steps();
  change();
  state_->scheduler.weights_changed();
}

void Engine::release_memory() {
  const std::lock_guard lock(state_->step_mutex);
  state_->drop_steps();
  state_->scheduler.weights_changed();  // what was cached is gone
  state_->model->release_cache();
  state_->has_memory = false;
}

void Engine::take_memory() {
  const std::lock_guard lock(state_->step_mutex);
  if (state_->has_memory) return;
  state_->model->take_cache(state_->num_blocks, state_->options.block_size);
  state_->has_memory = true;
}

EngineStats Engine::stats() const {
  const State& s = *state_;
  EngineStats stats;
  {
    const std::lock_guard lock(s.stats_mutex);
    stats = s.published;
  }
  stats.submitted = s.submitted;
  stats.refused = s.refused;
  stats.waiting = s.num_waiting;
  stats.waiting_tokens = s.waiting_tokens;
  stats.has_work = has_work();
  const auto ended = Clock::time_point(Clock::duration(s.last_step.load()));
  stats.last_step_age_seconds = std::chrono::duration<double>(Clock::now() - ended).count();
  return stats;
}

std::string Engine::describe() const {
  const EngineStats s = stats();
  return fmt::format(
      "engine: in {} ({} tokens of {} sequences); {} steps, the last ended {:.1f} s ago; {} running, {} waiting ({} "
      "prompt "
      "tokens); {} of {} blocks used, {} cached; {} preemptions; submitted {}, refused {}, stopped {}, at length {}, "
      "cancelled {}, expired {}, failed {}\n",
      state_->phase.load(), state_->step_tokens.load(), state_->step_sequences.load(), s.num_steps,
      s.last_step_age_seconds, s.running, s.waiting, s.waiting_tokens, s.kv_blocks_used, s.kv_blocks,
      s.kv_blocks_cached, s.preemptions, s.submitted, s.refused, s.finished_stop, s.finished_length, s.cancelled,
      s.expired, s.failed);
}

}  // namespace sinter::engine
