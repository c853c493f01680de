#include "bench/serve_load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "io/http_client.h"

namespace sinter::bench {
namespace {

// Moments at which pieces of an answer came.
class Arrivals {
 public:
  Arrivals(LoadOutcome& outcome, double due) : outcome_(outcome), due_(due) {}
  void piece() {
    const double now = now_seconds();
    if (last_ == 0) {
      outcome_.first_token_seconds = now - due_;
    } else {
      outcome_.gap_seconds.push_back(now - last_);
    }
    last_ = now;
  }
  void end() { outcome_.end_seconds = now_seconds() - due_; }

 private:
  LoadOutcome& outcome_;
  double due_, last_ = 0;
};

class UrlTarget final : public LoadTarget {
 public:
  UrlTarget(const std::string& url, std::string model, const std::string& api_key)
      : client_(url, io::with_api_key(api_key)), model_(std::move(model)) {}

  LoadOutcome ask(const LoadRequest& request, double due) override {
    nlohmann::json body{{"max_tokens", request.max_tokens},
                        {"temperature", 0},
                        {"ignore_eos", true},
                        {"stream", true},
                        {"stream_options", {{"include_usage", true}}}};
    if (!model_.empty()) body["model"] = model_;
    if (request.ids.empty()) {
      body["prompt"] = request.text;
    } else {
      body["prompt"] = request.ids;
    }
    LoadOutcome outcome;
    Arrivals arrivals(outcome, due);
    std::string held;
    try {
      const io::HttpAnswer reply = client_.post_json("/v1/completions", body.dump(), [&](std::string_view piece) {
        held += piece;
        for (size_t end = held.find("\n\n"); end != std::string::npos; end = held.find("\n\n")) {
          take_event(held.substr(0, end), outcome, arrivals);
          held.erase(0, end + 2);
        }
      });
      outcome.status = reply.status;
      outcome.retry_after_seconds = reply.retry_after_seconds;
      if (reply.status != 200) outcome.error = reply.body.substr(0, 300);
    } catch (const base::Error& e) {
      outcome.status = 0;
      outcome.error = e.what();
    }
    arrivals.end();
    return outcome;
  }

 private:
  static void take_event(const std::string& event, LoadOutcome& outcome, Arrivals& arrivals) {
    if (!event.starts_with("data: ") || event == "data: [DONE]") return;
    const nlohmann::json data = nlohmann::json::parse(event.substr(6), nullptr, false);
    if (!data.is_object()) return;
    if (data.contains("error")) base::fail("the stream ended with {}", data["error"].dump());
    if (data.contains("choices") && !data["choices"].empty()) arrivals.piece();
    if (!data.contains("usage") || !data["usage"].is_object()) return;
    outcome.prompt_tokens = data["usage"].value("prompt_tokens", int64_t{0});
    outcome.output_tokens = data["usage"].value("completion_tokens", int64_t{0});
  }

  io::HttpClient client_;
  std::string model_;
};

class EngineTarget final : public LoadTarget {
 public:
  EngineTarget(engine::Engine& engine, engine::EngineLoop& loop) : engine_(engine), loop_(loop) {}

  LoadOutcome ask(const LoadRequest& request, double due) override {
    // Shared with the engine's callback, which may outlive an error here.
    struct Shared {
      std::mutex mutex;
      std::condition_variable ended;
      LoadOutcome outcome;
      bool has_ended = false;
    };
    auto shared = std::make_shared<Shared>();
    auto arrivals = std::make_shared<Arrivals>(shared->outcome, due);
    engine::Request asked{.prompt = request.ids, .max_new_tokens = request.max_tokens};
    asked.sampling.temperature = 0;
    asked.on_output = [shared, arrivals](engine::Output&& output) {
      const std::lock_guard lock(shared->mutex);
      if (!output.tokens.empty()) arrivals->piece();
      if (output.finish == engine::FinishReason::none) return;
      shared->outcome.prompt_tokens = output.usage.prompt_tokens;
      shared->outcome.output_tokens = output.usage.output_tokens;
      const bool is_right =
          output.finish == engine::FinishReason::length || output.finish == engine::FinishReason::stop;
      shared->outcome.status = is_right ? 200 : 500;
      shared->outcome.error = output.error;
      shared->has_ended = true;
      shared->ended.notify_all();
    };
    try {
      loop_.submit(std::move(asked));
    } catch (const engine::QueueFull& e) {
      return {.status = 429,
              .error = e.what(),
              .end_seconds = now_seconds() - due,
              .retry_after_seconds = e.retry_after_seconds};
    }
    std::unique_lock lock(shared->mutex);
    shared->ended.wait(lock, [&] { return shared->has_ended; });
    arrivals->end();
    return shared->outcome;
  }

