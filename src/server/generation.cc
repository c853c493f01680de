#include "server/generation.h"

#include <algorithm>

#include "base/log.h"
#include "server/metrics.h"

namespace sinter::server {

// ---- stop texts ----------------------------------------------------------------------------------------------------

std::string StopCutter::push(std::string_view text) {
  if (has_stopped_) return "";
  held_ += text;
  size_t first = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = held_.find(stops_[i]);
    if (at != std::string::npos && (first == std::string::npos || at < first)) {
      first = at;
      stop_text_ = stops_[i];
    }
  }
  if (first != std::string::npos) {
    has_stopped_ = true;
    std::string out = held_.substr(0, first + (includes_stop_ ? stop_text_.size() : 0));
    held_.clear();
    return out;
  }
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(held_.size(), stop.size() - 1); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopCutter::finish() { return has_stopped_ ? "" : std::exchange(held_, ""); }

engine::RequestId submit_request(engine::EngineLoop& loop, engine::Request request) {
  try {
    return loop.submit(std::move(request));
  } catch (const engine::QueueFull& e) {
    ApiError error(429, e.what(), "", "overloaded");
    error.retry_after_seconds = std::max(1.0, e.retry_after_seconds);
    throw error;
  } catch (const engine::Draining& e) {
    ApiError error(503, e.what(), "", "shutting_down");
    error.retry_after_seconds = 5;
    throw error;
  } catch (const base::Error& e) {
    throw ApiError(400, e.what());
  }
}

// ---- a request -----------------------------------------------------------------------------------------------------

struct Generation::Choice {
  Choice(const tokenizer::Tokenizer& tokenizer, bool skips_special, StopCutter cutter)
      : decoder(tokenizer, skips_special), cutter(std::move(cutter)) {}
  tokenizer::StreamDecoder decoder;
  StopCutter cutter;
  ChoiceResult result;
  engine::Clock::time_point last_token;
  bool has_ended = false;
};

namespace {
double seconds_since(engine::Clock::time_point start) {
  return std::chrono::duration<double>(engine::Clock::now() - start).count();
}
}  // namespace

Generation::Generation(GenerationContext context, std::shared_ptr<Reply> reply, std::unique_ptr<Responder> responder,
                       GenerationOptions options)
    : context_(std::move(context)),
      reply_(std::move(reply)),
      responder_(std::move(responder)),
      options_(std::move(options)) {}

Generation::~Generation() = default;

void Generation::start(std::vector<engine::Request> requests) {
  choices_per_prompt_ = requests[0].n;
  for (const engine::Request& request : requests) {
    for (int i = 0; i < request.n; ++i) {
      choices_.push_back(std::make_unique<Choice>(*context_.tokenizer, options_.skips_special,
                                                  StopCutter(request.stop_strings, options_.includes_stop)));
      if (options_.skips_prompt_space) choices_.back()->decoder.skip(request.prompt);
    }
  }
  auto self = shared_from_this();
  try {
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].on_output = [self, i](engine::Output&& output) { self->receive(i, std::move(output)); };
      ids_.push_back(submit_request(*context_.loop, std::move(requests[i])));
    }
  } catch (const ApiError&) {
    cancel_all();
    throw;
  }
  reply_->on_close([self] { self->cancel_all(); });
  if (responder_->streams()) {
    reply_->begin_stream("text/event-stream; charset=utf-8");
    const std::string first = responder_->begin();
    if (!first.empty()) reply_->write(first);
  }
  bool has_work;
  {
    std::lock_guard lock(mutex_);
    is_started_ = true;
    has_work = is_working_ = !inbox_.empty();
  }
  if (has_work) context_.post([self] { self->work(); });
}

void Generation::cancel_all() {
  is_cancelled_ = true;
  for (engine::RequestId id : ids_) context_.loop->cancel(id);
}

void Generation::receive(size_t prompt, engine::Output&& output) {
  bool has_to_post = false;
  {
    std::lock_guard lock(mutex_);
    inbox_.emplace_back(prompt, std::move(output));
    if (is_started_ && !is_working_) has_to_post = is_working_ = true;
  }
  if (has_to_post) context_.post([self = shared_from_this()] { self->work(); });
}

void Generation::work() {
  for (;;) {
    std::deque<std::pair<size_t, engine::Output>> batch;
    {
      std::lock_guard lock(mutex_);
      if (inbox_.empty()) {
        is_working_ = false;
        return;
      }
      batch.swap(inbox_);
    }
    for (auto& [prompt, output] : batch) {
      if (has_ended_) break;
      try {
        process(prompt, output);
      } catch (const ApiError& e) {
        fail(e);
      } catch (const std::exception& e) {
        base::log_error("generation: {}", e.what());
        fail(ApiError(500, "internal error"));
      }
    }
  }
}

