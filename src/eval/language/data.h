// Tables that are part of the program (src/eval/language/data).
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::eval {

enum class LanguageData { profiles, punkt };
// Calls `on_line` with the cells of every line.
void read_language_data(LanguageData which, const std::function<void(const std::vector<std::string_view>&)>& on_line);

}  // namespace sinter::eval
