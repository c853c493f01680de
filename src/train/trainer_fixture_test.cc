#include "train/trainer_fixture.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/threads.h"
#include "data/token_shard.h"

namespace sinter::train {

void TrainerTest::SetUp() {
  base::set_log_level(base::LogLevel::error);
  base::set_num_threads(1);
  dir_ = (fs::temp_directory_path() / ("sinter_trainer_" + std::to_string(::getpid()))).string();
  fs::remove_all(dir_);
  fs::create_directories(dir_);
  // Documents of 3 to 40 tokens in which the next token follows from the last by a rule.
  for (const char* name : {"/a.tok", "/v.tok"}) {
    data::TokenShardWriter writer(dir_ + name, 48, 0);
    base::CounterRng rng{5, name[1] == 'a' ? 1u : 2u};
    for (uint64_t d = 0; d < 60; ++d) {
      std::vector<int32_t> tokens{static_cast<int32_t>(rng.bits(2 * d) % 47)};
      const uint32_t length = 3 + rng.bits(2 * d + 1) % 38;
      while (tokens.size() < length) tokens.push_back((tokens.back() * 5 + 3) % 47);
      tokens.push_back(47);
      writer.add_document(tokens);
    }
    writer.commit();
  }
}

spec::Recipe TrainerTest::recipe(const std::string& run, const std::vector<std::string>& overrides) const {
  const std::string text =
      "[model]\nfamily = 'llama'\nhidden = 32\nlayers = 2\nheads = 4\nkv_heads = 2\nffn = 48\n[data]\nsources = '" +
      dir_ + "/a.tok'\nvalidation = '" + dir_ +
      "/v.tok'\nsequence_length = 24\n[train]\nsteps = 6\nmicro_batch = 8\nbatch_tokens = 192\n" +
      "[optimizer]\nlr = 3e-3\n[checkpoint]\ndir = '" + dir_ + "/" + run + "'\n";
  return spec::parse_recipe(text, "test", overrides);
}

std::string TrainerTest::weights(const std::string& run) const {
  return base::read_file(dir_ + "/" + run + "/latest/model.safetensors");
}
std::string TrainerTest::state(const std::string& run) const {
  return base::read_file(dir_ + "/" + run + "/latest/state/rank-00000.safetensors");
}
nlohmann::json TrainerTest::index(const std::string& run) const {
  return nlohmann::json::parse(base::read_file(dir_ + "/" + run + "/latest/state/index.json"));
}

std::vector<nlohmann::json> TrainerTest::metrics(const std::string& run) const {
  std::vector<nlohmann::json> lines;
  const std::string content = base::read_file(dir_ + "/" + run + "/metrics.jsonl");
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = content.find('\n', begin);
    lines.push_back(nlohmann::json::parse(content.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

}  // namespace sinter::train
