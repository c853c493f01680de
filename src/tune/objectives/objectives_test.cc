#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "base/error.h"
#include "tune/objectives/policy.h"
#include "tune/objectives/preference.h"

namespace sinter::tune {
namespace {

// Central differences of f at x.
double slope_at(const std::function<double(double)>& f, double x) {
  const double h = 1e-6 * std::max(1.0, std::abs(x));
  return (f(x + h) - f(x - h)) / (2 * h);
}

TEST(Objectives, SlopesOfPairLossesAreTheirDerivatives) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> draw(-60, -1);
  for (const std::string& name : pair_loss_names()) {
    PairOptions options{.loss = parse_pair_loss(name), .beta = 0.1};
    if (options.loss == PairLoss::cdpo || options.loss == PairLoss::robust || options.loss == PairLoss::simpo)
      options.label_smoothing = 0.1;
    check_pair_options(options);
    for (int i = 0; i < 20; ++i) {
      const AnswerScore good{draw(random), draw(random), 7}, bad{draw(random), draw(random), 5};
      const PairTerms terms = pair_loss(options, good, bad);
      auto by_good = [&](double x) { return pair_loss(options, {x, good.reference, good.tokens}, bad).loss; };
      auto by_bad = [&](double x) { return pair_loss(options, good, {x, bad.reference, bad.tokens}).loss; };
      EXPECT_NEAR(terms.d_chosen, slope_at(by_good, good.logp), 1e-6 * std::max(1.0, terms.loss)) << name;
      EXPECT_NEAR(terms.d_rejected, slope_at(by_bad, bad.logp), 1e-6 * std::max(1.0, terms.loss)) << name;
    }
  }
}

TEST(Objectives, PairLossesStayFiniteFarFromEachOther) {
  for (const std::string& name : pair_loss_names()) {
    const PairOptions options{.loss = parse_pair_loss(name), .beta = 10};
    for (const double far : {-1e5, -1e-9}) {
      const PairTerms terms = pair_loss(options, {far, -5, 3}, {-20, -5, 3});
      EXPECT_TRUE(std::isfinite(terms.loss) && std::isfinite(terms.d_chosen)) << name << " " << far;
    }
  }
}

TEST(Objectives, AnEqualPairCostsLogTwo) {
  EXPECT_NEAR(pair_loss({}, {-3, -4, 2}, {-6, -7, 5}).loss, std::log(2.0), 1e-12);
}

TEST(Objectives, UnknownNamesGetTheNearest) {
  try {
    parse_pair_loss("sigmod");
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("'sigmoid'"), std::string::npos) << e.what();
  }
  EXPECT_THROW(check_pair_options({.label_smoothing = 0.1}), base::Error);
  EXPECT_THROW(check_group_options({.loss = GroupLoss::dr_grpo}), base::Error);
}

TEST(Objectives, SlopesOfKtoAndRewardLossesAreTheirDerivatives) {
  const KtoOptions options{0.3, 1.33, 0.8};
  for (const bool wanted : {true, false}) {
    auto f = [&](double x) { return kto_loss(options, {x, -8, 4}, wanted, 0.7).loss; };
    EXPECT_NEAR(kto_loss(options, {-6, -8, 4}, wanted, 0.7).d_logp, slope_at(f, -6), 1e-8);
  }
  const RewardTerms terms = reward_loss(0.4, -0.3, 0.5, 0.01);
  EXPECT_NEAR(terms.d_chosen, slope_at([](double x) { return reward_loss(x, -0.3, 0.5, 0.01).loss; }, 0.4), 1e-8);
  EXPECT_NEAR(terms.d_rejected, slope_at([](double x) { return reward_loss(0.4, x, 0.5, 0.01).loss; }, -0.3), 1e-8);
  const AnswerScore far[] = {{-9, -3, 2}, {-8, -4, 2}};
  EXPECT_EQ(kto_kl(far), 0);
}

TEST(Objectives, SlopesOfPolicyAndValueLossesAreTheirDerivatives) {
  std::mt19937 random(9);
  std::normal_distribution<double> draw;
  for (int i = 0; i < 200; ++i) {
    const double old = -2 + draw(random), logp = old + 0.4 * draw(random), A = draw(random), v = draw(random),
                 v_old = v + 0.3 * draw(random), R = draw(random);
    EXPECT_NEAR(clipped_policy_loss(logp, old, A, 0.2, 0.28).slope,
                slope_at([&](double x) { return clipped_policy_loss(x, old, A, 0.2, 0.28).loss; }, logp), 1e-6);
    EXPECT_NEAR(clipped_value_loss(v, v_old, R, 0.2).slope,
                slope_at([&](double x) { return clipped_value_loss(x, v_old, R, 0.2).loss; }, v), 1e-6);
  }
}

