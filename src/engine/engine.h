// The engine: requests in, tokens out, many at once over one paged cache. No HTTP, no text but for stop strings.
//
//   submit   any thread   checks a request and puts it into a bounded queue
//   cancel   any thread   takes effect at the next step, in whatever state the request is
//   step     ONE thread   gives tokens to requests under one budget, runs the model once, hands out what came of it
//
// A request's tokens depend on the model, the prompt, the options and the seed only: not on what else is in the batch,
// how its prompt was cut, what was found in the prefix cache or whether it was preempted.
//
// EngineLoop (engine/engine_loop.h) runs the steps on a thread; engine/batch.h runs a list of requests to their end and
// scores given continuations.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/request.h"
#include "models/transformer.h"
#include "tokenizer/tokenizer.h"

namespace sinter::engine {

class StepModel;

struct EngineOptions {
  int64_t kv_tokens = 0;       // room in the cache, in tokens; 0: from kv_bytes
  int64_t kv_bytes = 0;        // 0: a full context for each of max_running, at most 40 % of the device's free memory
  int64_t block_size = 16;     // tokens of a cache block
  int64_t step_tokens = 512;   // most tokens of one step, prefill and decode together
  int64_t max_running = 64;    // sequences that take part in steps at once
  int64_t max_waiting = 1024;  // choices beside max_running that may wait; more are refused with QueueFull
  int64_t max_waiting_tokens = int64_t{1} << 22;  // prompt tokens in the queue, likewise
  int64_t max_choices = 128;                      // n and best_of of one request
  int64_t max_logprobs = 64;
  bool checks_every_step = false;  // count every block's holders at every step, not every 64th
  bool fixed_shapes = false;       // pad steps to few shapes, as replayed graphs need them
  // Enqueue a step before the tokens of the one before have come, where the model chooses them itself.
  bool looks_ahead = true;
  bool prefix_cache = true;  // off: only the choices of one request share blocks
  int64_t vocab_limit = 0;   // choose only tokens below this: models pad their vocabulary. 0 = all
  // Of the cache (core/kv_format.h), but for the layers of `kv_plain_layers`; f32: the compute format.
  core::DType kv_format = core::DType::f32;
  std::vector<int64_t> kv_plain_layers;
  bool keeps_choices = false;  // what kernels choose by measuring is kept in a file (kernels/kept_choices.h)
  const tokenizer::Tokenizer* tokenizer = nullptr;  // for stop strings; must outlive the engine
};

// The queue is full: try again later (HTTP 429).
class QueueFull : public base::Error {
 public:
  QueueFull(const std::string& text, double seconds) : Error(text), retry_after_seconds(seconds) {}
  double retry_after_seconds;  // about the time until a place is free, by the rate of late
};
// The engine takes no more requests (HTTP 503).
class Draining : public base::Error {
 public:
  using Error::Error;
};

// Numbers since the start and of now, for metrics. Counts are of choices where not said otherwise.
struct EngineStats {
  int64_t num_steps = 0;
  int64_t submitted = 0, refused = 0;  // requests
  int64_t finished_stop = 0, finished_length = 0, cancelled = 0, expired = 0, failed = 0;
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;         // computed, cached ones and recomputation not counted
  int64_t cached_tokens = 0;         // prompt tokens found in the prefix cache
  int64_t recomputed_tokens = 0;     // computed again after a preemption
  int64_t output_tokens = 0;         // chosen
  int64_t waiting = 0, running = 0;  // now
  int64_t waiting_tokens = 0;        // prompt tokens of those that wait
  int64_t block_size = 0, kv_blocks = 0, kv_blocks_used = 0,
          kv_blocks_cached = 0;   // now; cached: free, but with a prefix to find
  int64_t kv_bytes = 0;           // of the whole cache
  int64_t kv_tokens_used = 0;     // tokens in used blocks, each block counted once per sequence that holds it
  int64_t contiguous_tokens = 0;  // what the same sequences would take preallocated to their longest length
  double bytes_read = 0;          // weights and keys that the steps had to read, by their shapes
  double schedule_seconds = 0, model_seconds = 0, sample_seconds = 0;
  double last_step_age_seconds = 0;  // since the last step ended
  bool has_work = false;
};

class Engine {
 public:
  // Over a transformer, which must outlive the engine; KV memory is taken here, once.
  Engine(const models::Transformer& transformer, const EngineOptions& options);
  // Over any model: tests.
  Engine(std::unique_ptr<StepModel> model, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // ---- any thread ----
  // Throws base::UsageError for options that make no sense, base::Error that begins with `name` for a prompt that is
  // empty, has a token outside the vocabulary or is too long for model or cache; all before anything is queued.
  void check(const Request& request, const std::string& name = "request") const;
  // check(), then into the queue. Throws QueueFull or Draining too.
  RequestId submit(Request request);
  // Its choices end with FinishReason::cancelled at the next step. A request that is not there is no error.
  void cancel(RequestId id);
  void cancel_all();  // those that were submitted before
  EngineStats stats() const;
  bool has_work() const;
  // No more requests from now on; those that are there go on.
  void drain();
  const EngineOptions& options() const;
  int64_t max_request_tokens() const;  // prompt and new tokens of one request that the cache has room for
  int64_t vocab_size() const;
  std::string describe() const;  // state in lines, for a dump

  // ---- one thread ----
  // One step: where it looks ahead the next one is enqueued before this one's tokens are waited for. False: there was
  // nothing to do. An error of one request ends that request; what the model throws ends
  // every request that ran, with the text, and is thrown on.
  bool step();
  // Outputs of requests without a callback, in order.
  std::vector<Output> take_outputs();

  // ---- the stepping thread, or any other between steps (they wait for the step that runs) ----
  // The model's weights are others now: cached prefixes are dropped, running requests compute theirs again.
  void weights_changed();
  // The same around what changes them: `change` runs between two steps. What it throws is thrown on; nothing is dropped
  // then.
  void change_weights(const std::function<void()>& change);
  // Gives back the memory of the cache; steps do nothing until take_memory(). Requests keep their tokens.
  void release_memory();
  void take_memory();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sinter::engine
