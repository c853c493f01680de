#include "plan/flops.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/models.h"
#include "spec/parameters.h"

namespace sinter::plan {
namespace {

double train_flops(const char* model, double seq, const char* convention) {
  return train_flops_per_token(make_flop_basis(resolve_model(model).spec), seq, flop_convention(convention)).total();
}

double formula(const char* model, const std::string& name) {
  for (const FormulaCount& f : parameter_formulas(resolve_model(model).spec)) {
    if (f.formula == name) return f.value;
  }
  ADD_FAILURE() << "no formula " << name;
  return 0;
}

TEST(Parameters, FormulasOfTheLiteratureComeOut) {
  EXPECT_EQ(formula("gpt2", "h v + L (12 h^2 + 13 h) + 2 h"), 123'653'376);
  EXPECT_EQ(formula("gpt2", "h v + s h + L (12 h^2 + 13 h) + 2 h"), 124'439'808);
  EXPECT_EQ(formula("gpt3-175b", "12 L h^2 + 2 h v"), 175'181'291'520);
  EXPECT_EQ(formula("llama-3.1-70b", "2 v h + L (2 h q + 2 h k + 3 h f + 2 h) + h"), 70'553'706'496);
}

TEST(Flops, EachConventionCountsAttentionItsOwnWay) {
  const double L = 12, width = 768, s = 1024, gpt2 = 124'439'808;
  const double lws = L * width * s, matrices = 12 * L * width * width, head = 50257.0 * 768;
  EXPECT_EQ(train_flops("gpt2", s, "6nd"), 6 * gpt2);
  EXPECT_EQ(train_flops("gpt2", s, "kaplan"), 6 * (gpt2 - 50257.0 * 768 - 1024.0 * 768));
  EXPECT_EQ(train_flops("gpt2", s, "palm"), 6 * gpt2 + 12 * lws);
  EXPECT_EQ(train_flops("gpt2", s, "palm-causal"), 6 * gpt2 + 6 * lws);
  EXPECT_EQ(train_flops("gpt2", s, "torchtitan"), 6 * gpt2 + 12 * lws);  // tied: nothing to leave out
  EXPECT_EQ(train_flops("gpt2", s, "dgxc"), 6 * (matrices + head) + 12 * lws);
  EXPECT_EQ(train_flops("gpt2", s, "megatron"), 6 * (matrices + head) + 6 * lws);
  EXPECT_EQ(train_flops("gpt2", s, "flash"), 6 * (matrices + head) + 7 * lws);
  EXPECT_EQ(train_flops("gpt2", s, "recompute"), 8 * matrices + 6 * head + 8 * lws);
  const double llama = 8'030'261'248, table = 128256.0 * 4096;
  EXPECT_EQ(train_flops("llama-3-8b", 8192, "torchtitan"), 6 * (llama - table) + 12 * 32 * 4096 * 8192.0);
  EXPECT_EQ(train_flops("llama-3-8b", 8192, "kaplan"), 6 * (llama - 2 * table));
}

TEST(Flops, KorthikantiAndNarayananFormulasComeOut) {
  const double L = 96, h = 12288, s = 2048, V = 50257;
  EXPECT_NEAR(train_flops("gpt3-175b", s, "dgxc"), 72 * L * h * h * (1 + s / (6 * h) + V / (12 * h * L)), 1e3);
  EXPECT_NEAR(train_flops("gpt3-175b", s, "sc21"), 96 * L * h * h * (1 + s / (6 * h) + V / (16 * h * L)), 1e3);
}

TEST(Flops, FullRecomputeAddsThirtyToFortyPercent) {
  double extra = train_flops("gpt3-175b", 2048, "sc21") / train_flops("gpt3-175b", 2048, "dgxc");
  EXPECT_GT(extra, 1.30);
  EXPECT_LT(extra, 1.40);
}

TEST(Flops, ForwardPartsAddUpToOneThirdOfTraining) {
  for (const char* name : {"gpt2", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "mistral-7b"}) {
    spec::ModelSpec spec = resolve_model(name).spec;
    double sum = 0;
    for (const FlopPart& part : forward_parts(spec, 8192, false)) sum += part.flops;
    EXPECT_NEAR(sum / train_flops(name, 8192, "dgxc"), 1.0 / 3, 1e-12) << name;
    EXPECT_NEAR(forward_flops_per_token(make_flop_basis(spec), 8192, flop_convention("sc21")).total() / sum, 1, 1e-12);
  }
}

TEST(Flops, WindowsBoundTheKeysAQuerySees) {
  FlopBasis basis = make_flop_basis(resolve_model("mistral-7b").spec);
  EXPECT_EQ(attended_keys(basis, 2048), 32 * 2048);
  EXPECT_EQ(attended_keys(basis, 32768), 32 * 4096);
}

TEST(Flops, SparseModelsCountTheChosenExperts) {
  EXPECT_EQ(train_flops("mixtral-8x7b", 4096, "6nd"), 6.0 * 12'879'925'248);
}

TEST(Flops, UnknownConventionNamesTheNearest) { EXPECT_THROW(flop_convention("plam"), base::UsageError); }

TEST(Flops, GptThreeTrainingComputeIsTheTablesFigure) {
  EXPECT_NEAR(train_flops("gpt3-175b", 2048, "6nd") * 300e9 / 3.14e23, 1, 0.005);
}

}  // namespace
}  // namespace sinter::plan
