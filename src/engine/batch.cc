#include "engine/batch.h"

#include <algorithm>
#include <unordered_map>

namespace sinter::engine {
namespace {

// Requests of one run, submitted as the queue has room.
class BatchRun {
 public:
  BatchRun(Engine& engine, std::vector<Request> requests, const BatchCallbacks& callbacks)
      : engine_(engine), requests_(std::move(requests)), callbacks_(callbacks), results_(requests_.size()) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      engine.check(requests_[i], fmt::format("request {}", i));
      results_[i].resize(static_cast<size_t>(requests_[i].n));
      num_left_ += requests_[i].n;
    }
  }

  std::vector<std::vector<Completion>> run() {
    try {
      while (num_left_ > 0) {
        submit_some();
        engine_.step();
        for (Output& output : engine_.take_outputs()) take(std::move(output));
      }
    } catch (...) {
      for (const auto& [id, index] : index_) engine_.cancel(id);
      try {
        engine_.step();
      } catch (const std::exception&) {  // the first error is the one to tell
      }
      engine_.take_outputs();
      throw;
    }
    return std::move(results_);
  }

 private:
  void submit_some() {
    while (next_ < requests_.size()) {
      Request& request = requests_[next_];
      const EngineStats now = engine_.stats();
      const int64_t choices = std::max(request.n, request.best_of);
      const auto tokens = static_cast<int64_t>(request.prompt.size()) * choices;
      const EngineOptions& o = engine_.options();
      const bool fits = now.waiting + choices <= o.max_waiting && now.waiting_tokens + tokens <= o.max_waiting_tokens;
      if (!fits && now.has_work) return;
      Request own = std::move(request);
      own.on_output = {};
      index_[engine_.submit(std::move(own))] = next_++;
    }
  }

  void take(Output&& out) {
    const auto found = index_.find(out.id);
    if (found == index_.end()) return;
    const size_t i = found->second;
    Completion& c = results_[i][static_cast<size_t>(out.choice)];
    for (OutputToken& token : out.prompt_tokens) c.prompt_tokens.push_back(std::move(token));
    for (OutputToken& token : out.tokens) {
      c.tokens.push_back(token.token);
      if (requests_[i].logprobs >= 0) c.logprobs.push_back(token.logprob);
      if (callbacks_.on_token && !callbacks_.on_token(i, out.choice, token.token))
        ended_by_caller_.insert_or_assign(out.id, c.tokens.size());
      if (requests_[i].logprobs > 0) c.details.push_back(std::move(token));
    }
    if (ended_by_caller_.contains(out.id) && out.finish == FinishReason::none) engine_.cancel(out.id);
    if (out.finish == FinishReason::none) return;
    c.reason =
        out.finish == FinishReason::cancelled && ended_by_caller_.contains(out.id) ? FinishReason::stop : out.finish;
    c.stop_token = out.stop_token;
    c.stop_string = out.stop_string;
    c.usage = out.usage;
    c.error = std::move(out.error);
    --num_left_;
    SINTER_CHECK(c.reason != FinishReason::error, "request {}: {}", i, c.error);
    if (callbacks_.on_completion) callbacks_.on_completion(i, out.choice, c);
  }

  Engine& engine_;
  std::vector<Request> requests_;
  const BatchCallbacks& callbacks_;
  std::vector<std::vector<Completion>> results_;
  std::unordered_map<RequestId, size_t> index_;
  std::unordered_map<RequestId, size_t> ended_by_caller_;
  size_t next_ = 0;
  int64_t num_left_ = 0;
};

}  // namespace

std::vector<std::vector<Completion>> run_batch(Engine& engine, std::vector<Request> requests,
                                               const BatchCallbacks& callbacks) {
  return BatchRun(engine, std::move(requests), callbacks).run();
}

std::vector<TokenScore> score(Engine& engine, const std::vector<ScoreRequest>& requests,
                              const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<Request> asked;
  for (size_t i = 0; i < requests.size(); ++i) {
    SINTER_CHECK(!requests[i].context.empty() && !requests[i].continuation.empty(),
                 "request {}: context and continuation need a token each, found {} and {}", i,
                 requests[i].context.size(), requests[i].continuation.size());
    Request& r = asked.emplace_back();
    r.prompt = requests[i].context;
    r.prompt.insert(r.prompt.end(), requests[i].continuation.begin(), requests[i].continuation.end());
    r.max_new_tokens = 0;
    r.prompt_logprobs = 0;
    r.prompt_logprobs_from = static_cast<int64_t>(requests[i].context.size());
    r.adapter = requests[i].adapter;
  }
  const auto total = static_cast<int64_t>(asked.size());
  int64_t done = 0;
  BatchCallbacks callbacks;
  callbacks.on_completion = [&](size_t, int32_t, const Completion&) {
    if (progress) progress(++done, total);
  };
  const auto completions = run_batch(engine, std::move(asked), callbacks);
  std::vector<TokenScore> scores(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    scores[i].is_greedy = true;
    for (const OutputToken& token : completions[i][0].prompt_tokens) {
      scores[i].logprobs.push_back(token.logprob);
      scores[i].logprob += static_cast<double>(token.logprob);
      scores[i].is_greedy &= token.rank == 0;
    }
  }
  return scores;
}

}  // namespace sinter::engine
