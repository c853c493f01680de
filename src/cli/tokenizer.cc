// sinter tokenizer encode | decode | train | inspect
#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "data/text_files.h"
#include "tokenizer/train.h"
#include "tokenizer/unicode.h"

namespace sinter::cli {
namespace {

using tokenizer::Tokenizer;

std::string read_input(const std::string& path) {
  SINTER_CHECK(path == "-" || std::filesystem::exists(path),
               "there is no file '{}'; - reads standard input, and `sinter tokenizer inspect TOKENIZER --text TEXT` "
               "shows the tokens of a text",
               path);
  if (path != "-") return base::read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void write_output(std::string_view bytes) {
  SINTER_CHECK(std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() && std::fflush(stdout) == 0,
               "cannot write to standard output");
}

void add_encode(Command parent) {
  struct Options {
    std::string tokenizer, file;
    bool special = false, around = false;
  };
  auto options = std::make_shared<Options>();
  const Command verb = parent.add_verb("encode", "print the token ids of a text on one line");
  verb.footer("Examples:\n  sinter tokenizer encode my-tokenizer text.txt");
  verb.option("TOKENIZER", &options->tokenizer, "model folder, tokenizer.json, *.tiktoken or *.model").required();
  verb.option("FILE", &options->file, "text to encode; - reads standard input").required();
  verb.flag("--special", &options->special, "special tokens written in the text are those tokens");
  verb.flag("--add-special", &options->around, "put BOS/EOS around the text as the tokenizer's file asks");
  verb.on_run([options] {
    const Tokenizer tokenizer = Tokenizer::load(options->tokenizer);
    const std::vector<int32_t> ids = tokenizer.encode_parallel(
        read_input(options->file), {.parse_special = options->special, .add_special = options->around});
    std::string line;
    line.reserve(ids.size() * 6);
    char digits[16];
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) line += ' ';
      line.append(digits, std::to_chars(digits, digits + sizeof digits, ids[i]).ptr);
    }
    write_output(line + "\n");
  });
}

std::vector<int32_t> parse_ids(std::string_view text, const std::string& origin) {
  std::vector<int32_t> ids;
  constexpr std::string_view kBetween = " \t\r\n";
  for (size_t pos = 0; (pos = text.find_first_not_of(kBetween, pos)) != std::string_view::npos;) {
    const std::string_view word = text.substr(pos, text.find_first_of(kBetween, pos) - pos);
    int32_t id = -1;
    auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    SINTER_CHECK(error == std::errc() && stop == word.data() + word.size(), "{} at byte {}: '{}' is not a token id",
                 origin == "-" ? "standard input" : "'" + origin + "'", pos, word.substr(0, 40));
    ids.push_back(id);
    pos += word.size();
  }
  return ids;
}

void add_decode(Command parent) {
  struct Options {
    std::string tokenizer, file = "-";
    bool skip_special = false;
  };
  auto options = std::make_shared<Options>();
  const Command verb = parent.add_verb("decode", "print the text of token ids, byte for byte");
  verb.footer("Examples:\n  sinter tokenizer encode my-tokenizer text.txt | sinter tokenizer decode my-tokenizer");
  verb.option("TOKENIZER", &options->tokenizer, "model folder, tokenizer.json, *.tiktoken or *.model").required();
  verb.option("FILE", &options->file, "token ids separated by spaces; - (the default) reads standard input");
  verb.flag("--skip-special", &options->skip_special, "leave special tokens out");
  verb.on_run([options] {
    const Tokenizer tokenizer = Tokenizer::load(options->tokenizer);
    write_output(tokenizer.decode(parse_ids(read_input(options->file), options->file), options->skip_special));
  });
}

void add_bpe_train(Command parent) {
  struct Options {
    std::vector<std::string> files, special{"<|endoftext|>"};
    std::string out, pattern = "gpt2", text_key = "text";
    bool force = false;
    int32_t vocab_size = 32768;
    uint64_t min_count = 1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  const Command verb = parent.add_verb("train", "train a byte-level BPE on text files");
  verb.footer(
      "Examples:\n  sinter tokenizer train my.txt --vocab-size 8192 --out my-tokenizer\n  sinter tokenizer train "
      "texts/ --special '<|endoftext|>' --special '<|pad|>' --out my-tokenizer");
  verb.option("FILES", &options->files,
              "UTF-8 text files, folders or patterns: .txt, .md, .jsonl, .json, .csv, .parquet; .gz and .zst too")
      .required();
  verb.option("--out", &options->out, "folder (tokenizer.json and tokenizer_config.json) or a .json file").required();
  verb.flag("--force", &options->force, "replace another tokenizer in --out");
  verb.option("--vocab-size", &options->vocab_size, "tokens in all: 256 bytes, merges and special tokens")
      .shows_default();
  verb.option("--special", &options->special,
              "a special token, cut out of the text; give it again for more; the first is BOS and EOS")
      .one_value_each_time()  // what follows the token is a file
      .shows_default();
  verb.option("--pattern", &options->pattern, "gpt2, cl100k, llama3, qwen2, o200k or a regular expression")
      .shows_default();
  verb.option("--text-key", &options->text_key, "field or column that holds the text, where files have such")
      .shows_default();
  verb.option("--min-count", &options->min_count, "stop when no pair is as frequent").shows_default();
  verb.flag("--json", &options->json, "print the summary as JSON");
  verb.on_run([options] {
    const double start = now_seconds();
    for (const std::string& token : options->special) {
      if (!tokenizer::is_valid_utf8(token)) base::fail_usage("--special '{}' is not UTF-8; expected text", token);
    }
    data::TextFiles files;
    for (const std::string& path : options->files) {
      if (path.starts_with('<') && !std::filesystem::exists(path))
        base::fail_usage("there is no file '{}'; --special takes one token: for a second say --special '{}'", path,
                         path);
      for (const std::string& file : data::list_text_files(path)) files.add(file, {.text_key = options->text_key});
    }
    const size_t bytes = files.num_bytes();
    const bool is_file = options->out.ends_with(".json");
    if (!is_file && std::filesystem::is_regular_file(options->out))
      base::fail_usage("--out '{}' is a file; expected a folder, or a name ending in .json", options->out);
    if (is_file && !options->special.empty())
      base::log_info("'{}' alone does not say which token ends a document; a folder (--out without .json) does",
                     options->out);
    const std::string kept = is_file ? options->out : options->out + "/tokenizer.json";
    const bool is_kept = std::filesystem::is_regular_file(kept) && !options->force;
    if (is_kept) base::log_info("'{}' is there already: another result is refused without --force", kept);
    base::ProgressLine progress;
    const tokenizer::BpeTraining result = tokenizer::train_bpe(
        files.texts(),
        {.vocab_size = options->vocab_size,
         .special_tokens = options->special,
         .pattern = options->pattern,
         .min_count = options->min_count,
         .progress = [&](int32_t done, int32_t wanted) {
           const double spent = now_seconds() - start;
           progress.update(fmt::format("merge {} of {}, {} left", done, wanted,
                                       base::format_duration(spent * (wanted - done) / std::max(done, 1))));
         }});
    progress.finish();
    SINTER_CHECK(!is_kept || base::read_file(kept) == result.tokenizer.to_json(),
                 "'{}' is there already and holds another tokenizer; name another place, or say --force to replace it",
                 kept);
    result.tokenizer.save(options->out);
    const double seconds = now_seconds() - start;
    if (result.tokenizer.vocab_size() < options->vocab_size) {
      base::log_warning("the text has pairs for {} tokens only, {} were asked for", result.tokenizer.vocab_size(),
                        options->vocab_size);
    }
    if (options->json) {
      write_output(nlohmann::json{{"vocab_size", result.tokenizer.vocab_size()},
                                  {"merges", result.merges.size()},
                                  {"bytes", bytes},
                                  {"pieces", result.num_pieces},
                                  {"distinct_pieces", result.num_distinct},
                                  {"seconds", seconds},
                                  {"out", options->out}}
                       .dump(2) +
                   "\n");
    } else {
      write_output(fmt::format(
          "{} ({}) from {} of text, {}, in {}: {}\n", counted(result.tokenizer.vocab_size(), "token"),
          counted(static_cast<int64_t>(result.merges.size()), "merge"), base::format_bytes(static_cast<double>(bytes)),
          counted(static_cast<int64_t>(result.num_distinct), "distinct piece"), base::format_duration(seconds),
          options->out));
    }
  });
}

// In quotes, so that a space at an end is seen; bytes that are no whole character as \xNN.
std::string readable(const std::string& bytes) {
  if (tokenizer::is_valid_utf8(bytes)) {
    std::string text = "'";
    for (const char c : bytes) text += c == '\n' ? "\\n" : c == '\t' ? "\\t" : c == '\r' ? "\\r" : std::string(1, c);
    return text + "'";
  }
  std::string text = "'";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte >= 32 && byte < 127 ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text + "'";
}

std::string hex_of(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<unsigned char>(c));
  return text;
}

void add_tokenizer_inspect(Command parent) {
  struct Options {
    std::string tokenizer, text;
    bool json = false, special = false;
  };
  auto options = std::make_shared<Options>();
  const Command verb = parent.add_verb("inspect", "what is in a tokenizer, or how it splits a text");
  verb.footer("Examples:\n  sinter tokenizer inspect my-tokenizer --text 'Hello world'");
  verb.option("TOKENIZER", &options->tokenizer, "model folder, tokenizer.json, *.tiktoken or *.model").required();
  verb.option("--text", &options->text, "show the tokens of this text one by one");
  verb.flag("--special", &options->special, "special tokens written in the text are those tokens");
  verb.flag("--json", &options->json, "print as JSON");
  verb.on_run([options] {
    const Tokenizer tokenizer = Tokenizer::load(options->tokenizer);
    const auto& ids = tokenizer.special_ids();
    std::vector<std::pair<std::string, int32_t>> named{
        {"bos", ids.bos}, {"eos", ids.eos}, {"pad", ids.pad}, {"unk", ids.unk}};
    nlohmann::json summary{{"description", tokenizer.description()}, {"vocab_size", tokenizer.vocab_size()}};
    base::Table special({"role", "id", "token"}), tokens({"id", "text", "bytes"});
    for (auto& [role, id] : named) {
      if (id < 0) continue;
      summary["special"][role] = {{"id", id}, {"token", tokenizer.token_text(id)}};
      special.add_row({role, std::to_string(id), tokenizer.token_text(id)});
    }
    for (int32_t id : tokenizer.encode(options->text, {.parse_special = options->special})) {
      const std::string bytes = tokenizer.token_bytes(id);
      tokens.add_row({std::to_string(id), readable(bytes), hex_of(bytes)});
      summary["tokens"].push_back({{"id", id}, {"token", tokenizer.token_text(id)}, {"bytes", bytes.size()}});
    }
    if (options->json)
      return write_output(summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    std::string out = options->tokenizer + ": " + tokenizer.description() + "\n";
    if (summary.contains("special")) out += special.to_string(2);
    if (!options->text.empty()) out += tokens.to_string(2);
    write_output(out);
  });
}

}  // namespace

void add_tokenizer(Command app) {
  const Command verb = app.add_verb("tokenizer", "train, encode, decode, inspect");
  verb.requires_verb();
  add_encode(verb);
  add_decode(verb);
  add_bpe_train(verb);
  add_tokenizer_inspect(verb);
}

}  // namespace sinter::cli
