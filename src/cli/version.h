// What --version prints.
#pragma once
#include <string>

namespace sinter::cli {

// Version and commit, then a line for each backend and library: which are in this build.
std::string version_text();

}  // namespace sinter::cli
