#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace sinter::engine {
namespace {

TEST(Sampler, LogitsThatAreNotFiniteAreAnError) {
  const float nan = std::nanf(""), infinity = INFINITY;
  const std::vector<std::vector<float>> bad{
      {nan, 1, 2}, {1, nan, 2}, {1, 2, nan}, {nan, nan, nan}, {-infinity, -infinity}, {1, infinity}};
  for (const std::vector<float>& logits : bad) {
    EXPECT_THROW(sample_token(logits, {.temperature = 0}, 0), base::Error) << logits[0] << " " << logits[1];
    EXPECT_THROW(sample_token(logits, {.temperature = 0.8f, .top_p = 0.95f}, 0), base::Error);
    EXPECT_THROW(sample_token(logits, {.top_k = 2}, 0), base::Error);
  }
  const std::vector<float> masked{-infinity, 1, -infinity};  // tokens that must not come
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(sample_token(masked, {}, i), 1);
}

TEST(Sampler, FollowsTheDistributionItsFiltersLeave) {
  std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  auto shares = [&](SamplingOptions options) {
    std::vector<double> share(4, 0);
    for (uint64_t i = 0; i < 20000; ++i) share[static_cast<size_t>(sample_token(logits, options, i))] += 1.0 / 20000;
    return share;
  };
  auto all = shares({});
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(all[i], std::exp(logits[i]), 0.015);
  EXPECT_NEAR(shares({.top_k = 2})[0], 0.5 / 0.8, 0.015);
  EXPECT_EQ(shares({.top_k = 2})[2], 0);
  EXPECT_EQ(shares({.top_p = 0.75f})[2], 0);
  EXPECT_EQ(shares({.min_p = 0.2f})[3], 0);
  EXPECT_GT(shares({.min_p = 0.2f})[2], 0);
  EXPECT_EQ(shares({.temperature = 0})[1], 0);
}

int32_t choose(const std::vector<float>& logits, const SamplingOptions& options, const SamplingHistory& history,
               uint64_t position = 0) {
  SamplerScratch scratch;
  return sample_token(logits, options, position, history, scratch);
}

TEST(Sampler, FiltersThatDropOtherTokensDoNotChangeTheChoice) {
  const std::vector<float> logits{1.0f, 0.5f, 0.25f, -3.0f, -4.0f};
  int changed = 0;
  for (uint64_t position = 0; position < 500; ++position) {
    const int32_t plain = sample_token(logits, {.seed = 7}, position);
    const int32_t filtered = sample_token(logits, {.top_k = 3, .seed = 7}, position);
    if (plain < 3) {
      EXPECT_EQ(plain, filtered);
    } else {
      ++changed;
    }
  }
  EXPECT_GT(changed, 0);
}

TEST(Sampler, PenaltiesActOnWhatWasThere) {
  const std::vector<float> logits{2.0f, 1.9f, -1.0f};
  const std::vector<int32_t> tokens{0, 0, 1};
  EXPECT_EQ(choose(logits, {.temperature = 0}, {}), 0);
  // Repetition: prompt and output; presence and frequency: output only.
  EXPECT_EQ(choose(logits, {.temperature = 0, .repetition_penalty = 1.2f},
                   {.tokens = {tokens.data(), 1}, .prompt_length = 1}),
            1);
  EXPECT_EQ(
      choose(logits, {.temperature = 0, .presence_penalty = 1.0f}, {.tokens = {tokens.data(), 1}, .prompt_length = 1}),
      0);
  EXPECT_EQ(
      choose(logits, {.temperature = 0, .presence_penalty = 1.0f}, {.tokens = {tokens.data(), 1}, .prompt_length = 0}),
      1);
  // Both are there; the first more often.
  EXPECT_EQ(choose(logits, {.temperature = 0, .presence_penalty = 1.0f}, {.tokens = tokens, .prompt_length = 0}), 0);
  EXPECT_EQ(choose(logits, {.temperature = 0, .frequency_penalty = 1.0f}, {.tokens = tokens, .prompt_length = 0}), 1);
}

TEST(Sampler, TokensThatMayNotComeNeverDo) {
  const std::vector<float> logits{5.0f, 4.0f, 3.0f, 2.0f};
  const std::vector<int32_t> history{2};
  const std::vector<uint32_t> mask{0b1100u};
  const std::vector<int32_t> banned{0};
  EXPECT_EQ(choose(logits, {.temperature = 0}, {.mask = mask}), 2);
  EXPECT_EQ(choose(logits, {.temperature = 0, .allowed_tokens = {1, 3}}, {}), 1);
  EXPECT_EQ(choose(logits, {.temperature = 0}, {.banned = banned}), 1);
  EXPECT_EQ(choose(logits, {.temperature = 0, .logit_bias = {{3, 10.0f}}}, {}), 3);
  EXPECT_EQ(choose(logits, {.temperature = 0, .bad_words = {{0}}}, {}), 1);
  EXPECT_EQ(choose(logits, {.temperature = 0, .bad_words = {{2, 0}}}, {.tokens = history}), 1);
  EXPECT_EQ(choose(logits, {.temperature = 0, .bad_words = {{1, 0}}}, {.tokens = history}), 0);
  EXPECT_EQ(choose(logits, {.temperature = 0, .bad_words = {{1, 2, 0}}}, {.tokens = history}), 0);
  EXPECT_EQ(choose(logits, {.temperature = 0, .allowed_tokens = {3}}, {.mask = std::vector<uint32_t>{1u}}), -1);
  for (uint64_t i = 0; i < 200; ++i) EXPECT_GE(choose(logits, {}, {.mask = mask}, i), 2);
}

TEST(Sampler, DryTakesFromTokensThatWouldContinueARepetition) {
  std::vector<float> logits(10, 0.0f);
  logits[4] = 1.0f;
  const std::vector<int32_t> tokens{1, 2, 3, 4, 9, 1, 2, 3};  // 4 would repeat 1 2 3 4
  EXPECT_EQ(choose(logits, {.temperature = 0}, {.tokens = tokens}), 4);
  EXPECT_EQ(choose(logits, {.temperature = 0, .dry = {.multiplier = 0.8f}}, {.tokens = tokens}), 0);  // 0.8 * 1.75
  EXPECT_EQ(choose(logits, {.temperature = 0, .dry = {.multiplier = 0.8f, .allowed_length = 3}}, {.tokens = tokens}),
            4);
  EXPECT_EQ(choose(logits, {.temperature = 0, .dry = {.multiplier = 0.8f, .allowed_length = 4}}, {.tokens = tokens}),
            4);
  EXPECT_EQ(choose(logits, {.temperature = 0, .dry = {.multiplier = 2, .range = 4}}, {.tokens = tokens}), 4);
  EXPECT_EQ(choose(logits, {.temperature = 0, .dry = {.multiplier = 2, .breakers = {2}}}, {.tokens = tokens}), 4);
}

TEST(Sampler, TypicalKeepsTokensOfTheDistributionsOwnSurprise) {
  // Entropy 1.5 bits: the tokens of 2 bits are nearer to it than that of 0.42.
  const std::vector<float> logits{std::log(0.75f), std::log(0.05f), std::log(0.05f),
                                  std::log(0.05f), std::log(0.05f), std::log(0.05f)};
  for (uint64_t i = 0; i < 100; ++i) {
    EXPECT_EQ(choose(logits, {.typical_p = 0.7f}, {}, i), 0);
  }
  const std::vector<float> flat{0.0f, -0.7f, -0.7f, -0.7f, -8.0f};
  for (uint64_t i = 0; i < 300; ++i) EXPECT_NE(choose(flat, {.typical_p = 0.9f}, {}, i), 4);
}

TEST(Sampler, ValuesThatMakeNoSenseAreRefusedByName) {
  const auto refused = [](const SamplingOptions& options, const std::string& name) {
    try {
      check_sampling(options, 100);
      ADD_FAILURE() << name;
    } catch (const base::UsageError& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
  };
  check_sampling({}, 100);
  refused({.temperature = 999999}, "temperature");
  refused({.temperature = std::nanf("")}, "temperature");
  refused({.top_p = -1}, "top-p");
  refused({.repetition_penalty = 0}, "repetition penalty");
  refused({.presence_penalty = std::nanf("")}, "presence penalty");
  refused({.typical_p = 0}, "typical-p");
  refused({.dry = {.multiplier = -1}}, "DRY multiplier");
  refused({.logit_bias = {{100, 1.0f}}}, "logit bias");
  refused({.allowed_tokens = {-1}}, "allowed token");
  refused({.bad_words = {{}}}, "bad word");
}

}  // namespace
}  // namespace sinter::engine
