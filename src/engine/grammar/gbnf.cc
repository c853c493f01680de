// GBNF, the grammar language of llama.cpp:
//
//   root  ::= "yes" | "no" [ ]* digit{1,3}   # a comment
//   digit ::= [0-9]
//
// Sequences, |, ( ), * + ? {m,n}, "text", [classes], . for any character; a rule ends with its line, except inside ( ).
#include <map>
#include <string>

#include "engine/grammar/program.h"
#include "tokenizer/unicode.h"

namespace sinter::engine::grammar {
namespace {

class GbnfParser {
 public:
  GbnfParser(std::string_view text, Budget& budget)
      : chars_(code_points(text, "the grammar")), budget_(budget), builder_(budget) {}

  Program parse() {
    skip_space(true);
    while (!at_end()) {
      parse_rule();
      skip_space(true);
    }
    SINTER_CHECK(!rules_.empty(), "grammar: it has no rules; expected lines like root ::= \"yes\" | \"no\"");
    const auto root = rules_.find("root");
    SINTER_CHECK(root != rules_.end(), "grammar: there is no rule 'root'");
    for (const auto& [name, rule] : rules_) {
      SINTER_CHECK(rule.is_defined, "grammar: rule '{}' (line {}) is used but not defined", name, rule.line);
    }
    return builder_.finish(root->second.number);
  }

 private:
  struct Rule {
    int32_t number;
    bool is_defined = false;
    int64_t line;
  };
  struct Span {
    size_t begin, end;  // of the source, for repetition
  };

  [[noreturn]] void fail(std::string_view what) const { base::fail("grammar: {} in line {}", what, line()); }
  int64_t line() const {
    int64_t n = 1;
    for (size_t i = 0; i < pos_ && i < chars_.size(); ++i) n += chars_[i] == '\n';
    return n;
  }
  bool at_end() const { return pos_ >= chars_.size(); }
  uint32_t peek(size_t ahead = 0) const { return pos_ + ahead < chars_.size() ? chars_[pos_ + ahead] : 0; }
  bool take(uint32_t c) {
    if (at_end() || peek() != c) return false;
    ++pos_;
    return true;
  }
  void skip_space(bool newlines) {
    while (!at_end()) {
      const uint32_t c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n') ++pos_;
      } else if (c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n')) {
        ++pos_;
      } else {
        return;
      }
    }
  }
  static bool is_name_char(uint32_t c) {
    return c == '-' || c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  }

  std::string parse_name() {
    std::string name;
    while (!at_end() && is_name_char(peek())) name += static_cast<char>(chars_[pos_++]);
    if (name.empty()) fail("expected a rule's name");
    return name;
  }

  Rule& rule_named(const std::string& name) {
    auto at = rules_.find(name);
    if (at == rules_.end()) at = rules_.emplace(name, Rule{builder_.add_rule(name), false, line()}).first;
    return at->second;
  }

  void parse_rule() {
    const std::string name = parse_name();
    skip_space(false);
    if (!(take(':') && take(':') && take('='))) fail("expected '::=' behind '" + name + "'");
    skip_space(true);
    Rule& rule = rule_named(name);
    SINTER_CHECK(!rule.is_defined, "grammar: rule '{}' is defined twice, again in line {}", name, line());
    rule.is_defined = true;
    const int32_t end = parse_either(builder_.rule_start(rule.number), 0);
    builder_.mark_end(end);
    if (!at_end() && !take('\n')) fail("expected the end of the line");
  }

  // Builds from `from`, returns the node behind.
  int32_t parse_either(int32_t from, int depth) {
    budget_.check_nesting(depth);
    const int32_t out = builder_.node();
    do {
      skip_space(depth > 0 || peek() == '\n');
      builder_.epsilon(parse_sequence(from, depth), out);
      skip_bar_space(depth);
    } while (take('|'));
    return out;
  }

  // A '|' may begin the next line of a rule.
  void skip_bar_space(int depth) {
    const size_t here = pos_;
    skip_space(true);
    if (depth == 0 && peek() != '|') pos_ = here;
  }

  int32_t parse_sequence(int32_t from, int depth) {
    // A first node of its own: repetition must not lead into what others share.
    int32_t at = builder_.node();
    builder_.epsilon(from, at);
    for (;;) {
      skip_space(depth > 0);
      if (at_end() || peek() == '|' || peek() == ')' || peek() == '\n') return at;
      const size_t begin = pos_;
      const int32_t in = builder_.node();
      builder_.epsilon(at, in);
      int32_t out = parse_atom(in, depth);
      at = parse_repeats({begin, pos_}, {in, out}, depth);
    }
  }

