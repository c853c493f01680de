// Text as TOML has it, for those who write recipes.
#pragma once
#include <string>

namespace sinter::spec {

// A basic string in its quotes.
std::string toml_quoted(const std::string& text);

}  // namespace sinter::spec