TEST(Objectives, AdvantagesOfLambdaOneAreReturnsLessValues) {
  const std::vector<double> rewards = {0.5, -1, 2}, values = {0.1, 0.2, 0.3};
  std::vector<double> advantages(3), returns(3);
  estimate_advantages(rewards, values, 0.9, 1, advantages, returns);
  EXPECT_NEAR(returns[0], 0.5 + 0.9 * (-1 + 0.9 * 2), 1e-12);
  EXPECT_NEAR(advantages[1], -1 + 0.9 * 2 - 0.2, 1e-12);
}

TEST(Objectives, SlopesOfGroupLossesAreTheirDerivatives) {
  std::mt19937 random(4);
  std::normal_distribution<double> draw;
  for (int variant = 0; variant < 40; ++variant) {
    GroupOptions options{.loss = static_cast<GroupLoss>(variant % 5), .epsilon = 0.2, .beta = variant % 2 ? 0.1 : 0.0};
    options.sequence_ratio = variant % 3 == 0 && options.loss != GroupLoss::cispo;
    options.kl_times_ratio = variant % 4 == 1;
    options.delta = variant % 7 == 0 ? 1.3 : 0;
    options.epsilon_high = variant % 3 ? 0.28 : 0;
    options.longest = 20;
    check_group_options(options);
    std::vector<double> logp(6), old(6), reference(6), slopes(6), unused(6);
    for (size_t t = 0; t < 6; ++t) {
      old[t] = -2 + draw(random);
      logp[t] = old[t] + 0.3 * draw(random);
      reference[t] = old[t] + 0.3 * draw(random);
    }
    const GroupRow row{logp, old, reference, draw(random)};
    // cispo's weight is a constant, and so is a KL term's ratio beside it.
    if (options.loss == GroupLoss::cispo && options.kl_times_ratio) options.beta = 0;
    group_loss(options, row, slopes);
    for (size_t t = 0; t < 6; ++t) {
      if (options.loss == GroupLoss::cispo) {
        const double weight =
            std::min(std::exp(logp[t] - old[t]), options.epsilon_high > 0 ? options.epsilon_high : 0.2);
        const double d = reference[t] - logp[t];
        EXPECT_NEAR(slopes[t], -weight * row.advantage - options.beta * std::expm1(d), 1e-9);
        continue;
      }
      auto f = [&](double x) {
        std::vector<double> changed = logp;
        changed[t] = x;
        return group_loss(options, {changed, old, reference, row.advantage}, unused).loss;
      };
      EXPECT_NEAR(slopes[t], slope_at(f, logp[t]), 1e-6) << variant;
    }
  }
}

TEST(Objectives, GroupsWithEqualRewardsTeachNothing) {
  const std::vector<double> rewards = {1, 1, 1, 1, 0, 1, 0, 1};
  const std::vector<double> advantages = group_advantages({.group = 4}, rewards, 1);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(advantages[i], 0);
  EXPECT_NEAR(advantages[4], -0.5 / (std::sqrt(1.0 / 3) + 1e-4), 1e-9);
  EXPECT_THROW(group_advantages({.group = 3}, rewards, 1), base::Error);
}

TEST(Objectives, SlopesOfDistillationAreItsDerivatives) {
  const std::vector<double> teacher = {std::log(0.5), std::log(0.3), std::log(0.1)};
  std::vector<double> student = {std::log(0.2), std::log(0.4), std::log(0.15)}, slopes(3), unused(3);
  distillation_loss(teacher, student, slopes);
  for (size_t k = 0; k < 3; ++k) {
    auto f = [&](double x) {
      std::vector<double> changed = student;
      changed[k] = x;
      return distillation_loss(teacher, changed, unused);
    };
    EXPECT_NEAR(slopes[k], slope_at(f, student[k]), 1e-8);
  }
  EXPECT_NEAR(distillation_loss(teacher, teacher, unused), 0, 1e-12);
}

}  // namespace
}  // namespace sinter::tune
