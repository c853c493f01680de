#include "cli/verbs.h"

int main(int argc, char** argv) { return sinter::cli::run(argc, argv); }
