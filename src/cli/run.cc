#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/verbs.h"
#include "cli/version.h"

namespace sinter::cli {
namespace {

// `sinter help VERB...`, and what is made of the same words.
void add_help(const CommandLine& line) {
  struct Flags {
    std::vector<std::string> verbs;
    std::string shell;
  };
  auto flags = std::make_shared<Flags>();
  const Command help = line.root().add_verb("help", "help on a verb: sinter help plan search");
  help.option("VERB", &flags->verbs, "the verb, and the one below it");
  help.on_run([flags, &line] {
    const CommandHelp root = line.describe();
    const CommandHelp* at = &root;
    for (const std::string& word : flags->verbs) {
      const auto found =
          std::find_if(at->verbs.begin(), at->verbs.end(), [&](const auto& v) { return v.name == word; });
      std::vector<std::string> names;
      for (const CommandHelp& verb : at->verbs) names.push_back(verb.name);
      if (found == at->verbs.end())
        base::fail_usage("there is no `{} {}`{}", at->path, word, base::did_you_mean(word, names));
      at = &*found;
    }
    std::fputs(help_text(*at).c_str(), stdout);
  });
  const Command completion = line.root().add_verb("completion", "a script that completes words in your shell");
  completion.option("SHELL", &flags->shell, "bash, zsh or fish").one_of({"bash", "zsh", "fish"}).required();
  completion.footer("Example:\n  sinter completion bash > ~/.local/share/bash-completion/completions/sinter");
  completion.on_run([flags, &line] { std::fputs(completion_script(line.describe(), flags->shell).c_str(), stdout); });
  const Command pages = line.root().add_verb("man", "this program's man page (troff), or with --markdown docs/cli.md");
  auto as_markdown = std::make_shared<bool>(false);
  pages.flag("--markdown", as_markdown.get(), "as one Markdown page");
  auto folder = std::make_shared<std::string>();
  pages.option("--pages", folder.get(), "write a Markdown page for each verb into this folder");
  pages.footer("Example:\n  sinter man > ~/.local/share/man/man1/sinter.1");
  pages.on_run([as_markdown, folder, &line] {
    const CommandHelp root = line.describe();
    if (!folder->empty()) {
      base::create_folders(*folder);
      for (const auto& [name, text] : verb_pages(root)) base::write_file_atomic(*folder + "/" + name, text);
      return;
    }
    std::fputs((*as_markdown ? markdown_page(root) : man_page(root)).c_str(), stdout);
  });
}

// What is wrong, on standard error; bytes of a file that a terminal would obey are written out.
void print_problem(std::string_view text) {
  std::string line = "sinter: ";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = (byte >= 0x20 && byte != 0x7f) || c == '\n' || c == '\t';
    line += is_plain ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  std::fputs((line + "\n").c_str(), stderr);
}

// What was printed must have arrived: a full disk behind a redirection is a failure.
void check_output() {
  std::cout.flush();
  SINTER_CHECK(std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.good(),
               "cannot write to standard output: {}", std::strerror(errno));
}

}  // namespace

void add_verbs(Command app) {
  add_plan(app);
  add_tokenizer(app);
  add_data(app);
  add_train(app);
  add_tune(app);
  add_merge(app);
  add_plot(app);
  add_generate(app);
  add_chat(app);
  add_serve(app);
  add_batch(app);
  add_eval(app);
  add_verify(app);
  add_quantize(app);
  add_convert(app);
  add_inspect(app);
  add_bench(app);
}

int run(int argc, char** argv) {
  const CommandLine line("sinter: plan, train, check and run language models in one program", version_text);
  add_verbs(line.root().requires_verb());
  add_help(line);
  try {
    line.run(argc, argv);
    check_output();
    return 0;
  } catch (const QuietExit& e) {
    return e.status;
  } catch (const base::UsageError& e) {
    print_problem(e.what());
    return 2;
  } catch (const std::filesystem::filesystem_error& e) {  // whose own text names functions of the library
    print_problem(fmt::format("'{}': {}", e.path1().string(), e.code().message()));
    return 1;
  } catch (const std::exception& e) {
    print_problem(e.what());
    return 1;
  }
}

}  // namespace sinter::cli