 private:
  engine::Engine& engine_;
  engine::EngineLoop& loop_;
};

void sleep_until(double when) {
  const double left = when - now_seconds();
  if (left > 0) std::this_thread::sleep_for(std::chrono::duration<double>(left));
}

double seconds_per_token(const LoadOutcome& o) {
  return o.output_tokens > 1 ? (o.end_seconds - o.first_token_seconds) / static_cast<double>(o.output_tokens - 1) : 0;
}

}  // namespace

MakeTarget url_target(const std::string& url, const std::string& model, const std::string& api_key) {
  return [=] { return std::make_unique<UrlTarget>(url, model, api_key); };
}

MakeTarget engine_target(engine::Engine& engine, engine::EngineLoop& loop) {
  return [&] { return std::make_unique<EngineTarget>(engine, loop); };
}

std::vector<LoadRequest> random_requests(int64_t count, int64_t prompt_tokens, int64_t output_tokens, int64_t vocab,
                                         double rate, uint64_t seed) {
  const base::CounterRng tokens{seed, 1}, times{seed, 2};
  std::vector<LoadRequest> requests(static_cast<size_t>(count));
  uint64_t drawn = 0;
  double at = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    LoadRequest& r = requests[i];
    r.max_tokens = output_tokens;
    for (int64_t t = 0; t < prompt_tokens; ++t)
      r.ids.push_back(static_cast<int32_t>(tokens.bits(drawn++) % static_cast<uint64_t>(vocab)));
    if (rate <= 0) continue;
    r.at_seconds = at;
    at += -std::log(1.0 - static_cast<double>(times.uniform(i))) / rate;
  }
  return requests;
}

std::vector<LoadRequest> read_requests(const std::string& path, int64_t output_tokens) {
  std::ifstream file(path);
  SINTER_CHECK(file.good(), "cannot open '{}'", path);
  std::vector<LoadRequest> requests;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string origin = fmt::format("{}:{}", path, number);
    const nlohmann::json j = base::parse_json(line, origin);
    SINTER_CHECK(j.is_object() && j.contains("prompt"), "{}: expected an object with a \"prompt\"", origin);
    LoadRequest r{.max_tokens = output_tokens};
    try {
      if (j["prompt"].is_string()) {
        r.text = j["prompt"].get<std::string>();
      } else {
        r.ids = j["prompt"].get<std::vector<int32_t>>();
      }
      r.max_tokens = j.value("max_tokens", output_tokens);
      r.at_seconds = j.value("at", -1.0);
    } catch (const nlohmann::json::exception&) {
      base::fail("{}: expected \"prompt\" as a text or token ids, \"max_tokens\" and \"at\" as numbers", origin);
    }
    SINTER_CHECK(!r.text.empty() || !r.ids.empty(), "{}: the prompt is empty", origin);
    requests.push_back(std::move(r));
  }
  SINTER_CHECK(!requests.empty(), "'{}' has no requests; expected lines like {{\"prompt\": \"Once upon\"}}", path);
  std::stable_sort(requests.begin(), requests.end(),
                   [](const LoadRequest& a, const LoadRequest& b) { return a.at_seconds < b.at_seconds; });
  return requests;
}

