#include "spec/recipe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "base/error.h"
#include "base/source_dir.h"
#include "spec/recipe_keys.h"

namespace sinter::spec {
namespace {

const char* const kText = R"(
[model]
family = "llama"
hidden = 64
layers = 2
heads = 4
[data]
sources = [{path = "a.tok", weight = 3.0}, "b.txt"]
[train]
steps = 10
[optimizer]
kind = "muon"
)";

std::string error_of(std::string_view text, const std::vector<std::string>& overrides = {}) {
  try {
    parse_recipe(text, "r.toml", overrides);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(Recipe, ReadsValuesAndKeepsDefaults) {
  Recipe r = parse_recipe(kText, "r.toml");
  EXPECT_EQ(r.model.hidden, 64);
  ASSERT_EQ(r.data.sources.size(), 2u);
  EXPECT_EQ(r.data.sources[0].weight, 3.0);
  EXPECT_EQ(r.data.sources[1].path, "b.txt");
  EXPECT_EQ(r.optimizer.kind, OptimizerKind::muon);
  EXPECT_EQ(r.optimizer.beta2, Recipe{}.optimizer.beta2);
}

TEST(Recipe, OverridesWinAndBareWordsAreStrings) {
  Recipe r =
      parse_recipe(kText, "r.toml", {"train.steps=7", "optimizer.kind=sgd", "data.sources=c.txt", "log.every=3"});
  EXPECT_EQ(r.train.steps, 7);
  EXPECT_EQ(r.optimizer.kind, OptimizerKind::sgd);
  ASSERT_EQ(r.data.sources.size(), 1u);
  EXPECT_EQ(r.data.sources[0].path, "c.txt");
  EXPECT_EQ(r.log.every, 3);
}

TEST(Recipe, StepsOnTheCommandLineTakeThePlaceOfTheFilesTokens) {
  const std::string steps = recipe_template("small");
  ASSERT_GT(parse_recipe(steps, "small").train.tokens, 0);
  const Recipe r = parse_recipe(steps, "small", {"train.steps=200"});
  EXPECT_EQ(r.train.steps, 200);
  EXPECT_EQ(r.train.tokens, 0);
  EXPECT_EQ(parse_recipe(kText, "r.toml", {"train.tokens=4096"}).train.steps, 0);
  EXPECT_NE(error_of(kText, {"train.steps=1", "train.tokens=1"}).find("keep one"), std::string::npos);
}

TEST(Recipe, UnknownNamesSuggestTheNearest) {
  EXPECT_NE(error_of(kText, {"train.stepz=7"}).find("did you mean 'steps'"), std::string::npos);
  EXPECT_EQ(error_of(kText, {"train.stepz=7"}).find("r.toml with train.stepz=7: "), 0u);
  EXPECT_NE(error_of(kText, {"trian.steps=7"}).find("did you mean 'train'"), std::string::npos);
  EXPECT_NE(error_of(kText, {"schedule.kind=cosin"}).find("did you mean 'cosine'"), std::string::npos);
}

// What is wrong on the command line is said as such: the program exits with 2.
TEST(Recipe, AnOverrideThatCannotBeReadIsAnErrorOfUsageUnlessTheFileIsWrongToo) {
  EXPECT_THROW(parse_recipe(kText, "r.toml", {"train.stepz=7"}), base::UsageError);
  EXPECT_THROW(parse_recipe(kText, "r.toml", {"train.steps=many"}), base::UsageError);
  try {
    parse_recipe(std::string(kText) + "[log]\nevry = 3\n", "r.toml", {"train.stepz=7"});
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_EQ(dynamic_cast<const base::UsageError*>(&e), nullptr);
  }
}

TEST(Recipe, WrongTypesAndValuesNameTheKey) {
  EXPECT_NE(error_of(kText, {"train.steps=\"many\""}).find("train.steps is 'many'; expected a number"),
            std::string::npos);
  EXPECT_NE(error_of(kText, {"train.steps=1.5"}).find("whole number"), std::string::npos);
  EXPECT_NE(error_of(kText, {"train.micro_batch=0"}).find("train.micro_batch is 0"), std::string::npos);
  EXPECT_NE(error_of(kText, {"schedule.final_ratio=nan"}).find("schedule.final_ratio"), std::string::npos);
  EXPECT_NE(error_of(kText, {"optimizer.beta1=1"}).find("optimizer.beta1 is 1"), std::string::npos);
  EXPECT_NE(error_of(kText, {"optimizer.beta2=1.0"}).find("optimizer.beta2 is 1"), std::string::npos);
  for (const char* key : {"optimizer.eps", "parallel.bucket_mib"}) {
    EXPECT_NE(error_of(kText, {std::string(key) + "=0"}).find(key), std::string::npos);
  }
  // Whole numbers that a double cannot hold.
  EXPECT_NE(error_of(kText, {"optimizer.lr=9007199254740993"}).find("optimizer.lr is 9007199254740993"),
            std::string::npos);
  EXPECT_NE(error_of(kText, {"train.seed=9223372036854775807"}).find("train.seed is 9223372036854775807"),
            std::string::npos);
  EXPECT_NE(error_of("[model\n").find("line 1"), std::string::npos);
  EXPECT_NE(error_of("[model]\nfamily='llama'\n[train]\nsteps=1").find("sources"), std::string::npos);
}

TEST(RecipeKeys, EveryKeyHasAMeaningThatFitsALine) {
  const std::vector<RecipeKey> keys = recipe_keys();
  EXPECT_GT(keys.size(), 80u);
  for (const RecipeKey& key : keys) {
    EXPECT_FALSE(key.meaning.empty()) << key.section << "." << key.name;
    EXPECT_LE(key.meaning.size(), 90u) << key.name;
    EXPECT_EQ(key.range.find("e+"), std::string::npos) << key.name << ": " << key.range;
  }
}

TEST(RecipeKeys, EveryTemplateIsARecipe) {
  for (const std::string& name : template_names()) {
    const Recipe recipe = parse_recipe(recipe_template(name), name);
    EXPECT_GT(recipe.train.tokens, 0) << name;
  }
}

TEST(Recipe, WhatWouldBePassedOverIsRefused) {
  const std::string text =
      "[model]\npath = 'somewhere'\n[data]\nsources = 'a.tok'\n[train]\nsteps = 1\nbatch_tokens = 64\n";
  EXPECT_EQ(parse_recipe(text, "test").model.path, "somewhere");
  EXPECT_EQ(parse_recipe(recipe_to_toml(parse_recipe(text, "test")), "test").model.path, "somewhere");
  for (const char* wrong : {"model.hidden=128", "model.dropout=0.1", "guard.on_nan=off", "checkpoint.time_limit=60",
                            "train.ramp_from_tokens=128 train.ramp_steps=2", "train.steps=abc"}) {
    std::vector<std::string> overrides;
    std::istringstream words(wrong);
    for (std::string word; words >> word;) overrides.push_back(word);
    try {
      parse_recipe(text, "test", overrides);
      ADD_FAILURE() << wrong;
    } catch (const base::Error& e) {
      const std::string key = overrides[0].substr(0, overrides[0].find('='));
      EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
    }
  }
}

TEST(Recipe, KeysThatNothingReadsAreRefusedUnlessTheyHaveTheirDefault) {
  const std::string llama(kText);
  EXPECT_NE(error_of(llama, {"optimizer.kind=adamw", "optimizer.muon_lr=3"}).find("muon_lr is given, but only"),
            std::string::npos);
  EXPECT_EQ(error_of(llama, {"optimizer.kind=adamw", "optimizer.muon_lr=0.02"}), "");
  EXPECT_EQ(error_of(llama, {"optimizer.muon_lr=3"}), "");
  EXPECT_NE(error_of(llama, {"schedule.decay_share=0.5"}).find("wsd"), std::string::npos);
  EXPECT_NE(error_of(llama, {"train.loss_scale=2"}).find("fp16"), std::string::npos);
  EXPECT_NE(error_of(llama, {"model.family=gpt2", "model.rope_theta=3"}).find("rotary"), std::string::npos);
  EXPECT_NE(error_of(llama, {"data.validation_share=0.1", "data.validation=v.txt"}).find("keep one"),
            std::string::npos);
}

TEST(Recipe, AnOverrideThatBeginsAListAndIsNoneIsRefused) {
  for (const char* broken : {"log.sample_prompts=[\"a\",\"b", "data.sources={path = 1", "data.cache=\"x"})
    EXPECT_NE(error_of(kText, {broken}).find("is not TOML"), std::string::npos) << broken;
}

TEST(Recipe, WrittenOutItParsesBackToItself) {
  Recipe r = parse_recipe(kText, "r.toml", {"data.separator=\"\\n\\\"x\\\\\"", "optimizer.lr=1e-3"});
  std::string text = recipe_to_toml(r);
  EXPECT_EQ(recipe_to_toml(parse_recipe(text, "again")), text);
  EXPECT_EQ(parse_recipe(text, "again").data.separator, "\n\"x\\");
}

TEST(Recipe, CudaGraphsAreAutoOnOrOffAndNothingElse) {
  EXPECT_EQ(parse_recipe(kText, "r.toml").train.cuda_graphs, CudaGraphs::automatic);
  const Recipe r = parse_recipe(kText, "r.toml", {"train.cuda_graphs=off"});
  EXPECT_EQ(r.train.cuda_graphs, CudaGraphs::off);
  EXPECT_EQ(parse_recipe(recipe_to_toml(r), "again").train.cuda_graphs, CudaGraphs::off);
  EXPECT_NE(error_of(kText, {"train.cuda_graphs=atuo"}).find("did you mean 'auto'"), std::string::npos);
  EXPECT_NE(error_of(kText, {"train.cuda_graphs=true"}).find("train.cuda_graphs must be a string"), std::string::npos);
}

TEST(Recipe, Fp8IsAPrecisionThatSurvivesWriting) {
  Recipe r = parse_recipe(kText, "r.toml", {"train.precision=fp8"});
  EXPECT_EQ(r.train.precision, base::DType::f8e4m3);
  EXPECT_NE(recipe_to_toml(r).find("precision = \"fp8\""), std::string::npos);
  EXPECT_EQ(parse_recipe(recipe_to_toml(r), "again").train.precision, base::DType::f8e4m3);
}

TEST(Recipe, InlineArchitectureFillsFamilyTraits) {
  ModelSpec llama = make_model_spec(parse_recipe(kText, "r.toml"), 300);
  EXPECT_EQ(llama.vocab_size, 300);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.ffn, 192);
  EXPECT_EQ(llama.rope.kind, RopeKind::standard);
  ModelSpec gpt2 = make_model_spec(parse_recipe(kText, "r.toml", {"model.family=gpt2"}), 300);
  EXPECT_TRUE(gpt2.learned_positions && gpt2.qkv_bias && !gpt2.gated_mlp);
  ModelSpec moe = make_model_spec(parse_recipe(kText, "r.toml", {"model.family=mixtral", "model.experts=4"}), 300);
  EXPECT_TRUE(moe.is_sparse(1));
  for (const char* unsaid : {"model.kv_heads=1", "model.head_dim=8"}) {
    EXPECT_THROW(make_model_spec(parse_recipe(kText, "r.toml", {"model.family=gpt2", unsaid}), 300), base::Error);
  }
  EXPECT_THROW(make_model_spec(parse_recipe(kText, "r.toml", {"model.experts=4"}), 300), base::Error);
  EXPECT_THROW(make_model_spec(parse_recipe(kText, "r.toml", {"model.vocab_size=200"}), 300), base::Error);
  EXPECT_THROW(make_model_spec(parse_recipe(kText, "r.toml", {"model.rope_theta=0"}), 300), base::Error);
}

// The shipped recipes: every key known, and a model that can be made of them.
TEST(Recipe, ShippedOnesMakeModels) {
  int recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(base::source_dir() + "/recipes")) {
    if (!entry.is_regular_file()) continue;  // folders hold recipes of other verbs
    SCOPED_TRACE(entry.path());
    const Recipe recipe = load_recipe(entry.path(), {});
    EXPECT_GT(make_model_spec(recipe, 2048).num_layers, 0);
    ++recipes;
  }
  EXPECT_GE(recipes, 4);
}

}  // namespace
}  // namespace sinter::spec
