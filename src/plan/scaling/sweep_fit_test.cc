#include "plan/scaling/sweep_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/rng.h"

namespace sinter::plan {
namespace {

// A grid of budgets and sizes under a known law, with noise on log loss.
std::vector<SweepRow> make_sweep(const ScalingLaw& law, double noise) {
  std::vector<SweepRow> rows;
  base::CounterRng rng{7, 1};
  for (double flops : {1e18, 6e18, 3e19, 2e20, 1e21}) {
    double best = compute_optimal(law, flops).parameters;
    for (double factor : {0.2, 0.35, 0.6, 1.0, 1.6, 2.8, 5.0}) {
      double n = best * factor, d = flops / (6 * n);
      rows.push_back({n, d, law.loss(n, d) * std::exp(noise * rng.normal(rows.size()))});
    }
  }
  return rows;
}

TEST(SweepFit, ExactDataGiveTheLawBack) {
  for (const char* name : {"epoch", "hoffmann"}) {
    const ScalingLaw& law = scaling_law(name);
    ParametricFit fit = fit_parametric(make_sweep(law, 0), 0);
    EXPECT_NEAR(fit.law.E / law.E, 1, 1e-4) << name;
    EXPECT_NEAR(fit.law.alpha / law.alpha, 1, 1e-3) << name;
    EXPECT_NEAR(fit.law.beta / law.beta, 1, 1e-3) << name;
    EXPECT_NEAR(std::log(fit.law.A / law.A), 0, 0.01) << name;
    EXPECT_NEAR(std::log(fit.law.B / law.B), 0, 0.02) << name;
    EXPECT_NEAR(compute_optimal(fit.law, 5.76e23).parameters / compute_optimal(law, 5.76e23).parameters, 1, 0.02);
  }
}

TEST(SweepFit, IntervalsHoldTheTruthUnderNoise) {
  const ScalingLaw& law = scaling_law("epoch");
  ParametricFit fit = fit_parametric(make_sweep(law, 0.002), 100);
  EXPECT_LT(fit.alpha.low, fit.alpha.high);
  EXPECT_LE(fit.alpha.low, law.alpha);
  EXPECT_GE(fit.alpha.high, law.alpha);
  EXPECT_LE(fit.exponent_interval.low, law.beta / (law.alpha + law.beta));
  EXPECT_GE(fit.exponent_interval.high, law.beta / (law.alpha + law.beta));
  EXPECT_NEAR(fit.rms_error, 0.002, 0.001);
}

TEST(SweepFit, OneWildRowHardlyMovesTheFit) {
  const ScalingLaw& law = scaling_law("epoch");
  std::vector<SweepRow> rows = make_sweep(law, 0);
  rows[10].loss *= 1.5;  // a diverged run
  ParametricFit fit = fit_parametric(rows, 0);
  EXPECT_NEAR(fit.law.alpha / law.alpha, 1, 0.02);
  EXPECT_NEAR(fit.law.E / law.E, 1, 0.01);
}

TEST(SweepFit, TheSameSeedGivesTheSameIntervals) {
  std::vector<SweepRow> rows = make_sweep(scaling_law("epoch"), 0.003);
  ParametricFit a = fit_parametric(rows, 20, 1), b = fit_parametric(rows, 20, 1), c = fit_parametric(rows, 20, 2);
  EXPECT_EQ(a.alpha.low, b.alpha.low);
  EXPECT_NE(a.alpha.low, c.alpha.low);
}

TEST(SweepFit, IsoFlopFindsTheOptimalSizes) {
  const ScalingLaw& law = scaling_law("epoch");
  IsoFlopFit fit = fit_isoflop(make_sweep(law, 0.0005), 100);
  ASSERT_EQ(fit.curves.size(), 5u);
  for (const IsoFlopCurve& curve : fit.curves) {
    Optimum truth = compute_optimal(law, curve.flops);
    EXPECT_NEAR(curve.best_parameters / truth.parameters, 1, 0.1);
    EXPECT_NEAR(curve.best_loss / truth.loss, 1, 0.01);
  }
  EXPECT_NEAR(fit.exponent, law.beta / (law.alpha + law.beta), 0.02);
  EXPECT_LT(fit.exponent_interval.low, fit.exponent_interval.high);
}

TEST(SweepFit, BudgetsWithoutAMinimumAreLeftOut) {
  std::vector<SweepRow> rows = make_sweep(scaling_law("epoch"), 0);
  for (double n : {1e9, 2e9, 4e9}) rows.push_back({n, 1e23 / (6 * n), 3.0 - 1e-10 * n});  // still falling
  IsoFlopFit fit = fit_isoflop(rows, 0);
  EXPECT_EQ(fit.curves.size(), 5u);
  ASSERT_EQ(fit.left_out.size(), 1u);
  EXPECT_NEAR(fit.left_out[0] / 1e23, 1, 1e-9);
}

TEST(SweepFit, SweepsParseWithAnyTwoOfThreeColumns) {
  auto a = parse_sweep("params,tokens,loss\n1e8,2e9,3.5\n", "a.csv");
  auto b = parse_sweep("# mine\nloss\tN\tC\n3.5\t1e8\t1.2e18\n\n", "b.csv");
  ASSERT_EQ(a.size(), 1u);
  ASSERT_EQ(b.size(), 1u);
  EXPECT_NEAR(a[0].tokens, b[0].tokens, 1);
}

TEST(SweepFit, BadSweepsNameTheLine) {
  auto error = [](const char* text) -> std::string {
    try {
      parse_sweep(text, "s.csv");
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error("params,tokens,loss\n1e8,2e9,3\n1e8,x,3\n").find("s.csv:3: 'x' in column tokens is not a number"),
            std::string::npos);
  EXPECT_NE(error("a,b\n1,2\n").find("header"), std::string::npos);
  EXPECT_NE(error("").find("empty"), std::string::npos);
  EXPECT_NE(error("params,tokens,loss\n1e8,2e9\n").find("2 cells; the header has 3"), std::string::npos);
  EXPECT_THROW(fit_parametric(parse_sweep("n,d,loss\n1,2,3\n", "s"), 0), base::UsageError);
  EXPECT_THROW(fit_parametric(std::vector<SweepRow>(8, {1e8, 1e9, 3}), 0), base::UsageError);
  EXPECT_THROW(fit_isoflop(std::vector<SweepRow>(8, {1e8, 1e9, 3}), 0), base::UsageError);
}

}  // namespace
}  // namespace sinter::plan
