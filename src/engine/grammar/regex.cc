#include "engine/grammar/regex.h"

#include <memory>
#include <string>

#include "tokenizer/unicode.h"

namespace sinter::engine::grammar {
namespace {

struct Node {
  enum class Kind { empty, chars, sequence, either, repeat, start, end } kind = Kind::empty;
  CharSet set;
  std::vector<std::unique_ptr<Node>> parts;
  int64_t min = 0, max = -1;  // of repeat; max < 0: no bound
};
using Ptr = std::unique_ptr<Node>;

Ptr make(Node::Kind kind) {
  auto node = std::make_unique<Node>();
  node->kind = kind;
  return node;
}

Ptr make_chars(CharSet set) {
  auto node = make(Node::Kind::chars);
  node->set = normalized(std::move(set));
  return node;
}

const CharSet kDigits{{'0', '9'}};
const CharSet kWord{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpace{{9, 13},          {32, 32},         {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                     {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

// Characters of a class of the table of categories.
CharSet chars_of(uint8_t mask) {
  const tokenizer::CharClasses classes;
  CharSet set;
  for (uint32_t c = 0; c <= kLastChar; ++c) {
    if (!(classes(c) & mask)) continue;
    if (!set.empty() && set.back().last + 1 == c) {
      set.back().last = c;
    } else {
      set.push_back({c, c});
    }
  }
  return set;
}

class Parser {
 public:
  Parser(std::string_view pattern, Budget& budget) : chars_(code_points(pattern, "the regex")), budget_(budget) {}

  Ptr parse() {
    Ptr node = parse_either(0);
    if (!at_end()) fail("unexpected ')'");
    return node;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const { base::fail("regex: {} at character {}", what, pos_); }
  bool at_end() const { return pos_ >= chars_.size(); }
  uint32_t peek(size_t ahead = 0) const { return pos_ + ahead < chars_.size() ? chars_[pos_ + ahead] : 0; }
  bool take(uint32_t c) {
    if (at_end() || peek() != c) return false;
    ++pos_;
    return true;
  }

  Ptr parse_either(int depth) {
    budget_.check_nesting(depth);
    Ptr node = make(Node::Kind::either);
    do {
      node->parts.push_back(parse_sequence(depth));
    } while (take('|'));
    return node->parts.size() == 1 ? std::move(node->parts[0]) : std::move(node);
  }

  Ptr parse_sequence(int depth) {
    Ptr node = make(Node::Kind::sequence);
    while (!at_end() && peek() != '|' && peek() != ')') {
      budget_.spend(0);
      node->parts.push_back(parse_repeats(parse_atom(depth)));
    }
    return node;
  }

  Ptr parse_repeats(Ptr atom) {
    int count = 0;
    for (;;) {
      int64_t min, max;
      if (take('*')) {
        min = 0, max = -1;
      } else if (take('+')) {
        min = 1, max = -1;
      } else if (take('?')) {
        min = 0, max = 1;
      } else if (!at_end() && peek() == '{' && parse_braces(min, max)) {
      } else {
        return atom;
      }
      if (++count > 8) fail("more than 8 quantifiers in a row");
      if (atom->kind == Node::Kind::start || atom->kind == Node::Kind::end) fail("a quantifier behind an anchor");
      take('?');  // lazy: the same strings
      if (!at_end() && peek() == '+') fail("possessive quantifiers cannot be honoured,");
      Ptr node = make(Node::Kind::repeat);
      node->min = min;
      node->max = max;
      node->parts.push_back(std::move(atom));
      atom = std::move(node);
    }
  }

  // "{2}", "{2,}", "{2,5}", "{,5}"; false leaves a '{' that stands for itself.
  bool parse_braces(int64_t& min, int64_t& max) {
    size_t at = pos_ + 1;
    auto number = [&](int64_t& out) {
      const size_t first = at;
      out = 0;
      while (at < chars_.size() && chars_[at] >= '0' && chars_[at] <= '9' && at - first < 7) {
        out = out * 10 + (chars_[at++] - '0');
      }
      return at > first;
    };
    const bool has_min = number(min);
    const bool has_comma = at < chars_.size() && chars_[at] == ',';
    if (has_comma) ++at;
    bool has_max = has_comma && number(max);
    if (at >= chars_.size() || chars_[at] != '}' || (!has_min && !has_max)) return false;
    if (!has_comma) max = min;
    if (has_comma && !has_max) max = -1;
    if (max >= 0 && min > max) fail("a quantifier whose least is above its most");
    pos_ = at + 1;
    return true;
  }

  Ptr parse_atom(int depth) {
    const uint32_t c = chars_[pos_++];
    switch (c) {
      case '(':
        return parse_group(depth);
      case '[':
        return make_chars(parse_class());
      case '.':
        return make_chars(inverted({{'\n', '\n'}, {'\r', '\r'}}));
      case '^':
        return make(Node::Kind::start);
      case '$':
        return make(Node::Kind::end);
      case '\\':
        return parse_escape();
      case '*':
      case '+':
      case '?':
        --pos_;
        fail("a quantifier with nothing before it");
      default:
        return make_chars({{c, c}});
    }
  }

  Ptr parse_group(int depth) {
    if (take('?')) {
      if (take(':')) {
      } else if (peek() == '=' || peek() == '!' || (peek() == '<' && (peek(1) == '=' || peek(1) == '!'))) {
        fail("lookaround '(?' cannot be honoured,");
      } else if (peek() == '<' || (peek() == 'P' && peek(1) == '<')) {  // a named group
        while (!at_end() && peek() != '>') ++pos_;
        if (!take('>')) fail("a group's name without '>'");
      } else {
        fail("'(?' with flags cannot be honoured,");
      }
    }
    Ptr node = parse_either(depth + 1);
    if (!take(')')) fail("'(' without ')'");
    return node;
  }

  uint32_t parse_hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const uint32_t c = peek();
      if (at_end() || c > 127 || !std::isxdigit(static_cast<int>(c))) fail("expected hexadecimal digits");
      value = value * 16 + (c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
      ++pos_;
    }
    return value;
  }

  // What stands behind a backslash, inside classes and outside.
  CharSet parse_escaped_set() {
    if (at_end()) fail("'\\' at the end");
    const uint32_t c = chars_[pos_++];
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return inverted(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return inverted(kWord);
      case 's':
        return kSpace;
      case 'S':
        return inverted(kSpace);
      case 'n':
        return {{'\n', '\n'}};
      case 'r':
        return {{'\r', '\r'}};
      case 't':
        return {{'\t', '\t'}};
      case 'f':
        return {{'\f', '\f'}};
      case 'v':
        return {{'\v', '\v'}};
      case '0':
        return {{0, 0}};
      case 'x':
        return single(parse_hex(2));
      case 'u':
        return parse_unicode();
      case 'c': {
        const uint32_t letter = peek();
        if (at_end() || letter > 127 || !std::isalpha(static_cast<int>(letter))) fail("expected a letter behind '\\c'");
        ++pos_;
        return single(letter & 31);
      }
      case 'p':
      case 'P':
        return parse_property(c == 'P');
      default:
        break;
    }
    if (c >= '1' && c <= '9') fail("back references cannot be honoured,");
    if (c == 'b' || c == 'B') fail("word boundaries '\\b' cannot be honoured,");
    if (c < 128 && std::isalpha(static_cast<int>(c))) fail(fmt::format("unknown escape '\\{}'", static_cast<char>(c)));
    return single(c);
  }

  CharSet single(uint32_t c) const {
    if (c > kLastChar || (c >= 0xD800 && c <= 0xDFFF)) fail("a character that does not exist");
    return {{c, c}};
  }

  CharSet parse_unicode() {
    if (take('{')) {
      uint32_t value = 0;
      for (int i = 0; !at_end() && peek() != '}' && i < 7; ++i) value = value * 16 + parse_hex(1);
      if (!take('}')) fail("'\\u{' without '}'");
      return single(value);
    }
    uint32_t value = parse_hex(4);
    if (value >= 0xD800 && value <= 0xDBFF && peek() == '\\' && peek(1) == 'u') {  // a pair
      pos_ += 2;
      const uint32_t low = parse_hex(4);
      if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
      value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    }
    return single(value);
  }

  CharSet parse_property(bool is_inverted) {
    std::string name;
    if (take('{')) {
      while (!at_end() && peek() != '}' && name.size() < 32) name += static_cast<char>(chars_[pos_++] & 127);
      if (!take('}')) fail("'\\p{' without '}'");
    } else if (!at_end()) {
      name = static_cast<char>(chars_[pos_++] & 127);
    }
    CharSet set;
    if (name == "L" || name == "Letter" || name == "Alphabetic") {
      set = chars_of(tokenizer::kLetter);
    } else if (name == "N" || name == "Number") {
      set = chars_of(tokenizer::kNumber);
    } else if (name == "M" || name == "Mark") {
      set = chars_of(tokenizer::kMark);
    } else if (name == "Ll" || name == "Lowercase_Letter") {
      set = chars_of(tokenizer::kLower);
    } else {
      fail(fmt::format("the property '\\p{{{}}}' cannot be honoured (L, N, M and Ll can),", name));
    }
    return is_inverted ? inverted(set) : set;
  }

  Ptr parse_escape() { return make_chars(parse_escaped_set()); }

  CharSet parse_class() {
    const bool is_inverted = take('^');
    CharSet set;
    for (bool is_first = true; is_first || at_end() || peek() != ']'; is_first = false) {
      if (at_end()) fail("'[' without ']'");
      if (is_first && peek() == ']') break;  // ECMAScript: an empty class
      budget_.spend(0);
      CharSet part = parse_class_atom();
      const bool is_range = peek() == '-' && peek(1) != ']' && pos_ + 1 < chars_.size();
      if (is_range && part.size() == 1 && part[0].first == part[0].last) {
        ++pos_;
        const CharSet high = parse_class_atom();
        if (high.size() != 1 || high[0].first != high[0].last) fail("a range up to a class");
        if (high[0].first < part[0].first) fail("a range whose ends are the wrong way round");
        part = {{part[0].first, high[0].first}};
      }
      set.insert(set.end(), part.begin(), part.end());
    }
    ++pos_;  // ]
    set = normalized(std::move(set));
    return is_inverted ? inverted(set) : intersection(set, any_char());
  }

  CharSet parse_class_atom() {
    if (at_end()) fail("'[' without ']'");
    const uint32_t c = chars_[pos_++];
    if (c != '\\') return {{c, c}};
    if (peek() == 'b') {
      ++pos_;
      return {{8, 8}};
    }
    return parse_escaped_set();
  }

  std::vector<uint32_t> chars_;
  Budget& budget_;
  size_t pos_ = 0;
};

Fragment build(const Node& node, NfaBuilder& nfa) {
  switch (node.kind) {
    case Node::Kind::empty:
      return nfa.empty();
    case Node::Kind::chars:
      return nfa.chars(node.set);
    case Node::Kind::start:
      return nfa.assert_start();
    case Node::Kind::end:
      return nfa.assert_end();
    case Node::Kind::sequence: {
      Fragment f = nfa.empty();
      for (const Ptr& part : node.parts) f = nfa.sequence(f, build(*part, nfa));
      return f;
    }
    case Node::Kind::either: {
      Fragment f = build(*node.parts[0], nfa);
      for (size_t i = 1; i < node.parts.size(); ++i) f = nfa.either(f, build(*node.parts[i], nfa));
      return f;
    }
    case Node::Kind::repeat: {
      Fragment f = nfa.empty();
      for (int64_t i = 0; i < node.min; ++i) f = nfa.sequence(f, build(*node.parts[0], nfa));
      if (node.max < 0) return nfa.sequence(f, nfa.star(build(*node.parts[0], nfa)));
      // (a(a(a)?)?)? and not a?a?a?: each way out leads straight to the end.
      const int32_t end = nfa.node();
      int32_t at = f.out;
      for (int64_t i = node.min; i < node.max; ++i) {
        nfa.epsilon(at, end);
        const Fragment one = build(*node.parts[0], nfa);
        nfa.epsilon(at, one.in);
        at = one.out;
      }
      nfa.epsilon(at, end);
      return {f.in, end};
    }
  }
  return nfa.empty();
}

}  // namespace

CharNfa compile_regex(std::string_view pattern, RegexMode mode, Budget& budget) {
  SINTER_CHECK(static_cast<int64_t>(pattern.size()) <= budget.limits().max_source_bytes, "regex: longer than {} bytes",
               budget.limits().max_source_bytes);
  const Ptr root = Parser(pattern, budget).parse();
  NfaBuilder nfa(budget);
  return nfa.finish(build(*root, nfa), mode == RegexMode::search);
}

}  // namespace sinter::engine::grammar
