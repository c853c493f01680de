#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/outside.h"
#include "cli/data/verbs.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "comm/communicator.h"
#include "data/source.h"
#include "data/token_shard.h"
#include "data/tokenize.h"
#include "io/safetensors.h"
#include "train/run_plan.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;

struct TokenizeFlags {
  std::vector<std::string> inputs;
  std::string tokenizer, output, eos;
  data::TokenizeOptions options;
  bool no_bos = false, no_eos = false, as_json = false;
};

void run_tokenize(TokenizeFlags& flags) {
  tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(flags.tokenizer);
  if (!flags.eos.empty()) {
    tokenizer::SpecialIds ids = tokenizer.special_ids();
    ids.eos = tokenizer.token_id(flags.eos);
    if (ids.eos < 0) base::fail_usage("--eos '{}' is no token of '{}'", flags.eos, flags.tokenizer);
    tokenizer.set_special_ids(ids);
  }
  flags.options.add_bos = !flags.no_bos;
  flags.options.add_eos = !flags.no_eos;
  base::ProgressLine line;
  flags.options.progress = [&](int64_t done, int64_t all) {
    line.update(fmt::format("tokenizing: {} of {}", base::format_bytes(double(done)), base::format_bytes(double(all))));
  };
  const data::TokenizeResult result = data::tokenize_files(flags.inputs, flags.output, tokenizer, flags.options);
  line.finish();
  write_tokenizer_beside(result.shards.front(), flags.tokenizer, flags.eos);
  if (flags.as_json) {
    nlohmann::json out{{"documents", result.num_documents},
                       {"tokens", result.num_tokens},
                       {"bytes", result.num_bytes},
                       {"shards", result.shards}};
    std::printf("%s\n", out.dump().c_str());
    return;
  }
  std::printf("%s, %s (%.2f bytes a token) in %s:\n", counted(result.num_documents, "document").c_str(),
              counted(result.num_tokens, "token").c_str(),
              static_cast<double>(result.num_bytes) / static_cast<double>(std::max<int64_t>(result.num_tokens, 1)),
              counted(static_cast<int64_t>(result.shards.size()), "shard").c_str());
  for (const std::string& shard : result.shards) std::printf("  %s\n", shard.c_str());
}

struct InspectFlags {
  std::vector<std::string> paths;
  std::string tokenizer;
  int64_t show = 0;
  bool as_json = false;
};

// The first documents of a shard as text, long ones cut.
void print_documents(const data::TokenShard& shard, const tokenizer::Tokenizer& tokenizer, int64_t count) {
  constexpr int64_t kMostTokens = 200;
  for (int64_t d = 0; d < std::min(count, shard.num_documents()); ++d) {
    const int64_t begin = shard.document_begin(d), length = shard.document_begin(d + 1) - begin;
    std::vector<int32_t> ids(static_cast<size_t>(std::min(length, kMostTokens)));
    shard.read(begin, static_cast<int64_t>(ids.size()), ids.data());
    std::printf("document %s, %s:\n%s%s\n\n", base::format_grouped(d).c_str(), counted(length, "token").c_str(),
                tokenizer.decode(ids).c_str(), length > kMostTokens ? " ..." : "");
  }
}

void show_documents(const InspectFlags& flags, const std::vector<std::string>& shards) {
  const std::string path = flags.tokenizer.empty() ? data::tokenizer_beside(shards.front()) : flags.tokenizer;
  if (path.empty()) base::fail_usage("no tokenizer lies beside '{}': name it with --tokenizer", shards.front());
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(path);
  for (const std::string& name : shards) {
    const data::TokenShard shard(name);
    SINTER_CHECK(shard.tokenizer_hash() == 0 || shard.tokenizer_hash() == data::tokenizer_hash(tokenizer),
                 "'{}' was made with another tokenizer than '{}'", name, path);
    print_documents(shard, tokenizer, flags.show);
  }
}

void run_inspect(const InspectFlags& flags) {
  base::Table table({"shard", "documents", "tokens", "longest", "vocabulary", "bytes a token"});
  nlohmann::json report = nlohmann::json::array();
  std::vector<std::string> shards;
  for (const std::string& path : flags.paths) {
    for (std::string& shard : data::shard_paths(path)) shards.push_back(std::move(shard));
  }
  for (const std::string& path : shards) {
    const data::TokenShard shard(path);
    shard.verify();
    int64_t longest = 0;
    for (int64_t d = 0; d < shard.num_documents(); ++d)
      longest = std::max(longest, shard.document_begin(d + 1) - shard.document_begin(d));
    table.add_row({path, base::format_grouped(shard.num_documents()), base::format_grouped(shard.num_tokens()),
                   base::format_grouped(longest), base::format_grouped(shard.vocab_size()),
                   std::to_string(shard.token_bytes())});
    report.push_back({{"shard", path},
                      {"documents", shard.num_documents()},
                      {"tokens", shard.num_tokens()},
                      {"longest_document", longest},
                      {"vocab_size", shard.vocab_size()},
                      {"token_bytes", shard.token_bytes()},
                      {"tokenizer", data::tokenizer_beside(path)},
                      {"tokenizer_hash", fmt::format("{:016x}", shard.tokenizer_hash())}});
  }
  std::printf("%s\n", flags.as_json ? report.dump(2).c_str() : table.to_string().c_str());
  if (flags.show > 0 && !flags.as_json) show_documents(flags, shards);
}

struct BatchFlags {
  std::string recipe, output;
  std::vector<std::string> overrides;
  int64_t first = 0, steps = 0;
  bool is_validation = false;
};

