// LaTeX of answers as tokens.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinter::eval {

// `type` is the sign itself ("+", "(", "<="), a class ("number", "percent", "letter", "symbol", "accent",
// "differential", "function", "set") or the name of a command ("frac", "sqrt"). `text` is what stands there, of symbols
// and functions the name.
struct MathToken {
  std::string type, text;
};

// Without blanks and commands of spacing; commands are told apart by their longest known beginning, as in "\pix".
// Ends with a token of type "end". Throws MathFailure for what is none.
std::vector<MathToken> read_tokens(std::string_view latex);

}  // namespace sinter::eval
