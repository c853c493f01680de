// Cuts a template into text, tags and the tokens inside tags, with Jinja's rules for white space: trim_blocks and
// lstrip_blocks on, the signs '-' and '+' at tags, one newline at the template's end dropped.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace sinter::tokenizer::jinja {

// A template that is wrong or that fails while it renders. what() names the template and the line.
class TemplateError : public base::Error {
 public:
  using base::Error::Error;
};

enum class TokenKind {
  text,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  number,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  // decoded for strings, digits without '_' for numbers
  int line = 1;
};

// Throws TemplateError. The last token is always `end`.
std::vector<Token> tokenize(std::string_view source, const std::string& template_name);

// "chat template 'NAME', line N: message"
[[noreturn]] void fail_at(const std::string& template_name, int line, const std::string& message);

// How a token is named in an error.
std::string describe(const Token& token);

}  // namespace sinter::tokenizer::jinja
