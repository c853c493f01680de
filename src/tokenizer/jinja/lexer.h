// Cuts a template into text, tags and the tokens inside tags, with Jinja's rules for white space: the options below,
// the signs '-' and '+' at tags.
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

// Jinja's own options for white space, as Hugging Face transformers sets them for chat templates.
struct WhiteSpace {
  bool trim_blocks = true;             // the newline behind a block is dropped
  bool lstrip_blocks = true;           // blanks before a block on its line are dropped
  bool keep_trailing_newline = false;  // else one newline at the template's end is dropped
};

// Throws TemplateError. The last token is always `end`.
std::vector<Token> tokenize(std::string_view source, const std::string& template_name, const WhiteSpace& space = {});

// "chat template 'NAME', line N: message"
[[noreturn]] void fail_at(const std::string& template_name, int line, const std::string& message);

// How a token is named in an error.
std::string describe(const Token& token);

}  // namespace sinter::tokenizer::jinja
