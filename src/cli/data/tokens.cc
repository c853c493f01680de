// `sinter data preview` and `sinter data shards`: a look at documents, token files of other programs in and out.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/preview.h"
#include "cli/data/verbs.h"
#include "data/formats/token_files.h"
#include "data/pipeline/map.h"
#include "data/source.h"
#include "data/token_shard.h"
#include "data/tokenize.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {
namespace {

struct PreviewFlags {
  std::vector<std::string> inputs;
  data::ReadOptions read;
  int64_t count = 3, characters = 400;
};

struct Enough {};  // ends reading

void run_preview(const PreviewFlags& flags) {
  int64_t shown = 0;
  auto show = [&](data::Document&& d) {
    std::string head = fmt::format("--- {}", d.id);
    for (const auto& [name, value] :
         {std::pair{"url", &d.url}, {"title", &d.title}, {"language", &d.language}, {"date", &d.date}}) {
      if (!value->empty()) head += fmt::format(", {} {}", name, *value);
    }
    size_t end = 0;
    for (int64_t c = 0; c < flags.characters && end < d.text.size(); ++c) {
      ++end;
      while (end < d.text.size() && (static_cast<unsigned char>(d.text[end]) & 0xc0) == 0x80) ++end;
    }
    std::printf("%s, %s%s\n%s%s\n\n", head.c_str(), base::format_bytes(double(d.text.size())).c_str(),
                d.is_html ? " of HTML" : "", d.text.substr(0, end).c_str(), end < d.text.size() ? " ..." : "");
    if (++shown == flags.count) throw Enough{};
  };
  auto warn = [](data::BadRecord&& bad) {
    std::printf("--- bad record at %lu: %s\n\n", static_cast<unsigned long>(bad.offset), bad.what.c_str());
  };
  try {
    for (const std::string& input : flags.inputs) {
      for (const data::FilePart& part : data::list_parts(input, "", UINT64_MAX))
        data::read_part(part, flags.read, {show, warn});
    }
  } catch (const Enough&) {
  }
}

struct ShardFlags {
  std::string from, to, tokenizer;
  int64_t vocab_size = 0, token_bytes = 0;
};

bool is_megatron(const std::string& path) { return path.ends_with(".bin") || path.ends_with(".idx"); }

data::TokenDocuments read_tokens(const ShardFlags& flags, int64_t& vocab_size, uint64_t& hash) {
  if (is_megatron(flags.from)) return data::read_megatron(flags.from.substr(0, flags.from.size() - 4));
  if (flags.from.ends_with(".ds")) {
    return data::read_datatrove(flags.from, flags.token_bytes > 0 ? int(flags.token_bytes)
                                            : vocab_size > 65536  ? 4
                                                                  : 2);
  }
  data::TokenDocuments all;
  for (const std::string& path : data::shard_paths(flags.from)) {
    const data::TokenShard shard(path);
    vocab_size = shard.vocab_size();
    hash = shard.tokenizer_hash();
    all.token_bytes = vocab_size > 65536 ? 4 : 2;
    for (int64_t d = 0; d < shard.num_documents(); ++d) {
      const int64_t begin = shard.document_begin(d), count = shard.document_begin(d + 1) - begin;
      std::vector<int32_t> ids(static_cast<size_t>(count));
      shard.read(begin, count, ids.data());
      all.documents.push_back(std::move(ids));
    }
  }
  return all;
}

void run_shards(const ShardFlags& flags) {
  int64_t vocab_size = flags.vocab_size;
  uint64_t hash = 0;
  if (!flags.tokenizer.empty()) {
    const auto tokenizer = tokenizer::Tokenizer::load(flags.tokenizer);
    vocab_size = tokenizer.vocab_size();
    hash = data::tokenizer_hash(tokenizer);
  }
  const data::TokenDocuments tokens = read_tokens(flags, vocab_size, hash);
  int64_t count = 0, most = -1;
  for (const auto& document : tokens.documents) {
    count += std::ssize(document);
    for (int32_t id : document) most = std::max<int64_t>(most, id);
  }
  if (is_megatron(flags.to)) {
    data::write_megatron(flags.to.substr(0, flags.to.size() - 4), tokens);
  } else if (flags.to.ends_with(".ds")) {
    data::write_datatrove(flags.to, tokens, flags.tokenizer.empty() ? "unknown" : flags.tokenizer);
  } else if (flags.to.ends_with(data::kShardExtension)) {
    SINTER_CHECK(vocab_size > 0,
                 "'{}' does not say how large the vocabulary is; name the tokenizer with --tokenizer, or --vocab",
                 flags.from);
    SINTER_CHECK(most < vocab_size, "'{}' has token {}, and the vocabulary has {}: another tokenizer made it",
                 flags.from, most, vocab_size);
    SINTER_CHECK(tokens.loss_masks.empty(),
                 "'{}' has a mask of tokens that are not trained on, which .tok does not hold; `sinter tune` "
                 "reads documents with roles",
                 flags.from);
    data::TokenShardWriter writer(flags.to, vocab_size, hash);
    for (const auto& document : tokens.documents) writer.add_document(document);
    writer.commit();
  } else {
    base::fail_usage("'{}' is of no kind that is written; expected .tok, .ds or .bin", flags.to);
  }
  std::printf("%s documents, %s tokens: %s\n", base::format_grouped(std::ssize(tokens.documents)).c_str(),
              base::format_grouped(count).c_str(), flags.to.c_str());
}

}  // namespace

void add_data_tokens(Command data) {
  auto preview = std::make_shared<PreviewFlags>();
  const Command preview_verb = data.add_verb("preview", "the first documents of files, as the other verbs read them");
  preview_verb.option("inputs", &preview->inputs, "files or folders of any kind that is read").required();
  preview_verb.option("-n,--count", &preview->count, "documents").shows_default().at_least(1);
  preview_verb.option("--characters", &preview->characters, "of each text").shows_default().at_least(0);
  preview_verb.option("--text-key", &preview->read.text_key, "field that holds the text").shows_default();
  const std::function<bool()> as_tokens = add_tuning_preview(preview_verb, &preview->inputs, &preview->count);
  preview_verb.footer(
      "Examples:\n"
      "  sinter data preview CC-MAIN.warc.gz -n 5\n"
      "  sinter data preview chats.jsonl --model Qwen2.5-0.5B-Instruct\n"
      "  sinter data preview pairs.json --model MODEL --task pairs --field chosen=good --field rejected=bad");
  preview_verb.on_run([preview, as_tokens] {
    if (!as_tokens()) run_preview(*preview);
  });

  auto shards = std::make_shared<ShardFlags>();
  const Command verb = data.add_verb("shards", "token shards from and to datatrove's .ds and Megatron's .bin/.idx");
  verb.option("from", &shards->from, ".tok file or folder, .ds (its .index beside it) or .bin (its .idx beside it)")
      .required();
  verb.option("to", &shards->to, ".tok, .ds or .bin").required();
  verb.option("-t,--tokenizer", &shards->tokenizer,
              "the tokenizer that made them: its vocabulary and its hash go into .tok");
  verb.option("--vocab", &shards->vocab_size, "size of the vocabulary in the tokenizer's place").at_least(1);
  verb.option("--token-bytes", &shards->token_bytes, "of a .ds file (default: by the vocabulary)").in_range(2, 4);
  verb.footer(
      "Examples:\n"
      "  sinter data shards data/web/tokens web.bin\n"
      "  sinter data shards fineweb.ds fineweb.tok --tokenizer TOKENIZER");
  verb.on_run([shards] { run_shards(*shards); });
}

}  // namespace sinter::cli
