// One HTTP request's generation: prompts go to the engine, tokens come back as text, on HTTP threads.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "server/api_error.h"
#include "server/http.h"
#include "tokenizer/tokenizer.h"

namespace sinter::server {

class Metrics;

// Text up to a stop text; what may be the beginning of one is held back.
class StopCutter {
 public:
  StopCutter(std::vector<std::string> stops, bool includes_stop)
      : stops_(std::move(stops)), includes_stop_(includes_stop) {}
  std::string push(std::string_view text);
  std::string finish();
  bool has_stopped() const { return has_stopped_; }
  const std::string& stop_text() const { return stop_text_; }  // the one that was found; "": none

 private:
  std::vector<std::string> stops_;
  bool includes_stop_, has_stopped_ = false;
  std::string stop_text_;
  std::string held_;
};

// What is new of one choice.
struct Delta {
  int index = 0;
  std::string text;
  std::vector<engine::OutputToken> tokens;
  std::string finish;     // "stop", "length"; "" goes on
  std::string stop_text;  // the stop text that ended it
};

struct ChoiceResult {
  std::string text;
  std::vector<engine::OutputToken> tokens, prompt_tokens;
  std::string finish, stop_text;
};

struct TotalUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
};

// Writes the answer in one API's form. Called on one thread at a time.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual bool streams() const = 0;
  // Streams: the beginning, each delta and the end as events. Return what to write.
  virtual std::string begin() { return ""; }
  virtual std::string event(const Delta& delta) { return ""; }
  virtual std::string end(const TotalUsage& usage) { return ""; }
  virtual std::string error_event(const ApiError& error) = 0;
  // Not streamed: the whole answer, and errors.
  virtual std::string whole(const std::vector<ChoiceResult>& choices, const TotalUsage& usage) = 0;
  virtual std::string error_body(const ApiError& error) = 0;
};

// EngineLoop::submit with its refusals as ApiErrors: 429, 503 or 400.
engine::RequestId submit_request(engine::EngineLoop& loop, engine::Request request);

// Runs `task` on an HTTP thread, soon.
using Post = std::function<void(std::function<void()> task)>;

struct GenerationContext {
  engine::EngineLoop* loop = nullptr;
  const tokenizer::Tokenizer* tokenizer = nullptr;
  Metrics* metrics = nullptr;  // may be null
  Post post;
};

struct GenerationOptions {
  bool skips_special = true, includes_stop = false;
  std::vector<int32_t> kept_special;  // shown all the same: markers of tool calls
  bool skips_prompt_space = true;     // text follows the prompt's
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationContext context, std::shared_ptr<Reply> reply, std::unique_ptr<Responder> responder,
             GenerationOptions options);
  ~Generation();
  // Submits all; throws ApiError (429, 503, 400), having cancelled those that were submitted. After that the reply is
  // this object's.
  void start(std::vector<engine::Request> requests);

 private:
  struct Choice;
  void receive(size_t prompt, engine::Output&& output);  // on the engine's thread
  void work();
  void process(size_t prompt, engine::Output& output);
  void process_tokens(Choice& choice, engine::Output& output, Delta& delta);
  void finish_choice(Choice& choice, const engine::Output& output, Delta& delta);
  void end_all();
  void fail(const ApiError& error);
  void cancel_all();

  GenerationContext context_;
  std::shared_ptr<Reply> reply_;
  std::unique_ptr<Responder> responder_;
  GenerationOptions options_;
  std::vector<engine::RequestId> ids_;
  std::vector<std::unique_ptr<Choice>> choices_;
  int choices_per_prompt_ = 1;
  size_t num_ended_ = 0;
  TotalUsage usage_;
  const engine::Clock::time_point started_ = engine::Clock::now();
  bool has_ended_ = false;

  std::mutex mutex_;  // of what follows
  std::deque<std::pair<size_t, engine::Output>> inbox_;
  bool is_started_ = false, is_working_ = false;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace sinter::server
