// sinter tokenizer encode | decode | train | inspect
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {
namespace {

using tokenizer::Tokenizer;

std::string read_input(const std::string& path) {
  if (path != "-") return base::read_file(path);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

void write_output(std::string_view bytes) {
  SINTER_CHECK(std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() && std::fflush(stdout) == 0,
               "cannot write to standard output");
}

void add_encode(CLI::App& parent) {
  struct Options {
    std::string tokenizer, file;
    bool special = false, around = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = parent.add_subcommand("encode", "print the token ids of a text on one line");
  verb->add_option("TOKENIZER", options->tokenizer, "model folder, tokenizer.json, *.tiktoken or *.model")->required();
  verb->add_option("FILE", options->file, "text to encode; - reads standard input")->required();
  verb->add_flag("--special", options->special, "special tokens written in the text are those tokens");
  verb->add_flag("--add-special", options->around, "put BOS/EOS around the text as the tokenizer's file asks");
  verb->callback([options] {
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
    SINTER_CHECK(error == std::errc() && stop == word.data() + word.size(), "'{}' at byte {}: '{}' is not a token id", origin,
                 pos, word.substr(0, 40));
    ids.push_back(id);
    pos += word.size();
  }
  return ids;
}

void add_decode(CLI::App& parent) {
  struct Options {
    std::string tokenizer, file = "-";
    bool skip_special = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* verb = parent.add_subcommand("decode", "print the text of token ids, byte for byte");
  verb->add_option("TOKENIZER", options->tokenizer, "model folder, tokenizer.json, *.tiktoken or *.model")->required();
  verb->add_option("FILE", options->file, "token ids separated by spaces; - (the default) reads standard input");
  verb->add_flag("--skip-special", options->skip_special, "leave special tokens out");
  verb->callback([options] {
    const Tokenizer tokenizer = Tokenizer::load(options->tokenizer);
    write_output(tokenizer.decode(parse_ids(read_input(options->file), options->file), options->skip_special));
  });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("tokenizer", "train, encode, decode, inspect");
  verb->require_subcommand(1);
  add_encode(*verb);
  add_decode(*verb);
}

}  // namespace sinter::cli
