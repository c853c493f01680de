// Life of requests in the engine: refusal, cancellation, deadlines, choices, masks, the loop. Over a fake model.
#include <gtest/gtest.h>

#include <thread>

#include "engine/batch.h"
#include "engine/engine_loop.h"
#include "engine/fake_model.h"

namespace sinter::engine {
namespace {

struct Fake {
  explicit Fake(const EngineOptions& options = {.kv_tokens = 400, .block_size = 4, .checks_every_step = true}) {
    auto owned = std::make_unique<FakeModel>(16);
    model = owned.get();
    engine = std::make_unique<Engine>(std::move(owned), options);
  }
  FakeModel* model;
  std::unique_ptr<Engine> engine;
};

Request simple(int64_t new_tokens = 10, uint64_t seed = 1) {
  return {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .sampling = {.seed = seed}, .max_new_tokens = new_tokens};
}

template <class E>
std::string refusal_of(Engine& engine, Request request) {
  try {
    engine.submit(std::move(request));
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

TEST(Engine, RefusesRequestsThatMakeNoSenseByName) {
  Fake f;
  EXPECT_NE(refusal_of<base::Error>(*f.engine, {}), "");
  EXPECT_NE(refusal_of<base::Error>(*f.engine, {.prompt = {16}}).find("token 16 is outside"), std::string::npos);
  EXPECT_NE(refusal_of<base::Error>(*f.engine, {.prompt = {-1}}), "");
  EXPECT_NE(refusal_of<base::Error>(*f.engine, simple(1000)).find("cache has room for 400"), std::string::npos);
  EXPECT_NE(refusal_of<base::Error>(*f.engine, simple(INT64_MAX)), "");
  EXPECT_NE(refusal_of<base::Error>(*f.engine, simple(-1)), "");
  Request r = simple();
  r.n = 0;
  EXPECT_NE(refusal_of<base::UsageError>(*f.engine, r), "");
  r.n = 1000;
  EXPECT_NE(refusal_of<base::UsageError>(*f.engine, r), "");
  r = simple();
  r.n = 3, r.best_of = 2;
  EXPECT_NE(refusal_of<base::UsageError>(*f.engine, r), "");
  r = simple();
  r.stop_strings = {"x"};
  EXPECT_NE(refusal_of<base::UsageError>(*f.engine, r), "");
  r = simple();
  r.sampling.top_p = -1;
  EXPECT_NE(refusal_of<base::UsageError>(*f.engine, r), "");
  EXPECT_FALSE(f.engine->has_work());
}

TEST(Engine, ABoundedQueueRefusesAndTakesAgain) {
  Fake f({.kv_tokens = 400, .block_size = 4, .max_running = 1, .max_waiting = 2});
  for (int i = 0; i < 3; ++i) f.engine->submit(simple());
  EXPECT_NE(refusal_of<QueueFull>(*f.engine, simple()), "");
  while (f.engine->stats().finished_length == 0) {
    EXPECT_NE(refusal_of<QueueFull>(*f.engine, simple()), "");
    f.engine->step();
  }
  EXPECT_EQ(refusal_of<QueueFull>(*f.engine, simple()), "") << "one has ended, so there is a place";
  Request wide = simple();
  wide.n = 4;  // more than there are places: no waiting would help
  EXPECT_NE(refusal_of<base::UsageError>(*f.engine, wide).find("room for 3"), std::string::npos);
  f.engine->drain();
  EXPECT_NE(refusal_of<Draining>(*f.engine, simple()), "");
  while (f.engine->has_work()) f.engine->step();
  EXPECT_EQ(f.engine->stats().finished_length, 4);
  Fake tokens({.kv_tokens = 400, .max_waiting_tokens = 10});
  tokens.engine->submit(simple());
  EXPECT_NE(refusal_of<QueueFull>(*tokens.engine, simple()), "");
}

// Latency counted in steps, so that other work on the machine does not matter: as many clients as places, each asking
// again when it is answered, then arrivals at twice the rate that came of it. A short queue keeps the median down.
TEST(Engine, AShortQueueKeepsTheLatencyOfAdmittedRequestsUnderTwiceTheLoad) {
  constexpr int64_t kRunning = 8, kSteps = 4000;
  const auto median_steps = [](double rate, int64_t* ended, int64_t* refused) {
    Fake f({.kv_tokens = 1000, .block_size = 4, .max_running = kRunning, .max_waiting = kRunning / 4});
    const base::CounterRng rng{11, 3};
    int64_t now = 0, alive = 0;
    std::vector<int64_t> latencies;
    for (double due = 0; now < kSteps; ++now) {
      due += rate * 2 * static_cast<double>(rng.uniform(static_cast<uint64_t>(now)));
      if (rate == 0) due = static_cast<double>(kRunning - alive);
      for (; due >= 1; --due) {
        Request r = simple(24, static_cast<uint64_t>(now));
        r.on_output = [&, began = now](Output&& out) {
          if (out.finish == FinishReason::none) return;
          latencies.push_back(now - began);
          --alive;
        };
        try {
          f.engine->submit(std::move(r));
          ++alive;
        } catch (const QueueFull&) {
          ++*refused;
        }
      }
      f.engine->step();
    }
    *ended = static_cast<int64_t>(latencies.size());
    while (f.engine->has_work()) f.engine->step();
    std::nth_element(latencies.begin(), latencies.begin() + *ended / 2, latencies.begin() + *ended);
    return static_cast<double>(latencies[static_cast<size_t>(*ended / 2)]);
  };
  int64_t ended = 0, refused = 0;
  const double at_capacity = median_steps(0, &ended, &refused);
  EXPECT_EQ(refused, 0);
  const double rate = static_cast<double>(ended) / kSteps;
  int64_t ended_beyond = 0;
  const double beyond = median_steps(2 * rate, &ended_beyond, &refused);
  EXPECT_LE(beyond, 1.5 * at_capacity);
  EXPECT_NEAR(static_cast<double>(ended_beyond) / static_cast<double>(ended), 1, 0.05) << "of the same throughput";
  EXPECT_NEAR(static_cast<double>(refused) / static_cast<double>(ended), 1, 0.1) << "half of what comes is refused";
}

TEST(Engine, CancellationFreesBlocksWithinAStepInEveryState) {
  Fake f({.kv_tokens = 400, .block_size = 4, .step_tokens = 4, .max_running = 1, .checks_every_step = true});
  const RequestId prefilling = f.engine->submit(simple(50)), waiting = f.engine->submit(simple(50));
  f.engine->step();
  EXPECT_EQ(f.engine->stats().kv_blocks_used, 1);
  f.engine->cancel(waiting);
  f.engine->cancel(prefilling);
  f.engine->cancel(12345);  // never there
  f.engine->step();
  EXPECT_EQ(f.engine->stats().kv_blocks_used, 0);
  EXPECT_FALSE(f.engine->has_work());
  const RequestId decoding = f.engine->submit(simple(50));
  for (int i = 0; i < 10; ++i) f.engine->step();
  EXPECT_GT(f.engine->stats().output_tokens, 2);
  f.engine->cancel(decoding);
  f.engine->step();
  EXPECT_EQ(f.engine->stats().kv_blocks_used, 0);
  int64_t ends = 0;
  for (const Output& out : f.engine->take_outputs()) ends += out.finish == FinishReason::cancelled;
  EXPECT_EQ(ends, 3);
  EXPECT_EQ(f.engine->stats().cancelled, 3);
  f.engine->cancel(f.engine->submit(simple(50)));  // before any step
  f.engine->step();
  EXPECT_FALSE(f.engine->has_work());
}

TEST(Engine, DeadlinesEndRequestsThatWaitAndThatRun) {
  Fake f({.kv_tokens = 400, .block_size = 4, .max_running = 1});
  Request r = simple(300);
  r.deadline = Clock::now() + std::chrono::milliseconds(20);
  f.engine->submit(r);
  f.engine->submit(r);
  f.engine->step();
  std::this_thread::sleep_for(std::chrono::milliseconds(25));
  f.engine->step();
  EXPECT_FALSE(f.engine->has_work());
  EXPECT_EQ(f.engine->stats().expired, 2);
}

TEST(Engine, HigherPriorityGoesFirst) {
  Fake f({.kv_tokens = 400, .block_size = 4, .max_running = 1});
  Request low = simple(3), high = simple(3);
  low.priority = 5;
  f.engine->submit(low);
  const RequestId first = f.engine->submit(high);
  while (f.engine->has_work()) f.engine->step();
  const std::vector<Output> outputs = f.engine->take_outputs();
  ASSERT_FALSE(outputs.empty());
  EXPECT_EQ(outputs[0].id, first);
}

TEST(Engine, ChoicesShareThePromptsBlocksAndDrawTheirOwnNumbers) {
  for (bool prefix_cache : {true, false}) {
    Fake f({.kv_tokens = 400, .block_size = 4, .checks_every_step = true, .prefix_cache = prefix_cache});
    Request r = simple(6);
    r.n = 4;
    const auto choices = run_batch(*f.engine, {r})[0];
    ASSERT_EQ(choices.size(), 4u);
    for (int32_t c = 0; c < 4; ++c) EXPECT_EQ(choices[static_cast<size_t>(c)].tokens, expected_tokens(*f.model, r, c));
    EXPECT_NE(choices[0].tokens, choices[1].tokens);
    EXPECT_EQ(f.engine->stats().cached_tokens, 3 * 8);
    EXPECT_EQ(f.engine->stats().prompt_tokens, 9 + 3);
  }
}

TEST(Engine, BestOfGivesOutTheLikeliest) {
  Fake f;
  Request r = simple(6);
  r.n = 2, r.best_of = 5;
  const auto best = run_batch(*f.engine, {r})[0];
  Request all = simple(6);
  all.n = 5, all.logprobs = 0;
  std::vector<std::pair<double, std::vector<int32_t>>> ranked;
  const auto made = run_batch(*f.engine, {all});
  for (const Completion& c : made[0]) {
    double sum = 0;
    for (float l : c.logprobs) sum += static_cast<double>(l);
    ranked.emplace_back(-sum, c.tokens);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0].tokens, ranked[0].second);
  EXPECT_EQ(best[1].tokens, ranked[1].second);
}

TEST(Engine, StopTokensEndAnAnswerButNotBeforeTheLeastLength) {
  Fake f;
  Request r = simple(40);
  r.stop_tokens = {3};
  const Completion c = run_batch(*f.engine, {r})[0][0];
  EXPECT_EQ(c.reason, FinishReason::stop);
  EXPECT_EQ(c.stop_token, 3);
  EXPECT_EQ(c.tokens, expected_tokens(*f.model, r));
  r.min_new_tokens = static_cast<int64_t>(c.tokens.size()) + 5;
  const Completion longer = run_batch(*f.engine, {r})[0][0];
  EXPECT_GE(longer.tokens.size(), c.tokens.size() + 5);
  EXPECT_EQ(std::count(longer.tokens.begin(), longer.tokens.begin() + r.min_new_tokens, 3), 0);
}

// Lets only one sequence of tokens through; the middle of it is forced.
class ListMask : public TokenMask {
 public:
  explicit ListMask(std::vector<int32_t> tokens) : tokens_(std::move(tokens)) {}
  std::span<const uint32_t> mask() override {
    bits_ = {1u << tokens_[next_]};
    return bits_;
  }
  void accept(int32_t token) override {
    EXPECT_EQ(token, tokens_[next_]);
    ++next_;
  }
  std::span<const int32_t> forced() override {
    return next_ == 2 || next_ == 3 ? std::span<const int32_t>(tokens_).subspan(next_, 4 - next_)
                                    : std::span<const int32_t>{};
  }
  bool is_complete() const override { return next_ == tokens_.size(); }
  std::unique_ptr<TokenMask> clone() const override { return std::make_unique<ListMask>(*this); }

 private:
  std::vector<int32_t> tokens_;
  std::vector<uint32_t> bits_;
  size_t next_ = 0;
};

TEST(Engine, MasksAndForcedTokensGiveTheSameTextWithAndWithoutLogprobs) {
  const std::vector<int32_t> wanted{7, 7, 1, 2, 9, 15};
  for (int32_t logprobs : {-1, 0}) {
    Fake f;
    Request r = simple(40);
    r.n = 2;
    r.logprobs = logprobs;
    r.mask = std::make_shared<ListMask>(wanted);
    const auto made = run_batch(*f.engine, {r});
    for (const Completion& c : made[0]) {
      EXPECT_EQ(c.tokens, wanted);
      EXPECT_EQ(c.reason, FinishReason::stop);
    }
    EXPECT_EQ(f.engine->stats().output_tokens, 12);
  }
}

TEST(Engine, AFailingModelEndsItsRequestsAndTheEngineGoesOn) {
  Fake f;
  f.engine->submit(simple());
  f.model->fails_next = true;
  EXPECT_THROW(f.engine->step(), base::Error);
  const std::vector<Output> outputs = f.engine->take_outputs();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].finish, FinishReason::error);
  EXPECT_EQ(outputs[0].error, "the fake model failed");
  EXPECT_EQ(f.engine->stats().kv_blocks_used, 0);
  EXPECT_EQ(run_batch(*f.engine, {simple()})[0][0].tokens, expected_tokens(*f.model, simple()));
}

TEST(Engine, ReleasedMemoryAndNewWeightsLeaveTokensAsTheyWere) {
  Fake f;
  f.engine->submit(simple(20));
  for (int i = 0; i < 5; ++i) f.engine->step();
  f.engine->release_memory();
  EXPECT_FALSE(f.engine->step());
  f.engine->take_memory();
  while (f.engine->has_work()) f.engine->step();
  std::vector<int32_t> made;
  for (const Output& out : f.engine->take_outputs()) {
    for (const OutputToken& t : out.tokens) made.push_back(t.token);
  }
  EXPECT_EQ(made, expected_tokens(*f.model, simple(20)));
  f.model->change_weights();
  f.engine->weights_changed();
  EXPECT_EQ(run_batch(*f.engine, {simple()})[0][0].tokens, expected_tokens(*f.model, simple()));
  EXPECT_EQ(f.engine->stats().cached_tokens, 0);
}

TEST(EngineLoop, AnswersFromManyThreads) {
  Fake f({.kv_tokens = 300, .block_size = 4, .step_tokens = 16, .max_running = 6});
  EngineLoop loop(*f.engine);
  std::atomic<int> ended{0}, cancelled{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 25; ++i) {
        Request r = simple(20, t * 100 + i);
        auto made = std::make_shared<std::vector<int32_t>>();
        const std::vector<int32_t> expected = expected_tokens(*f.model, r);
        r.on_output = [&, made, expected](Output&& out) {
          for (const OutputToken& token : out.tokens) made->push_back(token.token);
          if (out.finish == FinishReason::none) return;
          if (out.finish == FinishReason::cancelled) {
            ++cancelled;
          } else {
            EXPECT_EQ(*made, expected);
          }
          ++ended;
        };
        const RequestId id = loop.submit(std::move(r));
        if (i % 5 == 0) loop.cancel(id);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(loop.is_alive(60));
  EXPECT_TRUE(loop.drain(60));
  EXPECT_EQ(ended, 100);
  EXPECT_FALSE(loop.is_alive(60));
}

// A model at work holds the engine nearly all the time.
class SlowModel : public FakeModel {
 public:
  using FakeModel::FakeModel;
  void forward(const StepBatch& batch) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    FakeModel::forward(batch);
  }
};

TEST(EngineLoop, WhoeverChangesWeightsWaitsForAStepNotForIdleness) {
  Engine engine(std::make_unique<SlowModel>(16), {.kv_tokens = 4000, .block_size = 4});
  EngineLoop loop(engine);
  loop.submit(simple(2000));
  std::vector<int64_t> waited;
  for (int i = 0; i < 21; ++i) {
    const int64_t before = engine.stats().num_steps;
    engine.change_weights([&] { waited.push_back(engine.stats().num_steps - before); });
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // it is at work again
  }
  EXPECT_TRUE(engine.has_work());
  std::nth_element(waited.begin(), waited.begin() + 10, waited.end());
  EXPECT_LE(waited[10], 2) << "steps went on while somebody waited";
  EXPECT_THROW(engine.change_weights([] { base::fail("no such file"); }), base::Error);
}

TEST(EngineLoop, StoppingEndsEveryRequest) {
  Fake f;
  int ended = 0;
  {
    EngineLoop loop(*f.engine);
    for (int i = 0; i < 5; ++i) {
      Request r = simple(300);
      r.on_output = [&](Output&& out) { ended += out.finish != FinishReason::none; };
      loop.submit(std::move(r));
    }
  }
  EXPECT_EQ(ended, 5);
}

TEST(EngineLoop, TheWatchdogTellsOfAStepThatHangs) {
  Fake f;
  std::atomic<bool> told{false};
  EngineLoop loop(*f.engine, {.stall_seconds = 0.1, .on_stall = [&](const std::string& state) {
                                EXPECT_NE(state.find("in handing out tokens"), std::string::npos) << state;
                                told = true;
                              }});
  Request r = simple(300);
  r.on_output = [&](Output&&) {  // a step that does not end
    for (int i = 0; i < 500 && !told; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  loop.submit(std::move(r));
  for (int i = 0; i < 500 && !told; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(told);
}

}  // namespace
}  // namespace sinter::engine
