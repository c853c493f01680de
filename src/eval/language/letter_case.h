// Whether a text is in one case, as Python's str.isupper and str.islower say: some letter has that case and none has
// the other. Signs that Unicode calls upper or lower case count though they have no other form ("ª", "ⁿ", "Ⓐ", "Ⅳ").
#pragma once
#include <string>
#include <string_view>

namespace sinter::eval {

bool is_upper(std::string_view text);
bool is_lower(std::string_view text);
// str.lower: a capital sigma at the end of a word becomes a final one.
std::string to_lower(std::string_view text);

}  // namespace sinter::eval
