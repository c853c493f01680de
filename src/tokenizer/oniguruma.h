// Regular expressions of tokenizer.json are written for Oniguruma, which the Hugging Face library uses; ours is PCRE2.
#pragma once
#include <string>
#include <string_view>

namespace sinter::tokenizer {

// The pattern in PCRE2's terms (to be compiled with PCRE2_MULTILINE: ^ and $ are of lines there). What means something
// else in the two is spelled out: \w has marks, \h is a hexadecimal digit, {,n} begins at 0, and a + after {n,m}
// repeats instead of holding fast. Throws base::Error naming `origin` for what PCRE2
// cannot say: classes that are intersected or nested, \W and \H in a class.
std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& origin);

}  // namespace sinter::tokenizer
