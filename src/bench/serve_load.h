// Load on an engine or a server, and what its users see of it: time to the first token, between tokens, to the end.
#pragma once
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/report.h"
#include "engine/engine_loop.h"

namespace sinter::bench {

// One request of a load.
struct LoadRequest {
  std::vector<int32_t> ids;  // prompt as token ids ...
  std::string text;          // ... or as text, where ids is empty
  int64_t max_tokens = 0;
  double at_seconds = -1;  // when it is sent, from the beginning; < 0: as soon as a client is free
};

// What a client saw. Times are seconds from when the request was due, so that a load that cannot be sent in time shows.
struct LoadOutcome {
  int status = 0;  // 200, 429 or another; 0: no answer
  std::string error;
  double first_token_seconds = 0, end_seconds = 0;
  double retry_after_seconds = 0;   // with 429
  std::vector<double> gap_seconds;  // between pieces of the answer
  int64_t prompt_tokens = 0, output_tokens = 0;
};

// Something that answers. ask() blocks; each client thread has its own.
class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // `due` in bench::now_seconds().
  virtual LoadOutcome ask(const LoadRequest& request, double due) = 0;
};
using MakeTarget = std::function<std::unique_ptr<LoadTarget>()>;
// /v1/completions of a server, streamed; `api_key` may be empty. `model` as the server calls it.
MakeTarget url_target(const std::string& url, const std::string& model, const std::string& api_key);
// An engine in this process; the loop and the engine must outlive the target.
MakeTarget engine_target(engine::Engine& engine, engine::EngineLoop& loop);

struct LoadOptions {
  int64_t clients = 8;            // that ask at once; with given times the most that are under way
  double seconds = 0;             // stop asking after this; 0: when all requests were sent
  bool repeats_refused = true;    // a client that got 429 waits Retry-After and asks again, as its next request
  double most_retry_seconds = 1;  // it waits no longer than this
  // What counts as good: goodput is the rate of requests that stayed within both.
  double most_first_token_seconds = 1, most_token_seconds = 0.1;
};

struct LoadResult {
  std::vector<LoadOutcome> outcomes;
  double seconds = 0;
};

// Requests whose prompts are random tokens below `vocab`. rate > 0: arrivals of a Poisson process of that many a
// second.
std::vector<LoadRequest> random_requests(int64_t count, int64_t prompt_tokens, int64_t output_tokens, int64_t vocab,
                                         double rate, uint64_t seed);
// JSON lines: {"prompt": text or ids, "max_tokens": n, "at": seconds}; the last two may be left out.
std::vector<LoadRequest> read_requests(const std::string& path, int64_t output_tokens);

// Sends them from client threads, in order; with options.seconds round and round until then.
LoadResult run_load(const MakeTarget& make_target, const std::vector<LoadRequest>& requests,
                    const LoadOptions& options);

// The value that a share of them is not above; 0 where there are none.
double percentile(std::vector<double> values, double share);
// Rates and counts, then percentiles of each time.
Report rates_report(const LoadResult& result, const LoadOptions& options);
Report latency_report(const LoadResult& result);

}  // namespace sinter::bench
