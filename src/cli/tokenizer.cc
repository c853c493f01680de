#include <CLI/CLI.hpp>

#include "cli/verbs.h"

namespace sinter::cli {

void add_tokenizer(CLI::App& app) {
  app.add_subcommand("tokenizer", "train, encode, decode, inspect")->require_subcommand(1);
}

}  // namespace sinter::cli
