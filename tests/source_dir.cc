#include "base/source_dir.h"

std::string sinter::base::source_dir() { return SINTER_SOURCE_DIR; }
