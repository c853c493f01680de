#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <mutex>
#include <sstream>

namespace sinter::server {
namespace {
using Buckets = prometheus::Histogram::BucketBoundaries;
const Buckets kSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
const Buckets kTokens{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

// Shared blocks hold a token for each of their sequences: then there is less than no waste, shown as none.
double waste_of(int64_t tokens, int64_t places) {
  return places > 0 ? std::max(0.0, 1 - static_cast<double>(tokens) / static_cast<double>(places)) : 0;
}
}  // namespace

// Names are vLLM's with our prefix.
struct Metrics::State {
  prometheus::Registry registry;
  prometheus::Labels labels;
  double bandwidth;
  std::mutex mutex;
  double last_bytes = 0, last_seconds = 0;  // of the steps up to the last text()

  State(const std::string& model, double bandwidth) : labels{{"model_name", model}}, bandwidth(bandwidth) {}

  prometheus::Histogram& histogram(const std::string& name, const std::string& help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name("sinter:" + name).Help(help).Register(registry).Add(labels, buckets);
  }
  prometheus::Gauge& gauge(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge().Name("sinter:" + name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Counter& counter(const std::string& name, const std::string& help) {
    return prometheus::BuildCounter().Name("sinter:" + name).Help(help).Register(registry).Add(labels);
  }

  prometheus::Histogram& first = histogram("time_to_first_token_seconds", "From arrival to the first token", kSeconds);
  prometheus::Histogram& queue = histogram("request_queue_time_seconds", "From arrival to the first step", kSeconds);
  prometheus::Histogram& prefill =
      histogram("request_prefill_time_seconds", "From the first step to the first token", kSeconds);
  prometheus::Histogram& gap = histogram("inter_token_latency_seconds", "Between the tokens of a choice", kSeconds);
  prometheus::Histogram& whole =
      histogram("e2e_request_latency_seconds", "From arrival to the end of a choice", kSeconds);
  prometheus::Histogram& http =
      histogram("http_request_duration_seconds", "From the request's last byte to the reply's", kSeconds);
  prometheus::Histogram& prompt = histogram("request_prompt_tokens", "Prompt tokens of a request", kTokens);
  prometheus::Histogram& generation = histogram("request_generation_tokens", "Output tokens of a choice", kTokens);
  prometheus::Family<prometheus::Counter>& success = prometheus::BuildCounter()
                                                         .Name("sinter:request_success_total")
                                                         .Help("Choices by what ended them")
                                                         .Register(registry);
  prometheus::Family<prometheus::Counter>& replies = prometheus::BuildCounter()
                                                         .Name("sinter:http_replies_total")
                                                         .Help("Replies by route and status")
                                                         .Register(registry);
  prometheus::Gauge& running = gauge("num_requests_running", "Sequences that take part in steps");
  prometheus::Gauge& waiting = gauge("num_requests_waiting", "Sequences in the queue");
  prometheus::Gauge& usage = gauge("kv_cache_usage_perc", "Used share of the cache's blocks, 0 to 1");
  prometheus::Gauge& waste =
      gauge("kv_cache_waste_perc", "Share of the used blocks' places that hold no token, 0 to 1");
  prometheus::Gauge& contiguous =
      gauge("kv_cache_contiguous_waste_perc", "The same if each sequence had its longest length preallocated");
  prometheus::Gauge& age = gauge("last_step_age_seconds", "Since the last step ended");
  prometheus::Counter& preemptions = counter("num_preemptions_total", "Sequences that gave their blocks back");
  prometheus::Counter& queries = counter("prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache");
  prometheus::Counter& hits = counter("prefix_cache_hits_total", "Prompt tokens found in the prefix cache");
  prometheus::Counter& prompt_total = counter("prompt_tokens_total", "Prompt tokens computed");
  prometheus::Counter& generation_total = counter("generation_tokens_total", "Tokens chosen");
  prometheus::Counter& steps = counter("num_steps_total", "Steps of the engine");
  prometheus::Counter& refused = counter("requests_refused_total", "Requests refused because the queue was full");
  prometheus::Counter& model_seconds = counter("model_seconds_total", "Time in the model's forward");
  prometheus::Counter& model_bytes =
      counter("model_read_bytes_total", "Weights and keys that the model's forwards had to read");
  prometheus::Gauge& rate =
      gauge("model_read_bytes_per_second", "Bytes read per second of the forwards since the last look");
  prometheus::Gauge& share = gauge("memory_bandwidth_usage_perc", "The same as a share of --memory-bandwidth, 0 to 1");
};

Metrics::Metrics(const std::string& model_name, double memory_bytes_per_second)
    : state_(std::make_unique<State>(model_name, memory_bytes_per_second)) {}
Metrics::~Metrics() = default;

void Metrics::record_first_token(const engine::Output& output) {
  state_->first.Observe(output.queue_seconds + output.prefill_seconds);
  state_->queue.Observe(output.queue_seconds);
  state_->prefill.Observe(output.prefill_seconds);
}

void Metrics::record_gap(double seconds, int64_t num_tokens) {
  if (num_tokens < 1) return;
  // Several at once (structured output): each took its part.
  for (int64_t i = 0; i < num_tokens; ++i) state_->gap.Observe(seconds / static_cast<double>(num_tokens));
}

void Metrics::record(const engine::Output& output, int64_t num_tokens, double seconds) {
  state_->whole.Observe(seconds);
  state_->prompt.Observe(static_cast<double>(output.usage.prompt_tokens));
  state_->generation.Observe(static_cast<double>(num_tokens));
  auto labels = state_->labels;
  labels["finished_reason"] = engine::finish_reason_name(output.finish);
  state_->success.Add(labels).Increment();
}

void Metrics::record_reply(const std::string& route, int status, double seconds) {
  state_->http.Observe(seconds);
  state_->replies.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
}

std::string Metrics::text(const engine::EngineStats& s) {
  auto set = [](prometheus::Counter& counter, double value) {
    if (value > counter.Value()) counter.Increment(value - counter.Value());
  };
  State& m = *state_;
  const std::lock_guard lock(m.mutex);  // two at once would count what is new twice
  m.running.Set(static_cast<double>(s.running));
  m.waiting.Set(static_cast<double>(s.waiting));
  m.usage.Set(s.kv_blocks > 0 ? static_cast<double>(s.kv_blocks_used) / static_cast<double>(s.kv_blocks) : 0);
  m.waste.Set(waste_of(s.kv_tokens_used, s.kv_blocks_used * s.block_size));
  m.contiguous.Set(waste_of(s.kv_tokens_used, s.contiguous_tokens));
  m.age.Set(s.last_step_age_seconds);
  set(m.preemptions, static_cast<double>(s.preemptions));
  set(m.queries, static_cast<double>(s.prompt_tokens + s.cached_tokens));
  set(m.hits, static_cast<double>(s.cached_tokens));
  set(m.prompt_total, static_cast<double>(s.prompt_tokens));
  set(m.generation_total, static_cast<double>(s.output_tokens));
  set(m.steps, static_cast<double>(s.num_steps));
  set(m.refused, static_cast<double>(s.refused));
  set(m.model_seconds, s.model_seconds);
  set(m.model_bytes, s.bytes_read);
  if (const double seconds = s.model_seconds - m.last_seconds; seconds > 0) {
    const double rate = (s.bytes_read - m.last_bytes) / seconds;
    m.rate.Set(rate);
    m.share.Set(m.bandwidth > 0 ? rate / m.bandwidth : 0);
    m.last_bytes = s.bytes_read, m.last_seconds = s.model_seconds;
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, m.registry.Collect());
  return out.str();
}

}  // namespace sinter::server