// What the trainer would read, for other programs: comparisons of two trainers need the same batches.
void run_batches(const BatchFlags& flags) {
  const std::unique_ptr<comm::Communicator> self = comm::make_self();
  const train::RunPlan plan =
      train::make_run_plan(spec::load_recipe(flags.recipe, flags.overrides), parallel::Mesh(*self));
  const int64_t last = flags.steps > 0 ? std::min(flags.first + flags.steps, plan.steps) : plan.steps;
  SINTER_CHECK(flags.is_validation || flags.first < last, "the recipe has {}; nothing from step {} on",
               counted(plan.steps, "step"), flags.first);
  SINTER_CHECK(!flags.is_validation || !plan.loader->validation().empty(), "the recipe has no data.validation");
  auto batches_at = [&](int64_t step) {
    return flags.is_validation ? plan.loader->validation() : plan.loader->step(step);
  };
  const int64_t begin = flags.is_validation ? 0 : flags.first, end = flags.is_validation ? 1 : last;
  int64_t micro_batches = 0;
  for (int64_t step = begin; step < end; ++step) {
    micro_batches += flags.is_validation ? static_cast<int64_t>(plan.loader->validation().size())
                                         : plan.loader->micro_batches_at(step);
  }
  const int64_t T = plan.shape.num_tokens;
  io::SafetensorsWriter writer(flags.output, {{"format", "sinter batches"}});
  for (const char* name : {"tokens", "targets"}) writer.declare(name, base::DType::i32, {micro_batches, T});
  for (int64_t step = begin; step < end; ++step) {
    for (const data::MicroBatch& batch : batches_at(step)) {
      writer.write("tokens", std::as_bytes(std::span(batch.tokens)));
      writer.write("targets", std::as_bytes(std::span(batch.targets)));
    }
  }
  writer.commit();
  std::printf("%s micro-batch%s of %s in %s\n", base::format_grouped(micro_batches).c_str(),
              micro_batches == 1 ? "" : "es", counted(T, "token").c_str(), flags.output.c_str());
}

}  // namespace

void add_data(Command app) {
  const Command verb =
      app.add_verb("data", "raw files to training shards: extract, filter, deduplicate, rank, mix, tokenize");
  verb.requires_verb();
  add_data_pipeline(verb);
  add_data_stages(verb);
  add_data_cut(verb);
  add_data_rank(verb);
  add_data_mix(verb);
  add_data_synth(verb);
  add_data_tokens(verb);

  auto flags = std::make_shared<TokenizeFlags>();
  const Command tokenize = verb.add_verb("tokenize", "text files, folders and tables to token shards");
  tokenize
      .option("inputs", &flags->inputs,
              "files, folders or patterns: .txt and .md (documents between --separator), .jsonl, .json, .csv, "
              ".parquet; .gz and "
              ".zst too")
      .required();
  tokenize.option("-t,--tokenizer", &flags->tokenizer, "tokenizer folder or file").required();
  tokenize
      .option("-o,--output", &flags->output,
              "shard to write: NAME.tok, then NAME-00001.tok and on; those of an older, longer text are removed")
      .required();
  tokenize.option("--separator", &flags->options.separator, "text between documents of a text file").shows_default();
  tokenize.option("--text-key", &flags->options.text_key, "field or column that holds the text").shows_default();
  tokenize.option("--shard-tokens", &flags->options.max_shard_tokens, "most tokens of one shard")
      .shows_default()
      .at_least(1);
  tokenize.flag("--no-bos", &flags->no_bos, "no BOS token before each document");
  tokenize.flag("--no-eos", &flags->no_eos, "no EOS token after each document");
  tokenize.option("--eos", &flags->eos, "the token that ends a document, where the tokenizer's files do not say");
  tokenize.flag("--json", &flags->as_json, "print the result as JSON");
  tokenize.footer(
      "The tokenizer is copied beside the shards (NAME.tokenizer): a run trained on them finds it there.\n\n"
      "Examples:\n"
      "  sinter data tokenize texts/ -t my-tokenizer -o data/train.tok\n"
      "  sinter data tokenize 'books/*.jsonl.gz' -t gpt2 --eos '<|endoftext|>' -o data/books.tok");
  tokenize.on_run([flags] { run_tokenize(*flags); });

  auto look = std::make_shared<InspectFlags>();
  const Command inspect = verb.add_verb("inspect", "check shards whole and print what they hold");
  inspect.option("shards", &look->paths, "token shards (.tok), or folders of them").required();
  inspect.option("--show", &look->show, "print the first documents of each shard as text").at_least(0);
  inspect.option("-t,--tokenizer", &look->tokenizer, "to show documents with (default: the one beside the shard)");
  inspect.flag("--json", &look->as_json, "print as JSON");
  inspect.footer("Example:\n  sinter data inspect data/train.tok --show 3");
  inspect.on_run([look] { run_inspect(*look); });

  auto batch_flags = std::make_shared<BatchFlags>();
  const Command batches = verb.add_verb("batches", "write what a training run reads, step by step, as safetensors");
  batches.option("recipe", &batch_flags->recipe, "RECIPE.toml of the run").required();
  batches.option("overrides", &batch_flags->overrides, "section.key=value, wins over the recipe");
  batches
      .option("-o,--output", &batch_flags->output,
              "file with `tokens` and `targets` (micro-batches, tokens) i32; a target of -1 is not trained on")
      .required();
  batches.option("--first", &batch_flags->first, "first step, counted from 0").shows_default().at_least(0);
  batches.option("--steps", &batch_flags->steps, "number of steps; 0 = to the end of the recipe")
      .shows_default()
      .at_least(0);
  batches.flag("--validation", &batch_flags->is_validation, "the validation batches instead");
  batches.footer("Examples:\n  sinter data batches recipe.toml -o batches.safetensors --steps 10");
  batches.on_run([batch_flags] { run_batches(*batch_flags); });
}

}  // namespace sinter::cli
