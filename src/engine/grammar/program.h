// A compiled grammar: rules over bytes. Each rule is an automaton whose edges read bytes or call rules.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/grammar/char_nfa.h"

namespace sinter::engine::grammar {

// A special token in the output (such as <tool_call> where it is one token) is this byte and then the token's text: no
// text of a character contains it.
inline constexpr uint8_t kSpecialMark = 0xFF;

struct Program {
  struct ByteEdge {
    uint8_t first, last;
    int32_t to;
  };
  struct Call {
    int32_t rule, to;
  };
  struct Node {
    std::vector<ByteEdge> bytes;
    std::vector<int32_t> epsilon;
    std::vector<Call> calls;
    bool is_end = false;   // the rule may end here
    bool is_tail = false;  // ... and can do nothing else
  };
  std::vector<Node> nodes;
  std::vector<int32_t> rule_starts;  // node of each rule
  std::vector<std::string> rule_names;
  int32_t root = 0;
  GrammarLimits limits;
};

enum class TextForm { plain, json };  // characters as UTF-8, or as they stand within a JSON string

class ProgramBuilder {
 public:
  explicit ProgramBuilder(Budget& budget) : budget_(budget) {}
  Budget& budget() { return budget_; }

  // A new rule; its automaton begins at rule_start() and is built by the calls below.
  int32_t add_rule(std::string name);
  int32_t rule_start(int32_t rule) const { return program_.rule_starts[static_cast<size_t>(rule)]; }
  int32_t node();
  void mark_end(int32_t node) { program_.nodes[static_cast<size_t>(node)].is_end = true; }
  void epsilon(int32_t from, int32_t to);
  void bytes(int32_t from, uint8_t first, uint8_t last, int32_t to);
  void call(int32_t from, int32_t rule, int32_t to);
  void chars(int32_t from, const CharSet& set, int32_t to);  // one character in UTF-8
  // Each returns or takes the node behind it.
  int32_t literal(int32_t from, std::string_view text);
  int32_t automaton(int32_t from, const CharNfa& nfa, TextForm form);

  // Takes out what leads nowhere. Throws base::Error when the root matches nothing, or a rule begins with itself.
  Program finish(int32_t root);

 private:
  void json_chars(int32_t from, const CharSet& set, int32_t to);
  void utf8_range(int32_t from, const uint8_t* low, const uint8_t* high, std::pair<int, int32_t> rest_and_to);
  void mark_tails();
  void prune();
  void check_left_recursion() const;

  Budget& budget_;
  Program program_;
};

// The rule that `grammar` (GBNF, as llama.cpp's grammar files) calls root. Throws base::Error with the line.
Program compile_gbnf(std::string_view grammar, const GrammarLimits& limits);
// Text that matches the regex as a whole.
Program compile_regex_program(std::string_view pattern, const GrammarLimits& limits);
// One of these texts.
Program compile_choice(const std::vector<std::string>& choices, const GrammarLimits& limits);

}  // namespace sinter::engine::grammar
