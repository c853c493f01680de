#include <csignal>

#include "cli/verbs.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // a file at the shell's limit is a write that fails, with an error of its own
  return sinter::cli::run(argc, argv);
}