LoadResult run_load(const MakeTarget& make_target, const std::vector<LoadRequest>& requests,
                    const LoadOptions& options) {
  LoadResult result;
  std::mutex mutex;
  std::atomic<size_t> next{0};
  base::ProgressLine progress;
  const double start = now_seconds();
  auto client = [&] {
    base::leave_pool();
    const std::unique_ptr<LoadTarget> target = make_target();
    for (;;) {
      const size_t i = next++;
      if (options.seconds > 0 ? now_seconds() - start >= options.seconds : i >= requests.size()) return;
      const LoadRequest& request = requests[i % requests.size()];
      const double due = request.at_seconds >= 0 && i < requests.size() ? start + request.at_seconds : now_seconds();
      sleep_until(due);
      LoadOutcome outcome = target->ask(request, due);
      const bool waits = outcome.status == 429 && options.repeats_refused && request.at_seconds < 0;
      const double pause = std::min(options.most_retry_seconds, outcome.retry_after_seconds);
      {
        const std::lock_guard lock(mutex);
        result.outcomes.push_back(std::move(outcome));
        progress.update(fmt::format("{} answered", base::format_grouped(static_cast<int64_t>(result.outcomes.size()))));
      }
      if (waits) sleep_until(now_seconds() + pause);
    }
  };
  std::vector<std::thread> clients;
  for (int64_t c = 0; c < options.clients; ++c) clients.emplace_back(client);
  for (std::thread& thread : clients) thread.join();
  result.seconds = now_seconds() - start;
  return result;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<size_t>(at, 1, values.size()) - 1];
}

Report rates_report(const LoadResult& result, const LoadOptions& options) {
  double done = 0, refused = 0, failed = 0, good = 0, prompt = 0, output = 0;
  for (const LoadOutcome& o : result.outcomes) {
    if (o.status == 429) {
      ++refused;
    } else if (o.status != 200) {
      ++failed;
    } else {
      ++done;
      prompt += static_cast<double>(o.prompt_tokens);
      output += static_cast<double>(o.output_tokens);
      good += o.first_token_seconds <= options.most_first_token_seconds &&
              seconds_per_token(o) <= options.most_token_seconds;
    }
  }
  const double seconds = std::max(result.seconds, 1e-9);
  Report report{.name = "serve_rates", .title = "Requests and tokens"};
  report.columns = {{"requests", "answered", 0},
                    {"refused", "refused (429)", 0},
                    {"failed", "failed", 0},
                    {"seconds", "seconds", 2},
                    {"requests_per_second", "requests/s", 2},
                    {"goodput_per_second", "good requests/s", 2},
                    {"prompt_tokens_per_second", "prompt tokens/s", 1},
                    {"output_tokens_per_second", "output tokens/s", 1}};
  report.rows = {
      {done, refused, failed, result.seconds, done / seconds, good / seconds, prompt / seconds, output / seconds}};
  return report;
}

Report latency_report(const LoadResult& result) {
  std::vector<double> first, gaps, per_token, whole;
  for (const LoadOutcome& o : result.outcomes) {
    if (o.status != 200) continue;
    first.push_back(o.first_token_seconds);
    whole.push_back(o.end_seconds);
    if (o.output_tokens > 1) per_token.push_back(seconds_per_token(o));
    gaps.insert(gaps.end(), o.gap_seconds.begin(), o.gap_seconds.end());
  }
  Report report{.name = "serve_latency", .title = "What clients see, ms"};
  report.columns = {{"what", "time"},     {"mean_ms", "mean", 2}, {"p50_ms", "p50", 2}, {"p90_ms", "p90", 2},
                    {"p95_ms", "p95", 2}, {"p99_ms", "p99", 2},   {"max_ms", "max", 2}};
  auto add = [&](const char* what, const std::vector<double>& values) {
    double sum = 0;
    for (double v : values) sum += v;
    const double mean = values.empty() ? 0 : sum / static_cast<double>(values.size());
    report.rows.push_back({what, 1e3 * mean, 1e3 * percentile(values, 0.5), 1e3 * percentile(values, 0.9),
                           1e3 * percentile(values, 0.95), 1e3 * percentile(values, 0.99),
                           1e3 * percentile(values, 1)});
  };
  add("to the first token", first);
  add("between pieces", gaps);
  add("per token after the first", per_token);
  add("to the end", whole);
  return report;
}

}  // namespace sinter::bench
