#include "base/source_dir.h"

#include <cstdlib>

// Where it was built, or what SINTER_SOURCE_DIR names: a program that was carried to another machine.
std::string sinter::base::source_dir() {
  const char* folder = std::getenv("SINTER_SOURCE_DIR");
  return folder && *folder ? folder : SINTER_SOURCE_DIR;
}
