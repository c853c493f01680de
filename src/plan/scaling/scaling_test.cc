#include "plan/scaling/scaling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "plan/batch.h"

namespace sinter::plan {
namespace {

TEST(Scaling, ChinchillaBudgetUnderEachFit) {
  Optimum epoch = compute_optimal(scaling_law("epoch"), 5.76e23);
  EXPECT_NEAR(epoch.parameters / 1e9, 72, 1);
  EXPECT_NEAR(epoch.tokens / epoch.parameters, 18, 1);
  Optimum printed = compute_optimal(scaling_law("hoffmann"), 5.76e23);
  EXPECT_NEAR(printed.parameters / 1e9, 32, 1);
  EXPECT_NEAR(printed.tokens / printed.parameters, 93, 2);
  Optimum unrounded = compute_optimal(scaling_law("hoffmann-unrounded"), 5.76e23);
  EXPECT_NEAR(unrounded.parameters / 1e9, 40, 1);
  EXPECT_NEAR(unrounded.tokens / unrounded.parameters, 59, 2);
  Optimum kaplan = compute_optimal(scaling_law("kaplan"), 5.76e23);
  EXPECT_GT(kaplan.parameters, 5 * epoch.parameters);  // the recommendation that GPT-3 followed
  EXPECT_LT(kaplan.tokens / kaplan.parameters, 1);
}

TEST(Scaling, TwentyTokensPerParameter) {
  for (double flops : {1e18, 5.76e23, 1e27}) {
    Optimum best = compute_optimal(scaling_law("chinchilla-20"), flops);
    EXPECT_NEAR(best.tokens / best.parameters, 20, 1e-9);
    EXPECT_NEAR(6 * best.parameters * best.tokens / flops, 1, 1e-12);
  }
  // Table 3 of Hoffmann et al., approach 1: the same rule within a tenth.
  EXPECT_NEAR(compute_optimal(scaling_law("chinchilla-20"), 1.21e20).parameters / 1e9, 1.0, 0.1);
  EXPECT_NEAR(compute_optimal(scaling_law("chinchilla-20"), 5.76e23).parameters / 67e9, 1.0, 0.1);
}

TEST(Scaling, TheOptimumIsAMinimumOfTheLoss) {
  for (const char* name : {"epoch", "hoffmann", "hoffmann-unrounded"}) {
    const ScalingLaw& law = scaling_law(name);
    Optimum best = compute_optimal(law, 1e22);
    for (double factor : {0.8, 0.99, 1.01, 1.25}) {
      EXPECT_GT(law.loss(best.parameters * factor, best.tokens / factor), best.loss) << name;
    }
  }
}

TEST(Scaling, CheapestForLossInvertsTheOptimum) {
  for (const ScalingLaw& law : scaling_laws()) {
    Optimum best = compute_optimal(law, 3e21);
    const Optimum cheapest = cheapest_for_loss(law, best.loss);
    if (law.kind == ScalingLaw::Kind::kaplan) {  // whose rule for the best size is not the minimum of his law
      EXPECT_LT(cheapest.flops, 3e21);
      for (double factor : {0.8, 1.25}) {
        const double n = cheapest.parameters * factor;
        EXPECT_GT(6 * n * tokens_for_loss(law, n, best.loss), cheapest.flops);
      }
    } else {
      EXPECT_NEAR(cheapest.flops / 3e21, 1, 1e-6) << law.name;
    }
    EXPECT_NEAR(tokens_for_loss(law, best.parameters, best.loss) / best.tokens, 1, 1e-6) << law.name;
  }
  EXPECT_THROW(cheapest_for_loss(scaling_law("epoch"), 1.5), base::UsageError);
}

TEST(Scaling, InferenceMakesSmallerModelsTrainedLongerCheaper) {
  const ScalingLaw& law = scaling_law("epoch");
  double loss = compute_optimal(law, 1e23).loss;
  LifetimeOptimum none = optimal_with_inference(law, loss, 0), some = optimal_with_inference(law, loss, 2e12),
                  much = optimal_with_inference(law, loss, 2e14);
  EXPECT_NEAR(none.model.parameters / none.train_only.parameters, 1, 1e-3);
  EXPECT_LT(some.model.parameters, 0.95 * none.model.parameters);
  EXPECT_LT(much.model.parameters, some.model.parameters);
  EXPECT_LT(much.total_flops, much.train_only_total);
  EXPECT_NEAR(law.loss(much.model.parameters, much.model.tokens), loss, 1e-9);
  // A stationary point: 6 N D + 2 N D_i does not fall to either side.
  for (double factor : {0.97, 1.03}) {
    double n = some.model.parameters * factor;
    EXPECT_GT(6 * n * tokens_for_loss(law, n, loss) + 2 * n * 2e12, some.total_flops);
  }
}

TEST(Scaling, OverTrainingOfLlama3_8b) {
  OverTraining over = over_training(scaling_law("epoch"), 8.03e9, 15e12);
  EXPECT_NEAR(over.tokens_per_parameter, 1868, 1);
  EXPECT_GT(over.extra_compute, 1);  // more than twice the compute of the cheapest way
  EXPECT_GT(over.smaller, 0.5);      // and less than half its size
}

TEST(Scaling, NonsenseIsRefused) {
  EXPECT_THROW(compute_optimal(scaling_law("epoch"), 0), base::UsageError);
  EXPECT_THROW(compute_optimal(scaling_law("epoch"), NAN), base::UsageError);
  EXPECT_THROW(scaling_law("epcoh"), base::UsageError);
}

TEST(Batch, CriticalBatchByBothLaws) {
  const double losses[] = {2.22, 1.98, 1.77, 1.58}, own[] = {16, 32, 64, 128}, kaplan[] = {4.6, 7.9, 13.5, 23.4};
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(critical_batch_law("minimax-01").at(losses[i]) / 1e6 / own[i], 1, 0.008);
    EXPECT_NEAR(critical_batch_law("kaplan").at(losses[i]) / 1e6, kaplan[i], 0.06);
  }
}

TEST(Batch, PublishedScheduleIs132469Steps) {
  EXPECT_EQ(count_steps(parse_batch_schedule("16M@0,32M@69B,64M@790B,128M@4700B"), 10'400e9), 132'469);
  EXPECT_EQ(count_steps({{0, 4e6}}, 1e12), 250'000);
  EXPECT_EQ(count_steps({{0, 3}}, 10), 4);
}

TEST(Batch, BrokenSchedulesAreRefused) {
  EXPECT_THROW(count_steps(parse_batch_schedule("16M@5B"), 1e12), base::UsageError);
  EXPECT_THROW(count_steps(parse_batch_schedule("16M@0,32M@2T"), 1e12), base::UsageError);
  EXPECT_THROW(count_steps(parse_batch_schedule("16M@0,32M@9B,64M@8B"), 1e12), base::UsageError);
  EXPECT_THROW(parse_batch_schedule("16X@0"), base::UsageError);
  EXPECT_THROW(parse_batch_schedule(""), base::UsageError);
}

TEST(Batch, AtTheCriticalBatchBothCostsDouble) {
  BatchCost cost = cost_of_batch(4e6, 4e6);
  EXPECT_EQ(cost.steps_ratio, 2);
  EXPECT_EQ(cost.tokens_ratio, 2);
  BatchCost other = cost_of_batch(1e6, 7e6);
  EXPECT_NEAR((other.steps_ratio - 1) * (other.tokens_ratio - 1), 1, 1e-12);
}

TEST(Batch, MadeScheduleFollowsThePredictedLoss) {
  const ScalingLaw& law = scaling_law("epoch");
  const CriticalBatchLaw& critical = critical_batch_law("minimax-01");
  auto stages = make_batch_schedule(law, critical, 70e9, 15e12, 1e6, 64e6);
  ASSERT_GE(stages.size(), 3u);
  EXPECT_EQ(stages[0].from_tokens, 0);
  for (size_t i = 1; i < stages.size(); ++i) {
    EXPECT_GT(stages[i].from_tokens, stages[i - 1].from_tokens);
    EXPECT_NEAR(critical.at(law.loss(70e9, stages[i].from_tokens)) / stages[i].batch_tokens, 1, 1e-6);
  }
  EXPECT_GT(count_steps(stages, 15e12), 15e12 / 64e6);
}

TEST(Batch, CountsWithSuffixesParse) {
  EXPECT_EQ(parse_count("15.6T", "tokens"), 15.6e12);
  EXPECT_EQ(parse_count("32K", "tokens"), 32000);
  for (const char* bad : {"", "T", "-3B", "0", "12Q", "nan", "1e999"})
    EXPECT_THROW(parse_count(bad, "tokens"), base::UsageError);
}

}  // namespace
}  // namespace sinter::plan
