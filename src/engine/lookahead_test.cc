// A step enqueued before the tokens of the one before are known: the same answers, and nothing of what was guessed
// stays.
#include <gtest/gtest.h>

#include "engine/batch.h"
#include "engine/fake_model.h"

namespace sinter::engine {
namespace {

EngineOptions small(bool looks_ahead = true) {
  return {.kv_tokens = 400, .block_size = 4, .checks_every_step = true, .looks_ahead = looks_ahead};
}

struct Fake {
  explicit Fake(const EngineOptions& options = small(), bool chooses_itself = true) {
    auto owned = std::make_unique<FakeModel>(16, 0, chooses_itself);
    model = owned.get();
    engine = std::make_unique<Engine>(std::move(owned), options);
  }
  FakeModel* model;
  std::unique_ptr<Engine> engine;
};

Request simple(int64_t new_tokens = 10, uint64_t seed = 1) {
  return {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .sampling = {.seed = seed}, .max_new_tokens = new_tokens};
}

std::vector<int32_t> run_to_end(Engine& engine) {
  std::vector<int32_t> made;
  while (engine.has_work()) {
    engine.step();
    for (const Output& out : engine.take_outputs()) {
      for (const OutputToken& t : out.tokens) made.push_back(t.token);
    }
  }
  return made;
}

TEST(Lookahead, TheNextStepIsEnqueuedBeforeThisOneIsWaitedFor) {
  Fake ahead, behind(small(false));
  EXPECT_EQ(run_batch(*ahead.engine, {simple(5)})[0][0].tokens, expected_tokens(*ahead.model, simple(5)));
  EXPECT_EQ(run_batch(*behind.engine, {simple(5)})[0][0].tokens, expected_tokens(*ahead.model, simple(5)));
  EXPECT_EQ(ahead.model->calls, "ffcfcfcfcc") << "and nothing behind the last token";
  EXPECT_EQ(behind.model->calls, "fcfcfcfcfc");
  EXPECT_EQ(ahead.engine->stats().num_steps, 5);
}

TEST(Lookahead, APromptInPiecesIsEnqueuedAheadToo) {
  EngineOptions options = small();
  options.step_tokens = 4;
  Fake f(options);
  EXPECT_EQ(run_batch(*f.engine, {simple(2)})[0][0].tokens, expected_tokens(*f.model, simple(2)));
  EXPECT_EQ(f.model->calls, "ffcfcfcc");  // 4, 4, 1 tokens, then the first chosen
}

// Requests with everything that may be asked for, alone and together.
std::vector<Request> all_kinds() {
  std::vector<Request> requests(12, simple(14));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.seed = i;
    requests[i].prompt.resize(3 + i % 7);
  }
  requests[1].logprobs = 0;
  requests[2].stop_tokens = {3, 4};
  requests[2].min_new_tokens = 6;
  requests[3].n = 3;
  requests[4].sampling.logit_bias = {{5, 2.0f}, {6, -3.0f}};
  requests[5].sampling.presence_penalty = 1.5f;
  requests[6].sampling.bad_words = {{1}, {2, 3}};
  requests[7].logprobs = 3;
  requests[8].prompt_logprobs = 0;
  requests[9].sampling.bad_words = {{7}};
  requests[10].max_new_tokens = 0;
  requests[11].best_of = 3;
  return requests;
}

TEST(Lookahead, EveryOptionGivesTheTokensThatItGivesWithout) {
  const std::vector<Request> requests = all_kinds();
  const auto same = [](const std::vector<Completion>& a, const std::vector<Completion>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t c = 0; c < a.size(); ++c) {
      EXPECT_EQ(a[c].tokens, b[c].tokens);
      EXPECT_EQ(a[c].logprobs, b[c].logprobs);
      EXPECT_EQ(a[c].reason, b[c].reason);
      EXPECT_EQ(a[c].usage.output_tokens, b[c].usage.output_tokens);
    }
  };
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    Fake ahead, behind(small(false)), host(small(), false);
    const auto expected = run_batch(*host.engine, {requests[i]});
    const auto first = run_batch(*ahead.engine, {requests[i]}), second = run_batch(*behind.engine, {requests[i]});
    same(first[0], expected[0]);
    same(second[0], expected[0]);
    const EngineStats a = ahead.engine->stats(), b = behind.engine->stats();
    EXPECT_EQ(a.output_tokens, b.output_tokens);
    EXPECT_EQ(a.prompt_tokens, b.prompt_tokens);
    EXPECT_EQ(a.recomputed_tokens, b.recomputed_tokens);
    EXPECT_EQ(a.kv_blocks_used, 0);
  }
  Fake ahead, host(small(), false);
  const auto made = run_batch(*ahead.engine, requests), expected = run_batch(*host.engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    same(made[i], expected[i]);
  }
}

TEST(Lookahead, WhatNeedsTheTokensOnTheHostWaitsForThem) {
  Request penalty = simple(), words = simple(), word = simple();
  penalty.sampling.frequency_penalty = 0.1f;
  words.sampling.bad_words = {{1, 2}};
  word.sampling.bad_words = {{1}};
  for (const auto& [request, waits] : {std::pair{penalty, true}, {words, true}, {word, false}}) {
    Fake f;
    const auto made = run_batch(*f.engine, {request, simple(4, 2)});
    EXPECT_EQ(made[0][0].tokens, expected_tokens(*f.model, request));
    EXPECT_EQ(made[1][0].tokens, expected_tokens(*f.model, simple(4, 2)));
    EXPECT_EQ(f.model->calls.find("ff") == std::string::npos, waits) << f.model->calls;
  }
}

