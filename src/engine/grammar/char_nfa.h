// Automata over characters (Unicode code points): what regexes, formats, lengths and ranges of numbers become, and how
// several of them on one string are combined.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/budget.h"

namespace sinter::engine::grammar {

inline constexpr uint32_t kLastChar = 0x10FFFF;

struct CharRange {
  uint32_t first, last;
  auto operator<=>(const CharRange&) const = default;
};
using CharSet = std::vector<CharRange>;  // sorted, disjoint, not adjacent

CharSet normalized(CharSet set);
CharSet inverted(const CharSet& set);  // without surrogates
CharSet intersection(const CharSet& a, const CharSet& b);
bool contains(const CharSet& set, uint32_t c);
CharSet any_char();

// Decodes UTF-8; throws base::Error naming `what` when the text is none.
std::vector<uint32_t> code_points(std::string_view text, std::string_view what);

// Without epsilon edges. State 0 is the start.
struct CharNfa {
  struct Edge {
    CharSet chars;
    int32_t to;
  };
  struct State {
    std::vector<Edge> edges;
    bool accepts = false;
  };
  std::vector<State> states{State{}};

  bool is_empty() const { return states.size() == 1 && states[0].edges.empty() && !states[0].accepts; }
  bool matches(std::string_view text) const;
};

// Only states on a way from the start to an accepting one; is_empty() when there is none.
CharNfa trimmed(const CharNfa& nfa);
CharNfa intersected(const CharNfa& a, const CharNfa& b, Budget& budget);
// Every string that `nfa` does not accept.
CharNfa complemented(const CharNfa& nfa, Budget& budget);
CharNfa united(const CharNfa& a, const CharNfa& b);
// Strings of min to max characters; max < 0: no upper bound.
CharNfa of_length(int64_t min, int64_t max, Budget& budget);
// Exactly these strings.
CharNfa of_words(const std::vector<std::string>& words);

// ---- building with epsilon edges -----------------------------------------------------------------------------------

// A part with one way in and one way out.
struct Fragment {
  int32_t in, out;
};

class NfaBuilder {
 public:
  explicit NfaBuilder(Budget& budget) : budget_(budget) {}
  int32_t node();
  void epsilon(int32_t from, int32_t to) { nodes_[from].epsilon.push_back({to, Assertion::none}); }
  void edge(int32_t from, CharSet chars, int32_t to) { nodes_[from].edges.push_back({std::move(chars), to}); }

  Fragment empty();
  Fragment chars(CharSet set);
  Fragment word(std::string_view text);
  Fragment sequence(Fragment a, Fragment b);
  Fragment either(Fragment a, Fragment b);
  Fragment optional(Fragment a);
  Fragment star(Fragment a);
  Fragment assert_start();  // '^'
  Fragment assert_end();    // '$'

  // The language from `part.in` to `part.out`; with `is_search` every string of which a part is in it.
  CharNfa finish(Fragment part, bool is_search);

 private:
  enum class Assertion : uint8_t { none, start, end };
  struct Epsilon {
    int32_t to;
    Assertion assertion;
  };
  struct Node {
    std::vector<CharNfa::Edge> edges;
    std::vector<Epsilon> epsilon;
  };
  Fragment assertion(Assertion kind);
  Budget& budget_;
  std::vector<Node> nodes_;
};

}  // namespace sinter::engine::grammar
