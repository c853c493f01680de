#include "tokenizer/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "tokenizer/jinja/value.h"

namespace sinter::tokenizer::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;

std::string normalize_newlines(std::string_view source, bool keeps_last) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!keeps_last && !out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | (code >> 6));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | (code >> 12));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (code >> 18));
    out += static_cast<char>(0x80 | ((code >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

bool is_name_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name, const WhiteSpace& space)
      : space_(space), source_(normalize_newlines(source, space.keep_trailing_newline)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) lex_text();
    tokens_.push_back({TokenKind::end, "", line_});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { fail_at(name_, line_, message); }
  bool has(std::string_view word, size_t at) const { return std::string_view(source_).substr(at).starts_with(word); }
  char peek(size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }

  // Moves on to `to`, counting lines.
  void advance(size_t to) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(at_), source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  void skip_space() {
    std::string_view rest = std::string_view(source_).substr(at_);
    advance(at_ + rest.size() - strip(rest, nullptr, true, false).size());
  }

  void push(TokenKind kind, std::string text = "") { tokens_.push_back({kind, std::move(text), line_}); }

  // Text up to the next tag, then that tag.
  void lex_text() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        push(TokenKind::text, source_.substr(at_));
        advance(source_.size());
        return;
      }
      char c = source_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
    }
    char kind = source_[tag + 1];
    char sign =
        tag + 2 < source_.size() && (source_[tag + 2] == '-' || source_[tag + 2] == '+') ? source_[tag + 2] : '\0';
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    if (sign == '-') {
      text = strip(text, nullptr, false, true);
    } else if (space_.lstrip_blocks && sign != '+' && kind != '{') {
      size_t line_start = text.rfind('\n') + 1;  // 0 when there is no newline
      if (line_start > 0 || is_line_start_) {
        if (strip(text.substr(line_start), nullptr, true, false).empty()) text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) push(TokenKind::text, std::string(text));
    advance(tag);
    size_t after = tag + 2 + (sign ? 1 : 0);
    if (kind == '#') return lex_comment(after);
    if (kind == '%' && lex_raw(after)) return;
    push(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin);
    advance(after);
    lex_inside(kind == '{');
  }

  // After a tag's "%}", "}}" or "#}": what it swallows.
  void end_tag(size_t after, bool strips_all, bool trims_newline) {
    advance(after);
    if (strips_all) {
      skip_space();
    } else if (space_.trim_blocks && trims_newline && peek() == '\n') {
      advance(at_ + 1);
    }
    is_line_start_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void lex_comment(size_t after) {
    size_t close = source_.find("#}", after);
    if (close == std::string::npos) fail("a comment '{#' is never closed by '#}'");
    char sign = close > after ? source_[close - 1] : '\0';
    end_tag(close + 2, sign == '-', sign != '+');
  }

  // {% raw %}: everything up to {% endraw %} is text. False when the block is another one.
  bool lex_raw(size_t after) {
    size_t at = skip_blank(after);
    if (!has("raw", at)) return false;
    at = skip_blank(at + 3);
    bool strips = has("-%}", at);
    if (!strips && !has("%}", at)) return false;
    end_tag(at + (strips ? 3 : 2), strips, false);
    for (size_t open = at_;; ++open) {
      open = source_.find("{%", open);
      if (open == std::string::npos) fail("'{% raw %}' is never closed by '{% endraw %}'");
      size_t inner = open + 2;
      char sign = inner < source_.size() && (source_[inner] == '-' || source_[inner] == '+') ? source_[inner] : '\0';
      inner = skip_blank(inner + (sign ? 1 : 0));
      if (!has("endraw", inner)) continue;
      inner = skip_blank(inner + 6);
      bool has_sign = has("-%}", inner) || has("+%}", inner);
      if (!has_sign && !has("%}", inner)) continue;
      std::string_view text = std::string_view(source_).substr(at_, open - at_);
      if (sign == '-') {
        text = strip(text, nullptr, false, true);
      } else if (space_.lstrip_blocks && sign != '+') {
        size_t line_start = text.rfind('\n') + 1;
        if ((line_start > 0 || is_line_start_) && strip(text.substr(line_start), nullptr, true, false).empty()) {
          text = text.substr(0, line_start);
        }
      }
      push(TokenKind::text, std::string(text));
      end_tag(inner + (has_sign ? 3 : 2), has("-%}", inner), !has_sign);
      return true;
    }
  }

  size_t skip_blank(size_t at) const {
    while (at < source_.size() && std::isspace(static_cast<unsigned char>(source_[at]))) ++at;
    return at;
  }

  // The tokens of one tag, up to and with its end. An end inside brackets does not count: {{ {'a': {}} }}.
  void lex_inside(bool is_variable) {
    std::string brackets;
    std::string_view close = is_variable ? "}}" : "%}";
    for (;;) {
      skip_space();
      if (at_ >= source_.size()) fail(is_variable ? "'{{' is never closed by '}}'" : "'{%' is never closed by '%}'");
      bool has_sign = (peek() == '-' || (peek() == '+' && !is_variable)) && has(close, at_ + 1);
      if (brackets.empty() && (has_sign || has(close, at_))) {
        push(is_variable ? TokenKind::variable_end : TokenKind::block_end);
        char sign = has_sign ? peek() : '\0';
        return end_tag(at_ + (has_sign ? 3 : 2), sign == '-', !is_variable && sign != '+');
      }
      char c = peek();
      if (is_name_start(c)) {
        lex_name();
      } else if (is_digit(c)) {
        lex_number();
      } else if (c == '\'' || c == '"') {
        lex_string(c);
      } else {
        lex_operator(brackets);
      }
    }
  }

  void lex_name() {
    size_t end = at_;
    while (end < source_.size() && is_name_char(source_[end])) ++end;
    push(TokenKind::name, source_.substr(at_, end - at_));
    advance(end);
  }

  void lex_number() {
    size_t end = at_;
    bool is_float = false;
    std::string digits;
    auto take_digits = [&] {
      while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) {
        if (source_[end] != '_') digits += source_[end];
        ++end;
      }
    };
    if (peek() == '0' && (peek(1) == 'x' || peek(1) == 'X')) {
      for (end += 2; end < source_.size() && std::isxdigit(static_cast<unsigned char>(source_[end])); ++end) {
      }
      digits = source_.substr(at_, end - at_);
    } else {
      take_digits();
      bool after_dot = !tokens_.empty() && tokens_.back().kind == TokenKind::op && tokens_.back().text == ".";
      if (!after_dot && end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1])) {
        is_float = true;
        digits += source_[end++];
        take_digits();
      }
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E') && exponent < source_.size() &&
          is_digit(source_[exponent])) {
        is_float = true;
        digits += source_.substr(end, exponent - end);
        end = exponent;
        take_digits();
      }
    }
    push(is_float ? TokenKind::number : TokenKind::integer, digits);
    advance(end);
  }

  void lex_string(char quote) {
    std::string out;
    size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 >= source_.size()) {
        out += source_[i];
      } else {
        i = append_escape(out, i + 1);
      }
    }
    if (i >= source_.size()) fail(fmt::format("a string beginning with {} is never closed", quote));
    push(TokenKind::string, std::move(out));
    advance(i + 1);
  }

  // Decodes the escape whose letter stands at `i`; gives the position of its last character.
  size_t append_escape(std::string& out, size_t i) const {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeant = "\a\b\f\n\r\t\v\\'\"";
    char c = source_[i];
    if (size_t at = kLetters.find(c); at != std::string_view::npos) {
      out += kMeant[at];
      return i;
    }
    if (c == '\n') return i;  // a line continued
    size_t width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (width > 0) {
      std::string hex = source_.substr(i + 1, width);
      bool valid =
          hex.size() == width && std::all_of(hex.begin(), hex.end(), [](unsigned char h) { return std::isxdigit(h); });
      if (!valid) fail(fmt::format("the escape '\\{}' needs {} hexadecimal digits", c, width));
      unsigned long code = std::stoul(hex, nullptr, 16);
      if (code > 0x10ffff) fail(fmt::format("the escape '\\{}{}' is beyond Unicode", c, hex));
      // A surrogate pair written as two escapes is one character.
      size_t next = i + width + 1;
      if (code >= 0xd800 && code < 0xdc00 && has("\\u", next) && next + 6 <= source_.size()) {
        std::string low_hex = source_.substr(next + 2, 4);
        if (std::all_of(low_hex.begin(), low_hex.end(), [](unsigned char h) { return std::isxdigit(h); })) {
          unsigned long low = std::stoul(low_hex, nullptr, 16);
          if (low >= 0xdc00 && low < 0xe000) {
            append_utf8(out, static_cast<uint32_t>(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00)));
            return next + 5;
          }
        }
      }
      append_utf8(out, code >= 0xd800 && code < 0xe000 ? 0xfffd : static_cast<uint32_t>(code));
      return i + width;
    }
    if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t end = i;
      while (end < source_.size() && end < i + 3 && source_[end] >= '0' && source_[end] <= '7') {
        code = code * 8 + static_cast<uint32_t>(source_[end++] - '0');
      }
      append_utf8(out, code);
      return end - 1;
    }
    out += '\\';
    out += c;
    return i;
  }

  void lex_operator(std::string& brackets) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    for (std::string_view op : kTwo) {
      if (has(op, at_)) {
        push(TokenKind::op, std::string(op));
        return advance(at_ + 2);
      }
    }
    char c = peek();
    static constexpr std::string_view kOne = "+-/*%~[](){}><=.:|,;";
    if (kOne.find(c) == std::string_view::npos) fail(fmt::format("unexpected character '{}'", printable(c)));
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty()) fail(fmt::format("unexpected '{}'", c));
      if (brackets.back() != c) fail(fmt::format("unexpected '{}', expected '{}'", c, brackets.back()));
      brackets.pop_back();
    }
    push(TokenKind::op, std::string(1, c));
    advance(at_ + 1);
  }

  static std::string printable(char c) {
    auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }

  WhiteSpace space_;
  std::string source_;
  const std::string& name_;
  size_t at_ = 0;
  int line_ = 1;
  bool is_line_start_ = true;  // whether the last tag ended a line (or nothing was read yet)
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source, const std::string& template_name, const WhiteSpace& space) {
  SINTER_CHECK(source.size() <= kMaxTemplateBytes, "chat template '{}' has {} bytes; at most {} are accepted",
               template_name, source.size(), kMaxTemplateBytes);
  return Lexer(source, template_name, space).run();
}

void fail_at(const std::string& template_name, int line, const std::string& message) {
  throw TemplateError(fmt::format("chat template '{}', line {}: {}", template_name, line, message));
}

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::text:
      return "text";
    case TokenKind::variable_begin:
      return "'{{'";
    case TokenKind::variable_end:
      return "'}}'";
    case TokenKind::block_begin:
      return "'{%'";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::string:
      return "a string";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace sinter::tokenizer::jinja
