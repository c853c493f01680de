#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/cpu.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/verbs.h"

namespace sinter::cli {
namespace {

// In the order of a model's life, as --help lists them.
void add_verbs(Command app) {
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

// What was printed must have arrived: a full disk behind a redirection is a failure.
void check_output() {
  std::cout.flush();
  SINTER_CHECK(std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.good(),
               "cannot write to standard output: {}", std::strerror(errno));
}

}  // namespace

int run(int argc, char** argv) {
  const CommandLine line("sinter: plan, train, check and run language models in one program",
                         [] { return "sinter 0.1.0 (cpu: " + base::cpu_description() + ")"; });
  add_verbs(line.root().requires_verb());
  try {
    line.run(argc, argv);
    check_output();
    return 0;
  } catch (const base::UsageError& e) {
    std::fprintf(stderr, "sinter: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sinter: %s\n", e.what());
    return 1;
  }
}

}  // namespace sinter::cli
