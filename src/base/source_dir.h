// For tests: the repository this test was built from, so that golden files are found from any working directory.
// Defined in tests/source_dir.cc alone: no other file's object depends on where the repository lies.
#pragma once

#include <string>

namespace sinter::base {

std::string source_dir();

}  // namespace sinter::base