TEST(Lookahead, AnAnswerThatStopsLeavesNothingBehind) {
  Request r = simple(40);
  r.stop_tokens = {3};
  Fake f, behind(small(false));
  const Completion c = run_batch(*f.engine, {r})[0][0];
  EXPECT_EQ(c.reason, FinishReason::stop);
  EXPECT_EQ(c.tokens, expected_tokens(*f.model, r));
  EXPECT_EQ(f.engine->stats().kv_blocks_used, 0);
  // A longer conversation finds of the first what it finds without looking ahead, and no more: what was enqueued
  // behind the stop token has no name.
  run_batch(*behind.engine, {r});
  Request next = simple(20);
  next.prompt.insert(next.prompt.end(), c.tokens.begin(), c.tokens.end());
  next.prompt.insert(next.prompt.end(), {3, 1, 2, 3, 4, 5, 6});
  for (Fake* fake : {&f, &behind})
    EXPECT_EQ(run_batch(*fake->engine, {next})[0][0].tokens, expected_tokens(*f.model, next));
  EXPECT_EQ(f.engine->stats().cached_tokens, behind.engine->stats().cached_tokens);
  EXPECT_GT(f.engine->stats().cached_tokens, 0);
}

TEST(Lookahead, ACancelledRequestIsDroppedFromTheStepThatRuns) {
  Fake f;
  const RequestId gone = f.engine->submit(simple(50));
  f.engine->submit(simple(12, 2));
  for (int i = 0; i < 4; ++i) f.engine->step();
  f.engine->take_outputs();
  f.engine->cancel(gone);
  const int64_t used = f.engine->stats().kv_blocks_used;
  f.engine->step();
  EXPECT_LT(f.engine->stats().kv_blocks_used, used) << "its blocks are free within a step";
  for (const Output& out : f.engine->take_outputs()) {
    if (out.id != gone) continue;
    EXPECT_EQ(out.finish, FinishReason::cancelled);
    EXPECT_TRUE(out.tokens.empty());
  }
  EXPECT_EQ(run_to_end(*f.engine).size(), 7u);
  f.engine->submit(simple(6));
  EXPECT_EQ(run_to_end(*f.engine), expected_tokens(*f.model, simple(6)));
}

TEST(Lookahead, ALastTokenKeepsNoPlaceInTheNextStep) {
  EngineOptions options = small();
  options.max_running = 2;
  Fake f(options);
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 6; ++i) requests.push_back(simple(3, i));
  const auto made = run_batch(*f.engine, requests);
  for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(made[i][0].tokens, expected_tokens(*f.model, simple(3, i)));
  EXPECT_EQ(f.engine->stats().num_steps, 9) << "two at a time, three tokens each";
}

TEST(Lookahead, NewWeightsAndReleasedMemoryDropTheStepThatRuns) {
  for (bool releases : {false, true}) {
    Fake f;
    f.engine->submit(simple(20));
    for (int i = 0; i < 5; ++i) f.engine->step();
    if (releases) {
      f.engine->release_memory();
      EXPECT_FALSE(f.engine->step());
      f.engine->take_memory();
    } else {
      f.engine->weights_changed();
    }
    EXPECT_EQ(run_to_end(*f.engine), expected_tokens(*f.model, simple(20)));
    EXPECT_EQ(std::count(f.model->calls.begin(), f.model->calls.end(), 'c'),
              std::count(f.model->calls.begin(), f.model->calls.end(), 'f'));
  }
  // Tokens behind a change are the new weights' own, also the one that was being computed.
  Fake f;
  f.engine->submit(simple(8));
  for (int i = 0; i < 3; ++i) f.engine->step();
  std::vector<int32_t> tokens = simple().prompt;
  for (const Output& out : f.engine->take_outputs()) {
    for (const OutputToken& t : out.tokens) tokens.push_back(t.token);
  }
  f.model->change_weights();
  f.engine->weights_changed();
  const std::vector<int32_t> rest = run_to_end(*f.engine);
  Request same = simple(static_cast<int64_t>(rest.size()));
  same.prompt = tokens;
  EXPECT_EQ(rest, expected_tokens(*f.model, same));
}

TEST(Lookahead, AnErrorEndsThoseOfBothStepsAndTheEngineGoesOn) {
  for (bool at_forward : {true, false}) {
    Fake f;
    f.engine->submit(simple(30));
    for (int i = 0; i < 3; ++i) f.engine->step();
    Request other = simple(30, 5);
    other.prompt = {7, 7, 7};
    f.engine->submit(other);
    (at_forward ? f.model->fails_next : f.model->fails_next_wait) = true;
    EXPECT_THROW(f.engine->step(), base::Error);
    EXPECT_FALSE(f.engine->has_work());
    EXPECT_EQ(f.engine->stats().failed, 2);
    EXPECT_EQ(f.engine->stats().kv_blocks_used, 0);
    EXPECT_EQ(run_batch(*f.engine, {simple()})[0][0].tokens, expected_tokens(*f.model, simple()));
    EXPECT_EQ(f.engine->stats().cached_tokens, 0) << "what was being computed may not be there";
  }
}

}  // namespace
}  // namespace sinter::engine
