#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/cpu.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/verbs.h"

namespace sinter::cli {
namespace {

// In the order of a model's life, as --help lists them.
void add_verbs(CLI::App& app) {
  add_plan(app);
  add_tokenizer(app);
  add_data(app);
  add_train(app);
  add_generate(app);
  add_chat(app);
  add_eval(app);
  add_verify(app);
  add_inspect(app);
  add_bench(app);
}

std::vector<std::string> names_of(const std::vector<const CLI::App*>& verbs) {
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  return names;
}

// Whether a word of the command line is an option's name rather than a value: -o, --output, --output=x, but not -1.
bool is_option_word(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         (std::isalpha(static_cast<unsigned char>(word[1])) != 0 || word[1] == '-');
}

// "" for an option the verb has, else a message with the nearest it has.
std::string explain_option(const CLI::App& verb, const std::string& path, std::string word) {
  word = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    for (const std::string& name : option->get_snames()) {
      if (!word.starts_with("--") && word.starts_with("-" + name)) return "";  // -ovalue
    }
  }
  if (std::find(known.begin(), known.end(), word) != known.end()) return "";
  return fmt::format("there is no option '{}' of `{}`{}", word, path, base::did_you_mean(word, known));
}

// What is wrong with the command line: a verb or option that is not there, with the nearest that is, before what CLI11
// missed or could not read.
std::string explain(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const auto children_of = [](const CLI::App* verb) {
    return verb->get_subcommands([](const CLI::App*) { return true; });
  };
  const CLI::App* level = &app;
  std::string path = "sinter";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") break;  // only values follow
    if (is_option_word(word)) {
      if (std::string problem = explain_option(*level, path, word); !problem.empty()) return problem;
    } else if (auto children = children_of(level); !children.empty()) {
      const std::vector<std::string> names = names_of(children);
      const auto found = std::find(names.begin(), names.end(), word);
      const CLI::App* next = found == names.end() ? nullptr : children[static_cast<size_t>(found - names.begin())];
      const bool takes_words = !level->get_options([](const CLI::Option* o) { return o->get_positional(); }).empty();
      if (!next && !takes_words) {
        return fmt::format("there is no `{} {}`; known: {}{}", path, word, fmt::join(names, ", "),
                           base::did_you_mean(word, names));
      }
      if (next) level = next, path += " " + word;
    }
  }
  if (auto children = children_of(level); level->get_require_subcommand_min() > 0 && !children.empty())
    return fmt::format("say what to do: `{} WORD` with one of {}", path, fmt::join(names_of(children), ", "));
  return error.what();
}

// What was printed must have arrived: a full disk behind a redirection is a failure.
void check_output() {
  std::cout.flush();
  SINTER_CHECK(std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.good(),
               "cannot write to standard output: {}", std::strerror(errno));
}

}  // namespace

int run(int argc, char** argv) {
  CLI::App app{"sinter: plan, train, check and run language models in one program"};
  app.require_subcommand(1);
  app.set_version_flag("--version", [] { return "sinter 0.1.0 (cpu: " + base::cpu_description() + ")"; });
  add_verbs(app);
  try {
    app.parse(argc, argv);
    check_output();
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    std::fprintf(stderr, "sinter: %s\nRun with --help for usage.\n", explain(app, e, argc, argv).c_str());
    return 2;
  } catch (const base::UsageError& e) {
    std::fprintf(stderr, "sinter: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sinter: %s\n", e.what());
    return 1;
  }
}

}  // namespace sinter::cli
