#include "plan/search.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/error.h"
#include "plan/models.h"
#include "spec/parameters.h"
#include "spec/recipe.h"

namespace sinter::plan {
namespace {

SearchRequest request_for(const std::string& model, const std::string& cluster, int64_t batch, int64_t seq_len = 4096) {
  static const HardwareTable hardware = load_hardware();
  SearchRequest request;
  request.model = resolve_model(model).spec;
  request.cluster = parse_cluster(hardware, cluster);
  request.global_batch = batch;
  request.seq_len = seq_len;
  return request;
}

std::string show(const SearchResult& result) {
  std::string text;
  for (const Candidate& c : result.best) {
    text += spec::describe(c.parallel) + "  " + std::to_string(c.step.seconds) + " s  " + c.why + "\n";
  }
  return text;
}

TEST(Search, TensorParallelismLeavesTheNodeOnlyWhereThatIsPredictedFaster) {
  for (const char* cluster : {"64xA100-80GB", "64xH100"}) {
    SearchRequest request = request_for("llama-3.1-70b", cluster, 256);
    SearchResult free = search_layouts(request);
    request.max_tp = request.cluster.per_node;
    SearchResult inside = search_layouts(request);
    ASSERT_FALSE(free.best.empty());
    if (free.best[0].parallel.tp > request.cluster.per_node) {
      EXPECT_LT(free.best[0].step.seconds, inside.best[0].step.seconds);
    } else {
      EXPECT_EQ(free.best[0].step.seconds, inside.best[0].step.seconds);
    }
    EXPECT_LE(free.best[0].parallel.tp, request.cluster.per_node) << show(free);
    // The same width over the network alone costs more than inside the node.
    request.max_tp = 0;
    request.tp = 16;
    SearchResult wide = search_layouts(request);
    ASSERT_FALSE(wide.best.empty());
    EXPECT_GT(wide.best[0].step.seconds, inside.best[0].step.seconds);
  }
}

TEST(Search, WithoutFastLinksThePipelineComesBeforeTensorParallelism) {
  // 13B in 24 GB each, PCIe only: the model must be cut.
  SearchRequest request = request_for("llama-2-13b", "32xA10", 128, 2048);
  request.zero = 1;
  SearchResult result = search_layouts(request);
  ASSERT_FALSE(result.best.empty());
  const spec::ParallelSpec& p = result.best[0].parallel;
  EXPECT_GT(p.pp, 1) << show(result);
  EXPECT_LT(p.tp, p.pp) << show(result);
}

TEST(Search, AModelThatFitsOneNodeIsShardedInsideAndReplicatedAcross) {
  SearchRequest request = request_for("llama-2-13b", "64xA100-80GB", 1024, 4096);
  request.cluster.network.bandwidth /= 4;  // a slow network between fast nodes
  SearchResult result = search_layouts(request);
  ASSERT_FALSE(result.best.empty());
  const spec::ParallelSpec& p = result.best[0].parallel;
  EXPECT_GT(p.zero, 0) << show(result);
  EXPECT_GT(p.replica, 1) << show(result);
  EXPECT_LE(p.shard * p.tp, request.cluster.per_node) << show(result);
}

TEST(Search, ASlowNetworkAndLittleMemoryGiveDataPipelineTensorAndZeroOne) {
  SearchRequest request = request_for("llama-2-70b", "128xA100-40GB", 512, 4096);
  request.cluster.network.bandwidth = 12.5e9;
  request.cluster.rails = 1;
  SearchResult result = search_layouts(request);
  ASSERT_FALSE(result.best.empty());
  const spec::ParallelSpec& p = result.best[0].parallel;
  EXPECT_GT(p.dp(), 1) << show(result);
  EXPECT_GT(p.pp, 1) << show(result);
  EXPECT_GT(p.tp, 1) << show(result);
  EXPECT_EQ(p.zero, 1) << show(result);
}

TEST(Search, EveryCandidateFitsAndUsesAllDevices) {
  SearchRequest request = request_for("mixtral-8x7b", "64xA100-80GB", 256);
  SearchResult result = search_layouts(request);
  ASSERT_FALSE(result.best.empty());
  for (const Candidate& c : result.best) {
    EXPECT_EQ(c.parallel.ranks(), 64);
    EXPECT_LE(c.memory.device.total(), result.usable_bytes);
    EXPECT_EQ(spec::layout_problem(c.parallel, request.model), "");
  }
  for (size_t i = 1; i < result.best.size(); ++i) {
    EXPECT_GE(result.best[i].step.seconds, result.best[i - 1].step.seconds);
    EXPECT_FALSE(result.best[i].why.empty());
  }
}

TEST(Search, AThousandDevicesAreSearchedWhole) {
  SearchRequest request = request_for("llama-3.1-405b", "1024xH100", 1024, 8192);
  SearchResult result = search_layouts(request);
  EXPECT_GT(result.considered, 2000);
  ASSERT_FALSE(result.best.empty());
  EXPECT_FALSE(result.rejected.empty());
  EXPECT_GT(result.best[0].step.mfu, 0.25);
  EXPECT_LT(result.best[0].step.mfu, 0.70);
}

TEST(Search, NothingFitsNamesTheSmallestLayout) {
  SearchResult result = search_layouts(request_for("llama-3.1-405b", "8xT4", 8, 8192));
  EXPECT_TRUE(result.nothing_fits);
  EXPECT_GT(result.smallest_memory.device.total(), result.usable_bytes);
  EXPECT_GT(result.smallest.ranks(), 1);
}

TEST(Search, ImpossibleConstraintsNameTheNearestValidChoice) {
  SearchRequest request = request_for("llama-3.1-8b", "8xH100", 8);
  request.tp = 3;
  try {
    search_layouts(request);
    FAIL() << "tp 3 was accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("nearest"), std::string::npos) << e.what();
  }
  request.tp = 0;
  request.global_batch = 0;
  EXPECT_THROW(search_layouts(request), base::Error);
}

TEST(Search, WidthsInsideTheDivisionAreCheckedWithTheNearestChoice) {
  auto error = [](const char* model, auto change) -> std::string {
    SearchRequest request = request_for(model, "8xH100", 64);
    change(request);
    try {
      search_layouts(request);
    } catch (const base::UsageError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(error("llama-3.1-8b", [](SearchRequest& r) { r.shard = 3; }),
            "search: shard 3 does not divide 8 data-parallel ranks; the nearest that does is 4");
  EXPECT_EQ(error("llama-3.1-8b", [](SearchRequest& r) { r.ep = 2; }),
            "search: ep 2, but the model has no experts; leave ep out");
  EXPECT_EQ(error("mixtral-8x7b", [](SearchRequest& r) { r.ep = 3; }),
            "search: ep 3 does not divide 8 experts; the nearest that does is 4");
  EXPECT_EQ(error("llama-3.1-8b", [](SearchRequest& r) { r.micro_batch = 7; }),
            "search: micro-batch 7 does not divide the batch of 64 sequences; the nearest that does is 8");
  EXPECT_EQ(error("llama-3.1-8b", [](SearchRequest& r) { r.tp = 4, r.pp = 4; }),
            "search: tp x pp x cp = 16 does not divide 8 devices; the nearest that does is 8");
}

TEST(Search, AWiderSpreadOverNodesMustBePredictedMuchFaster) {
  EXPECT_EQ(choose_layout({{1.0, 4}, {1.1, 2}, {1.15, 2}, {1.3, 1}}), 1u);
  EXPECT_EQ(choose_layout({{1.0, 4}, {1.25, 2}}), 0u);
  EXPECT_EQ(choose_layout({{2.0, 1}, {1.0, 1}}), 1u);
}

TEST(Search, TheRecipeOfADataParallelLayoutIsReadByTheTrainer) {
  SearchRequest request = request_for("gpt2", "4xH100", 16, 1024);
  request.format = MatrixFormat::fp8;
  spec::ParallelSpec p;
  p.replica = 4;
  p.micro_batch = 2;
  p.global_batch = 16;
  p.seq_len = 1024;
  p.moments = base::DType::bf16;
  const std::string text = training_recipe(request, resolve_model("gpt2"), p);
  spec::Recipe recipe = spec::parse_recipe(text, "emitted");
  EXPECT_EQ(recipe.parallel.dp(), 4);
  EXPECT_EQ(recipe.train.batch_tokens, 16 * 1024);
  EXPECT_EQ(recipe.train.device, "cuda");
  EXPECT_EQ(recipe.train.precision, base::DType::f8e4m3);
  EXPECT_EQ(recipe.optimizer.states, base::DType::bf16);
  EXPECT_EQ(recipe.data.sequence_length, 1024);
  ASSERT_EQ(recipe.data.sources.size(), 1u);
  EXPECT_TRUE(recipe.data.sources[0].path.starts_with("FILL-IN"));
  EXPECT_EQ(text.find("does not do"), std::string::npos);
}

// Keys that the trainer does not have would make `sinter train` refuse the whole file.
TEST(Search, KeysOfALayoutStandInItsRecipe) {
  SearchRequest request = request_for("llama-3.1-70b", "64xH100", 64);
  spec::ParallelSpec p;
  p.shard = 4;
  p.tp = p.pp = 4;
  p.zero = 1;
  p.interleave = 5;
  p.schedule = spec::PipelineKind::interleaved;
  p.sequence_parallel = p.offload.optimizer = true;
  p.global_batch = 64;
  const std::string text = training_recipe(request, resolve_model("llama-3.1-70b"), p);
  EXPECT_EQ(spec::parse_recipe(text, "emitted").parallel.dp(), 4);
  for (const char* line :
       {"\nzero = 1\n", "\ntp = 4\n", "\npp = 4\n", "\ninterleave = 5\n", "\nschedule = \"interleaved\"\n",
        "\nsequence_parallel = true\n", "\noffload_optimizer = true\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  }
  EXPECT_EQ(slurm_script(p, request.cluster, "r.toml", "llama", 1).find("does not do"), std::string::npos);
}

TEST(Search, WhatTheTrainerDoesNotDoStandsInCommentsOfTheRecipe) {
  SearchRequest request = request_for("mixtral-8x7b", "8xH100", 8);
  spec::ParallelSpec p;
  p.shard = 4, p.ep = 8, p.global_batch = 8;
  const std::string text = training_recipe(request, resolve_model("mixtral-8x7b"), p);
  EXPECT_NE(text.find("\n# ep = 8  "), std::string::npos) << text;
  const std::string script = slurm_script(p, request.cluster, "r.toml", "mixtral", 1);
  EXPECT_NE(script.find("does not do ep = 8 yet"), std::string::npos) << script;
}

TEST(Search, TheRecipeOfEveryKnownModelIsThatModel) {
  for (const ModelPreset& preset : model_presets()) {
    SearchRequest request = request_for(preset.name, "8xH100", 8, 512);
    const std::string text = training_recipe(request, resolve_model(preset.name), spec::ParallelSpec{});
    const spec::ModelSpec read = spec::make_model_spec(spec::parse_recipe(text, preset.name), 0);
    const spec::ParameterCounts wanted = spec::count_parameters(preset.spec), got = spec::count_parameters(read);
    EXPECT_EQ(got.total, wanted.total) << preset.name;
    EXPECT_EQ(got.active, wanted.active) << preset.name;
    EXPECT_EQ(read.rope.theta, preset.spec.rope.theta) << preset.name;
    EXPECT_EQ(read.norm_eps, preset.spec.norm_eps) << preset.name;
    EXPECT_EQ(read.window, preset.spec.window) << preset.name;
    EXPECT_EQ(read.max_positions, preset.spec.max_positions) << preset.name;
  }
}

TEST(Search, TheRecipeOfAModelFromAFileNamesItsFolder) {
  SearchRequest request = request_for("gpt2", "8xH100", 8, 512);
  ResolvedModel model = resolve_model("gpt2");
  auto path_of = [&](const char* config) {
    model.config = config;
    return spec::parse_recipe(training_recipe(request, model, spec::ParallelSpec{}), "emitted").model.path;
  };
  EXPECT_EQ(path_of("my \"own\" model/config.json"), "my \"own\" model");
  EXPECT_EQ(path_of("config.json"), ".");
  EXPECT_TRUE(path_of("shapes/small.json").starts_with("FILL-IN"));
}

TEST(Search, TheSlurmScriptAsksForTheRanksOfTheLayout) {
  SearchRequest request = request_for("llama-3.1-8b", "32xH100", 64);
  spec::ParallelSpec p;
  p.replica = 32;
  std::string script = slurm_script(p, request.cluster, "recipe.toml", "llama", 36.5);
  EXPECT_NE(script.find("--nodes=4\n"), std::string::npos);
  EXPECT_NE(script.find("--ntasks-per-node=8\n"), std::string::npos);
  EXPECT_NE(script.find("--time=1-12:30:00\n"), std::string::npos);
  EXPECT_NE(script.find(" sinter train \"$recipe\"\n"), std::string::npos) << script;
  EXPECT_EQ(script.find("does not do"), std::string::npos);
  script = slurm_script(p, request.cluster, "it's mine.toml", "llama", 1);
  EXPECT_NE(script.find(R"(recipe='it'\''s mine.toml')"), std::string::npos) << script;
}

}  // namespace
}  // namespace sinter::plan
