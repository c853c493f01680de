#include "plan/models.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/source_dir.h"
#include "spec/parameters.h"

namespace sinter::plan {
namespace {

TEST(Models, ParameterCountsOfPublicModelsAreExact) {
  const std::pair<const char*, int64_t> published[] = {{"gpt2", 124'439'808},
                                                       {"gpt2-medium", 354'823'168},
                                                       {"gpt2-large", 774'030'080},
                                                       {"gpt2-xl", 1'557'611'200},
                                                       {"llama-7b", 6'738'415'616},
                                                       {"llama-13b", 13'015'864'320},
                                                       {"llama-33b", 32'528'943'616},
                                                       {"llama-65b", 65'285'660'672},
                                                       {"llama-2-7b", 6'738'415'616},
                                                       {"llama-2-13b", 13'015'864'320},
                                                       {"llama-2-34b", 33'743'970'304},
                                                       {"llama-2-70b", 68'976'648'192},
                                                       {"llama-3-8b", 8'030'261'248},
                                                       {"llama-3-70b", 70'553'706'496},
                                                       {"llama-3.1-8b", 8'030'261'248},
                                                       {"llama-3.1-70b", 70'553'706'496},
                                                       {"llama-3.1-405b", 405'853'388'800},
                                                       {"llama-3.2-1b", 1'235'814'400},
                                                       {"llama-3.2-3b", 3'212'749'824},
                                                       {"tinyllama-1.1b", 1'100'048'384},
                                                       {"smollm2-135m", 134'515'008},
                                                       {"smollm2-360m", 361'821'120},
                                                       {"smollm2-1.7b", 1'711'376'384},
                                                       {"mistral-7b", 7'241'732'096},
                                                       {"mistral-7b-v0.3", 7'248'023'552},
                                                       {"mistral-nemo", 12'247'782'400},
                                                       {"mistral-small-24b", 23'572'403'200},
                                                       {"mistral-large-123b", 122'610'069'504},
                                                       {"mixtral-8x7b", 46'702'792'704},
                                                       {"mixtral-8x22b", 140'620'634'112},
                                                       {"qwen2-0.5b", 494'032'768},
                                                       {"qwen2-1.5b", 1'543'714'304},
                                                       {"qwen2-7b", 7'615'616'512},
                                                       {"qwen2-72b", 72'706'203'648},
                                                       {"qwen2.5-3b", 3'085'938'688},
                                                       {"qwen2.5-14b", 14'770'033'664},
                                                       {"qwen2.5-32b", 32'763'876'352},
                                                       {"qwen3-0.6b", 596'049'920},
                                                       {"qwen3-1.7b", 1'720'574'976},
                                                       {"qwen3-4b", 4'022'468'096},
                                                       {"qwen3-8b", 8'190'735'360},
                                                       {"qwen3-14b", 14'768'307'200},
                                                       {"qwen3-32b", 32'762'123'264},
                                                       {"qwen3-30b-a3b", 30'532'122'624},
                                                       {"qwen3-235b-a22b", 235'093'634'560}};
  for (auto [name, count] : published) EXPECT_EQ(spec::count_parameters(resolve_model(name).spec).total, count) << name;
}

TEST(Models, ActiveParametersOfSparseModels) {
  EXPECT_EQ(spec::count_parameters(resolve_model("mixtral-8x7b").spec).active, 12'879'925'248);
  EXPECT_EQ(spec::count_parameters(resolve_model("qwen3-30b-a3b").spec).active, 3'353'032'704);
}

TEST(Models, EveryPresetIsAValidSpecWithItsOwnName) {
  for (const ModelPreset& preset : model_presets()) {
    EXPECT_NO_THROW(spec::check_model_spec(preset.spec)) << preset.name;
    EXPECT_EQ(resolve_model(preset.name).name, preset.name);
    for (const std::string& alias : preset.aliases) EXPECT_EQ(resolve_model(alias).name, preset.name);
  }
}

TEST(Models, HubNamesResolve) {
  EXPECT_EQ(resolve_model("meta-llama/Llama-3.1-70B-Instruct").name, "llama-3.1-70b");
  EXPECT_EQ(resolve_model("meta-llama/Meta-Llama-3-8B").name, "llama-3-8b");
  EXPECT_EQ(resolve_model("Qwen/Qwen3-30B-A3B").name, "qwen3-30b-a3b");
  EXPECT_EQ(resolve_model("meta-llama/Llama-2-7b-hf").name, "llama-2-7b");
  EXPECT_EQ(resolve_model("mistralai/Mixtral-8x7B-Instruct-v0.1").name, "mixtral-8x7b");
  EXPECT_EQ(resolve_model("mistralai/Mistral-Nemo-Instruct-2407").name, "mistral-nemo-12b");
  EXPECT_EQ(resolve_model("TinyLlama/TinyLlama-1.1B-Chat-v1.0").name, "tinyllama-1.1b");
  EXPECT_EQ(resolve_model("llama3.1:8b").name, "llama-3.1-8b");
  // The instruct model of this one has a vocabulary of its own.
  EXPECT_EQ(spec::count_parameters(resolve_model("mistralai/Mixtral-8x22B-v0.1").spec).total, 140'620'634'112);
  EXPECT_EQ(spec::count_parameters(resolve_model("mistralai/Mixtral-8x22B-Instruct-v0.1").spec).total, 140'630'071'296);
}

TEST(Models, AFolderWithAConfigResolves) {
  EXPECT_EQ(resolve_model(base::source_dir() + "/tests/golden/models/gpt2").spec.family, spec::Family::gpt2);
}

TEST(Models, UnknownNamesSuggestTheNearest) {
  try {
    resolve_model("lama-3.1-70b");
    FAIL();
  } catch (const base::UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("llama-3.1-70b"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sinter::plan
