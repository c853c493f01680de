#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "data/token_shard.h"
#include "data/tokenize.h"

namespace sinter::cli {
namespace {

struct TokenizeFlags {
  std::vector<std::string> inputs;
  std::string tokenizer, output;
  data::TokenizeOptions options;
  bool no_bos = false, no_eos = false, as_json = false;
};

void run_tokenize(TokenizeFlags& flags) {
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(flags.tokenizer);
  flags.options.add_bos = !flags.no_bos;
  flags.options.add_eos = !flags.no_eos;
  base::ProgressLine line;
  flags.options.progress = [&](int64_t done, int64_t all) {
    line.update(fmt::format("tokenizing: {} of {}", base::format_bytes(double(done)), base::format_bytes(double(all))));
  };
  const data::TokenizeResult result = data::tokenize_files(flags.inputs, flags.output, tokenizer, flags.options);
  line.finish();
  if (flags.as_json) {
    nlohmann::json out{{"documents", result.num_documents},
                       {"tokens", result.num_tokens},
                       {"bytes", result.num_bytes},
                       {"shards", result.shards}};
    std::printf("%s\n", out.dump().c_str());
    return;
  }
  std::printf("%s documents, %s tokens (%.2f bytes a token) in %zu shard%s:\n",
              base::format_grouped(result.num_documents).c_str(), base::format_grouped(result.num_tokens).c_str(),
              static_cast<double>(result.num_bytes) / static_cast<double>(std::max<int64_t>(result.num_tokens, 1)),
              result.shards.size(), result.shards.size() == 1 ? "" : "s");
  for (const std::string& shard : result.shards) std::printf("  %s\n", shard.c_str());
}

void run_inspect(const std::vector<std::string>& paths, bool as_json) {
  base::Table table({"shard", "documents", "tokens", "vocabulary", "bytes a token"});
  nlohmann::json report = nlohmann::json::array();
  for (const std::string& path : paths) {
    const data::TokenShard shard(path);
    shard.verify();
    table.add_row({path, base::format_grouped(shard.num_documents()), base::format_grouped(shard.num_tokens()),
                   base::format_grouped(shard.vocab_size()), std::to_string(shard.token_bytes())});
    report.push_back({{"shard", path},
                      {"documents", shard.num_documents()},
                      {"tokens", shard.num_tokens()},
                      {"vocab_size", shard.vocab_size()},
                      {"token_bytes", shard.token_bytes()},
                      {"tokenizer_hash", fmt::format("{:016x}", shard.tokenizer_hash())}});
  }
  std::printf("%s\n", as_json ? report.dump(2).c_str() : table.to_string().c_str());
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("data", "tokenize text into training shards; check shards");
  verb->require_subcommand(1);

  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* tokenize = verb->add_subcommand("tokenize", "text and .jsonl files to token shards");
  tokenize->add_option("inputs", flags->inputs, "text files (documents between --separator) or .jsonl files")
      ->required();
  tokenize->add_option("-t,--tokenizer", flags->tokenizer, "tokenizer folder or file")->required();
  tokenize->add_option("-o,--output", flags->output, "shard to write: NAME.tok, then NAME-00001.tok and on")
      ->required();
  tokenize->add_option("--separator", flags->options.separator, "text between documents of a text file")
      ->capture_default_str();
  tokenize->add_option("--text-key", flags->options.text_key, "field of a .jsonl line that holds the text")
      ->capture_default_str();
  tokenize->add_option("--shard-tokens", flags->options.max_shard_tokens, "most tokens of one shard")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  tokenize->add_flag("--no-bos", flags->no_bos, "no BOS token before each document");
  tokenize->add_flag("--no-eos", flags->no_eos, "no EOS token after each document");
  tokenize->add_flag("--json", flags->as_json, "print the result as JSON");
  tokenize->callback([flags] { run_tokenize(*flags); });

  auto paths = std::make_shared<std::vector<std::string>>();
  auto as_json = std::make_shared<bool>(false);
  CLI::App* inspect = verb->add_subcommand("inspect", "check shards whole and print what they hold");
  inspect->add_option("shards", *paths, "token shards (.tok)")->required();
  inspect->add_flag("--json", *as_json, "print as JSON");
  inspect->callback([paths, as_json] { run_inspect(*paths, *as_json); });
}

}  // namespace sinter::cli
