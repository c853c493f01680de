// Regular expressions for the pre-tokenizer patterns nobody wrote by hand: PCRE2, compiled to machine code, on UTF-8.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "base/threads.h"

namespace sinter::tokenizer {

class Regex {
 public:
  // Throws base::Error with the position in the pattern; `origin` (file and key) stands before it.
  Regex(std::string_view pattern, const std::string& origin);
  ~Regex();
  Regex(const Regex&) = delete;

  // Calls visit(begin, end) for every non-empty match from left to right, without overlaps. Bytes that are not UTF-8
  // never match. Safe from several threads. Throws when the engine gives up (catastrophic backtracking).
  void for_each_match(std::string_view text, base::FunctionRef<void(size_t begin, size_t end)> visit) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string pattern_;
};

}  // namespace sinter::tokenizer
