// What an engine holds, and its step. Internal to the engine.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_model.h"

namespace sinter::engine {

// A mutex whose holder, back at once for more, queues behind whoever waits: the loop takes it again and again.
class TurnMutex {
 public:
  void lock() {
    const std::lock_guard turn(next_);
    held_.lock();
  }
  void unlock() { held_.unlock(); }

 private:
  std::mutex next_, held_;
};

struct Engine::State {
  State(std::unique_ptr<StepModel> model, const EngineOptions& options);

  // ---- the step, on one thread, step_mutex held ----
  bool run_step();
  void take_inbox();                   // new requests and cancellations
  void expire(Clock::time_point now);  // deadlines
  struct Row {
    Sequence* sequence;  // null: it has ended meanwhile
    int64_t target;      // the token to score or to choose stands here
  };
  // A step from its schedule to its tokens.
  struct StepUnderWay {
    StepBatch batch;
    std::vector<Row> rows;
    std::vector<Sequence*> scheduled;  // null: likewise
    bool is_chosen_by_model = false;   // or it has no rows, and is waited for in the same way
    bool is_enqueued = false;          // the model works on it, or has
    bool is_awaited = false;           // StepModel::chosen() is still to be called for it
  };
  bool may_look_ahead() const;
  bool start_step();
  void end_step();
  void drop_steps();
  void fail_steps(const std::string& error);
  void build_batch(StepUnderWay& step);
  double bytes_of(const StepUnderWay& step) const;
  void describe_choices(StepUnderWay& step) const;
  void take_choices(StepUnderWay& step);
  void run_rows(StepUnderWay& step);
  void run_row_chunk(std::span<Row> rows, int64_t first);
  void finish(Sequence& s, FinishReason reason, const std::string& error = {});
  void publish();  // numbers for other threads
  struct Event {
    Output output;
    std::shared_ptr<RequestState> owner;
  };
  void deliver(std::vector<Event>& events);  // without the lock
  double retry_seconds() const;

  std::unique_ptr<StepModel> model;
  EngineOptions options;
  int64_t num_blocks = 0;
  Scheduler scheduler;
  bool has_memory = true;

  TurnMutex step_mutex;
  std::unordered_map<Sequence*, std::unique_ptr<Sequence>> sequences;
  std::unordered_map<RequestId, std::shared_ptr<RequestState>> requests;
  uint64_t next_number = 0;
  // At most two: one whose tokens are still to come, and the one behind it. Which is which goes back and forth.
  StepUnderWay steps[2];
  int64_t first_under_way = 0, num_under_way = 0;
  StepUnderWay& under_way(int64_t i) { return steps[(first_under_way + i) % 2]; }
  const StepUnderWay& under_way(int64_t i) const { return steps[(first_under_way + i) % 2]; }
  std::vector<int32_t> chosen;          // per row of a chunk: the token, or -1
  std::vector<std::string> row_errors;  // likewise
  std::vector<std::span<const uint32_t>> masks;
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;           // where the model chose
  std::vector<SamplerScratch> scratch;  // per thread
  std::vector<Event> events;            // of this step
  std::vector<Output> polled;           // for take_outputs

  mutable std::mutex inbox_mutex;
  std::vector<std::shared_ptr<RequestState>> inbox;
  std::vector<RequestId> cancelled;
  bool cancels_all = false;
  RequestId last_id = 0;
  std::atomic<bool> is_draining{false};
  std::atomic<int64_t> num_choices{0}, num_waiting{0}, waiting_tokens{0}, num_alive{0}, submitted{0}, refused{0};
  std::atomic<int64_t> last_step{Clock::now().time_since_epoch().count()};

  // What the step under way is at, for whoever looks while it hangs.
  std::atomic<const char*> phase{"between steps"};
  std::atomic<int64_t> step_tokens{0}, step_sequences{0};

  mutable std::mutex stats_mutex;
  EngineStats counts;               // the step's own
  EngineStats published;            // a copy for others
  double seconds_per_finish = 0.1;  // of late
  Clock::time_point last_finish = Clock::now();

 private:
  Sequence& make_sequence(const std::shared_ptr<RequestState>& owner, int32_t choice);
  void leave_queue(const Sequence& s);  // its place is free
  void forget(Sequence& s);             // steps under way go on without it
  void choose(Sequence& s, std::span<const float> logits, size_t row, SamplerScratch& own);
  void accept(Sequence& s, int32_t token, size_t row, std::span<const float> logits);
  void append(Sequence& s, OutputToken&& token);
  bool after_token(Sequence& s, int32_t token);  // false: the choice has ended, and s is gone
  // Without logits: as the model chose it.
  OutputToken describe_token(int32_t token, size_t row, int32_t wanted, std::span<const float> logits) const;
  void emit(Sequence& s, FinishReason reason);
  void emit_best(const std::shared_ptr<RequestState>& owner);
};

}  // namespace sinter::engine
