// What comes of a step's rows: tokens chosen on the host, taken up by their sequences and handed out.
#include <algorithm>
#include <cmath>

#include "base/threads.h"
#include "engine/engine_state.h"

namespace sinter::engine {
namespace {

bool wants_logprobs(const Request& r) { return r.logprobs >= 0 || r.best_of > r.n; }

}  // namespace

void Engine::State::run_rows(StepUnderWay& step) {
  const auto total = static_cast<int64_t>(step.rows.size());
  for (int64_t first = 0; first < total; first += model->max_rows()) {
    run_row_chunk(std::span(step.rows).subspan(static_cast<size_t>(first),
                                               static_cast<size_t>(std::min(model->max_rows(), total - first))),
                  first);
  }
}

// Chooses on the host, a row per task; the masks are asked for before, on this thread.
void Engine::State::run_row_chunk(std::span<Row> rows, int64_t first) {
  const size_t n = rows.size();
  const std::span<const float> logits = model->logits(first, static_cast<int64_t>(n));
  const auto V = static_cast<size_t>(model->limits().vocab_size);
  chosen.assign(n, -1);
  row_errors.assign(n, {});
  masks.assign(n, {});
  scratch.resize(static_cast<size_t>(base::num_threads()));
  bool has_logprobs = false;
  auto is_choice = [&](size_t i) { return rows[i].target == rows[i].sequence->length(); };
  for (size_t i = 0; i < n; ++i) {
    if (!rows[i].sequence) continue;
    Sequence& s = *rows[i].sequence;
    if (!is_choice(i)) {
      chosen[i] = s.tokens[static_cast<size_t>(rows[i].target)];
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
  base::parallel_for(static_cast<int64_t>(n), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (!rows[i].sequence || !is_choice(i) || chosen[i] >= 0) continue;
      try {
        choose(*rows[i].sequence, logits.subspan(i * V, V), i, scratch[static_cast<size_t>(base::thread_index())]);
      } catch (const std::exception& e) {
        row_errors[i] = e.what();
      }
    }
  });
  logprobs.assign(n, 0.0f);
  if (has_logprobs) model->logprobs(chosen, logprobs);
  for (size_t i = 0; i < n; ++i) {
    if (!rows[i].sequence) continue;
    Sequence& s = *rows[i].sequence;
    const std::span<const float> own = logits.subspan(i * V, V);
    if (!row_errors[i].empty()) {
      finish(s, FinishReason::error, row_errors[i]);
    } else if (!is_choice(i)) {
      s.event.prompt_tokens.push_back(describe_token(chosen[i], i, s.request().prompt_logprobs, own));
      s.next_prompt_score = rows[i].target + 1;
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
  forget(s);
  --num_choices;
  scheduler.remove(s);
  s.event.error = error;
  emit(s, reason);
  int64_t* const counters[] = {nullptr,           &counts.finished_stop, &counts.finished_length,
                               &counts.cancelled, &counts.expired,       &counts.failed};
  ++*counters[static_cast<size_t>(reason)];
  const auto now = Clock::now();
  const double since = std::chrono::duration<double>(now - last_finish).count();
  last_finish = now;
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

void Engine::State::forget(Sequence& s) {
  for (int64_t i = 0; i < num_under_way; ++i) {
    StepUnderWay& step = under_way(i);
    std::replace(step.scheduled.begin(), step.scheduled.end(), &s, static_cast<Sequence*>(nullptr));
    for (Row& row : step.rows) {
      if (row.sequence == &s) row.sequence = nullptr;
    }
  }
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

}  // namespace sinter::engine