void Generation::process_tokens(Choice& choice, engine::Output& output, Delta& delta) {
  std::string text;
  for (const engine::OutputToken& token : output.tokens) {
    const auto& kept = options_.kept_special;
    if (std::find(kept.begin(), kept.end(), token.token) != kept.end()) {
      text += choice.decoder.finish() + context_.tokenizer->token_text(token.token);
    } else {
      text += choice.decoder.push(token.token);
    }
  }
  delta.text = choice.cutter.push(text);
  choice.result.tokens.insert(choice.result.tokens.end(), output.tokens.begin(), output.tokens.end());
  delta.tokens = std::move(output.tokens);
}

void Generation::finish_choice(Choice& choice, const engine::Output& output, Delta& delta) {
  using engine::FinishReason;
  switch (output.finish) {
    case FinishReason::error:
      throw ApiError(500, "generation failed: " + output.error);
    case FinishReason::deadline:
      throw ApiError(504, "the request took longer than its time limit", "timeout", "timeout");
    case FinishReason::cancelled: {
      ApiError error(503, "the request was cancelled: the server shuts down", "", "cancelled");
      error.retry_after_seconds = 5;
      throw error;
    }
    default:
      break;
  }
  delta.text += choice.cutter.push(choice.decoder.finish());
  delta.text += choice.cutter.finish();
  delta.stop_text = choice.cutter.stop_text();
  delta.finish = output.finish == FinishReason::length && !choice.cutter.has_stopped() ? "length" : "stop";
  choice.result.finish = delta.finish;
  choice.result.stop_text = delta.stop_text;
  choice.has_ended = true;
  ++num_ended_;
  if (output.choice == 0) {
    usage_.prompt_tokens += output.usage.prompt_tokens;
    usage_.cached_tokens += output.usage.cached_tokens;
  }
  usage_.output_tokens += output.usage.output_tokens;
  if (context_.metrics)
    context_.metrics->record(output, static_cast<int64_t>(choice.result.tokens.size()), seconds_since(started_));
}

void Generation::process(size_t prompt, engine::Output& output) {
  const size_t index = prompt * static_cast<size_t>(choices_per_prompt_) + static_cast<size_t>(output.choice);
  Choice& choice = *choices_.at(index);
  if (choice.has_ended) return;
  // A prompt that is computed in chunks comes in several events.
  for (engine::OutputToken& token : output.prompt_tokens) choice.result.prompt_tokens.push_back(std::move(token));
  Delta delta{.index = static_cast<int>(index)};
  const bool was_first = choice.result.tokens.empty() && !output.tokens.empty();
  const auto num_new = static_cast<int64_t>(output.tokens.size());
  process_tokens(choice, output, delta);
  if (num_new > 0 && context_.metrics) {
    if (was_first) {
      context_.metrics->record_first_token(output);
    } else {
      context_.metrics->record_gap(seconds_since(choice.last_token), num_new);
    }
    choice.last_token = engine::Clock::now();
  }
  if (output.finish != engine::FinishReason::none) finish_choice(choice, output, delta);
  choice.result.text += delta.text;
  if (responder_->streams() && (!delta.text.empty() || !delta.finish.empty() || !delta.tokens.empty())) {
    const std::string text = responder_->event(delta);
    if (!text.empty() && !reply_->write(text)) cancel_all();
  }
  if (num_ended_ == choices_.size()) end_all();
}

void Generation::end_all() {
  has_ended_ = true;
  if (responder_->streams()) {
    reply_->write(responder_->end(usage_));
    reply_->finish();
    return;
  }
  std::vector<ChoiceResult> results;
  for (auto& choice : choices_) results.push_back(std::move(choice->result));
  reply_->send(200, "application/json", responder_->whole(results, usage_));
}

void Generation::fail(const ApiError& error) {
  has_ended_ = true;
  cancel_all();
  if (responder_->streams()) {
    reply_->write(responder_->error_event(error));
    reply_->finish();
    return;
  }
  Headers headers;
  if (error.retry_after_seconds > 0)
    headers.emplace_back("Retry-After", std::to_string(static_cast<int64_t>(error.retry_after_seconds + 0.999)));
  reply_->send(error.status, "application/json", responder_->error_body(error), headers);
}

}  // namespace sinter::server