  int32_t parse_repeats(Span atom, Fragment first, int depth) {
    for (int count = 0;; ++count) {
      int64_t min, max;
      if (take('*')) {
        min = 0, max = -1;
      } else if (take('+')) {
        min = 1, max = -1;
      } else if (take('?')) {
        min = 0, max = 1;
      } else if (!at_end() && peek() == '{') {
        parse_braces(min, max);
      } else {
        return first.out;
      }
      if (count > 0) fail("two repetitions in a row; put the first into ( )");
      const size_t after = pos_;
      // `first` is the first copy of the atom; further ones are parsed again.
      auto copy = [&](int32_t in) {
        pos_ = atom.begin;
        return parse_atom(in, depth);
      };
      const int32_t out = builder_.node();
      if (min == 0) builder_.epsilon(first.in, out);
      int32_t at = first.out;
      for (int64_t i = 1; i < min; ++i) at = copy(at);
      if (max < 0) {
        const int32_t loop = builder_.node();  // from here any number more
        builder_.epsilon(at, loop);
        builder_.epsilon(copy(loop), loop);
        builder_.epsilon(loop, out);
      } else if (max == 0) {
        at = builder_.node();  // not at all: the first copy leads nowhere
      } else {
        for (int64_t i = std::max<int64_t>(min, 1); i < max; ++i) {
          builder_.epsilon(at, out);
          at = copy(at);
        }
        builder_.epsilon(at, out);
      }
      pos_ = after;
      first.out = out;
    }
  }

  void parse_braces(int64_t& min, int64_t& max) {
    auto number = [&](int64_t& out) {
      const size_t first = pos_;
      out = 0;
      while (!at_end() && peek() >= '0' && peek() <= '9' && pos_ - first < 7) out = out * 10 + (chars_[pos_++] - '0');
      return pos_ > first;
    };
    ++pos_;  // {
    skip_space(false);
    const bool has_min = number(min);
    skip_space(false);
    bool has_max = false;
    const bool has_comma = take(',');
    if (has_comma) {
      skip_space(false);
      has_max = number(max);
      skip_space(false);
    }
    if (!has_comma) max = min;
    if (has_comma && !has_max) max = -1;
    if (!take('}') || (!has_min && !has_max)) fail("expected a repetition such as {2}, {2,} or {2,5}");
    if (max >= 0 && min > max) fail("a repetition whose least is above its most");
  }

  int32_t parse_atom(int32_t in, int depth) {
    budget_.spend(0);
    if (take('"')) return parse_text(in);
    if (take('(')) {
      const int32_t out = parse_either(in, depth + 1);
      skip_space(true);
      if (!take(')')) fail("'(' without ')'");
      return out;
    }
    const int32_t out = builder_.node();
    if (take('[')) {
      builder_.chars(in, parse_class(), out);
    } else if (take('.')) {
      builder_.chars(in, any_char(), out);
    } else if (peek() == '<' || peek() == '!') {
      fail("tokens '<...>' cannot be honoured; write their text");
    } else {
      const std::string name = parse_name();
      builder_.call(in, rule_named(name).number, out);
    }
    return out;
  }

  int32_t parse_text(int32_t at) {
    for (;;) {
      if (at_end() || peek() == '\n') fail("a text without its closing '\"'");
      if (take('"')) return at;
      std::string utf8;
      tokenizer::append_utf8(utf8, parse_char());
      at = builder_.literal(at, utf8);
    }
  }

  CharSet parse_class() {
    const bool is_inverted = take('^');
    CharSet set;
    while (!take(']')) {
      if (at_end() || peek() == '\n') fail("'[' without ']'");
      const uint32_t first = parse_char();
      uint32_t last = first;
      if (peek() == '-' && peek(1) != ']' && pos_ + 1 < chars_.size()) {
        ++pos_;
        last = parse_char();
        if (last < first) fail("a range whose ends are the wrong way round");
      }
      set.push_back({first, last});
    }
    set = normalized(std::move(set));
    return is_inverted ? inverted(set) : set;
  }

  uint32_t parse_char() {
    const uint32_t c = chars_[pos_++];
    if (c != '\\') return c;
    if (at_end()) fail("'\\' at the end");
    const uint32_t e = chars_[pos_++];
    switch (e) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
        return e;
      case 'x':
        return parse_hex(2);
      case 'u':
        return parse_hex(4);
      case 'U':
        return parse_hex(8);
      default:
        fail("unknown escape");
    }
  }

  uint32_t parse_hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++pos_) {
      const uint32_t c = peek();
      if (at_end() || c > 127 || !std::isxdigit(static_cast<int>(c))) fail("expected hexadecimal digits");
      value = value * 16 + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (value > kLastChar || (value >= 0xD800 && value <= 0xDFFF)) fail("a character that does not exist");
    return value;
  }

  std::vector<uint32_t> chars_;
  Budget& budget_;
  ProgramBuilder builder_;
  std::map<std::string, Rule> rules_;
  size_t pos_ = 0;
};

}  // namespace

Program compile_gbnf(std::string_view grammar, const GrammarLimits& limits) {
  SINTER_CHECK(static_cast<int64_t>(grammar.size()) <= limits.max_source_bytes, "grammar: longer than {} bytes",
               limits.max_source_bytes);
  Budget budget(limits);
  return GbnfParser(grammar, budget).parse();
}

}  // namespace sinter::engine::grammar
