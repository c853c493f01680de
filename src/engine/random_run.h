// Random submit, cancel, finish, preempt, deadline and failing steps over a fake model that chooses tokens itself or
// does not, with and without looking ahead: tests of the engine.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "engine/engine.h"
#include "engine/fake_model.h"

namespace sinter::engine {

// Runs `num_steps` steps under a small cache and a full queue and checks each request's end: whole answers are those of
// the request alone, cut ones their beginnings, and in the end nothing is held. Adds up preemptions: a draw with much
// memory has none.
inline void expect_random_run_holds(uint64_t seed, int64_t num_steps, int64_t* preemptions) {
  const base::CounterRng rng{seed, 77};
  uint64_t drawn = 0;
  auto draw = [&](uint32_t below) { return rng.bits(drawn++) % below; };
  const int64_t window = draw(3) == 0 ? 9 : 0;
  const bool chooses_itself = draw(4) != 0, looks_ahead = draw(4) != 0;
  auto owned = std::make_unique<FakeModel>(16, window, chooses_itself);
  FakeModel& model = *owned;
  Engine engine(std::move(owned), {.kv_tokens = 96 + draw(200),
                                   .block_size = 1 + draw(7),
                                   .step_tokens = 5 + draw(40),
                                   .max_running = 2 + draw(12),
                                   .max_waiting = 24,
                                   .max_waiting_tokens = 600,
                                   .checks_every_step = true,
                                   .looks_ahead = looks_ahead,
                                   .prefix_cache = draw(4) != 0});
  struct Asked {
    Request request;
    std::map<int32_t, std::vector<int32_t>> made;
    bool is_whole = true;  // no change of weights while it ran
  };
  std::map<RequestId, Asked> alive;
  int64_t num_whole = 0, num_refused = 0;
  auto submit = [&] {
    Request r;
    const uint32_t length = 1 + draw(60), family = draw(3);
    for (uint32_t i = 0; i < length; ++i)  // many begin alike
      r.prompt.push_back(static_cast<int32_t>(i < 40 ? (i * (family + 1)) % 16 : draw(16)));
    r.max_new_tokens = draw(30);
    r.sampling = {.temperature = draw(2) ? 1.0f : 0.0f, .seed = draw(1000)};
    if (draw(3) == 0) r.stop_tokens = {3};
    if (draw(40) == 0) r.sampling.presence_penalty = 0.5f;
    if (draw(40) == 0) r.sampling.bad_words = {{1, 2}, {5}};
    if (draw(40) == 0) r.sampling.typical_p = 0.9f;  // for the host alone
    if (draw(6) == 0) r.n = static_cast<int32_t>(1 + draw(4));
    r.priority = static_cast<int32_t>(draw(3));
    r.cache_salt = draw(2);
    if (draw(8) == 0) r.deadline = Clock::now() + std::chrono::microseconds(draw(2000));
    const Request kept = r;
    try {
      alive[engine.submit(std::move(r))] = {kept, {}, true};
    } catch (const QueueFull&) {
      ++num_refused;
    }
  };
  auto take = [&](const Output& out) {
    Asked& asked = alive.at(out.id);
    std::vector<int32_t>& made = asked.made[out.choice];
    for (const OutputToken& t : out.tokens) made.push_back(t.token);
    if (out.finish == FinishReason::none) return;
    const std::vector<int32_t> expected = expected_tokens(model, asked.request, out.choice);
    if (asked.is_whole) {
      ASSERT_LE(made.size(), expected.size());
      ASSERT_TRUE(std::equal(made.begin(), made.end(), expected.begin())) << "request " << out.id << " seed " << seed;
      if (out.finish == FinishReason::stop || out.finish == FinishReason::length) {
        ASSERT_EQ(made, expected);
        ++num_whole;
      }
    }
    asked.request.n -= 1;
    if (asked.request.n == 0) alive.erase(out.id);
  };
  for (int64_t i = 0; i < num_steps; ++i) {
    for (uint32_t k = draw(3); k > 0; --k) submit();
    if (draw(6) == 0 && !alive.empty()) {
      auto victim = alive.begin();
      std::advance(victim, draw(static_cast<uint32_t>(alive.size())));
      engine.cancel(victim->first);
    }
    if (draw(997) == 0) {
      model.change_weights();
      engine.weights_changed();
      for (auto& [id, asked] : alive) asked.is_whole = false;
    }
    if (draw(499) == 0) {
      engine.release_memory();
      engine.step();
      engine.take_memory();
    }
    if (draw(701) == 0) model.fails_next = true;
    if (draw(701) == 0) model.fails_next_wait = true;
    try {
      engine.step();
    } catch (const base::Error& e) {
      ASSERT_TRUE(std::string(e.what()).find("fake model failed") < 9 ||
                  std::string(e.what()).find("fake device failed") < 9)
          << e.what();
    }
    for (const Output& out : engine.take_outputs()) take(out);
    if (::testing::Test::HasFatalFailure()) return;
  }
  model.fails_next = model.fails_next_wait = false;
  engine.drain();
  while (engine.has_work()) {
    engine.step();
    for (const Output& out : engine.take_outputs()) take(out);
  }
  EXPECT_TRUE(alive.empty());
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.kv_blocks_used, 0);
  EXPECT_EQ(stats.waiting, 0);
  EXPECT_EQ(stats.waiting_tokens, 0);
  EXPECT_EQ(stats.refused, num_refused);
  EXPECT_GT(num_whole, num_steps / 100) << "the run did nothing";
  *preemptions += stats.preemptions;
  EXPECT_GT(stats.cancelled, 0);
  EXPECT_EQ(model.most_enqueued, chooses_itself && looks_ahead ? 2u : 1u);
}

}  // namespace sinter::engine
