#include "engine/grammar/program.h"

#include <algorithm>
#include <unordered_set>

#include "engine/grammar/regex.h"

namespace sinter::engine::grammar {

int32_t ProgramBuilder::add_rule(std::string name) {
  program_.rule_names.push_back(std::move(name));
  program_.rule_starts.push_back(node());
  return static_cast<int32_t>(program_.rule_starts.size()) - 1;
}

int32_t ProgramBuilder::node() {
  budget_.spend();
  program_.nodes.emplace_back();
  return static_cast<int32_t>(program_.nodes.size()) - 1;
}

void ProgramBuilder::epsilon(int32_t from, int32_t to) {
  if (from != to) program_.nodes[static_cast<size_t>(from)].epsilon.push_back(to);
}
void ProgramBuilder::bytes(int32_t from, uint8_t first, uint8_t last, int32_t to) {
  program_.nodes[static_cast<size_t>(from)].bytes.push_back({first, last, to});
}
void ProgramBuilder::call(int32_t from, int32_t rule, int32_t to) {
  program_.nodes[static_cast<size_t>(from)].calls.push_back({rule, to});
}

int32_t ProgramBuilder::literal(int32_t from, std::string_view text) {
  for (char c : text) {
    const int32_t to = node();
    bytes(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

namespace {
int encode_utf8(uint32_t c, uint8_t* out) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  const int length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (int i = length - 1; i > 0; --i, c >>= 6) out[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  static constexpr uint8_t kLead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  out[0] = static_cast<uint8_t>(kLead[length] | c);
  return length;
}
}  // namespace

// Sequences of equal length between low and high, cut where a middle byte's range depends on the byte before it.
void ProgramBuilder::utf8_range(int32_t from, const uint8_t* low, const uint8_t* high,
                                std::pair<int, int32_t> rest_and_to) {
  const auto [rest, to] = rest_and_to;
  if (rest == 1) {
    bytes(from, low[0], high[0], to);
    return;
  }
  static constexpr uint8_t kLow[] = {0x80, 0x80, 0x80}, kHigh[] = {0xBF, 0xBF, 0xBF};
  if (low[0] == high[0]) {
    const int32_t next = node();
    bytes(from, low[0], low[0], next);
    utf8_range(next, low + 1, high + 1, {rest - 1, to});
    return;
  }
  uint8_t first = low[0], last = high[0];
  const bool low_is_whole = std::equal(low + 1, low + rest, kLow),
             high_is_whole = std::equal(high + 1, high + rest, kHigh);
  if (!low_is_whole) {
    const int32_t next = node();
    bytes(from, first, first, next);
    utf8_range(next, low + 1, kHigh, {rest - 1, to});
    ++first;
  }
  if (!high_is_whole) {
    const int32_t next = node();
    bytes(from, last, last, next);
    utf8_range(next, kLow, high + 1, {rest - 1, to});
    --last;
  }
  if (first <= last) {
    const int32_t next = node();
    bytes(from, first, last, next);
    utf8_range(next, kLow, kHigh, {rest - 1, to});
  }
}

void ProgramBuilder::chars(int32_t from, const CharSet& set, int32_t to) {
  static constexpr CharRange kLengths[] = {{0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xFFFF}, {0x10000, kLastChar}};
  const CharSet valid = intersection(set, any_char());
  for (const CharRange& range : valid) {
    for (const CharRange& part : kLengths) {
      const uint32_t first = std::max(range.first, part.first), last = std::min(range.last, part.last);
      if (first > last) continue;
      uint8_t low[4], high[4];
      const int length = encode_utf8(first, low);
      encode_utf8(last, high);
      utf8_range(from, low, high, {length, to});
    }
  }
}

// A character within a JSON string: itself, or its escape where it must have one.
void ProgramBuilder::json_chars(int32_t from, const CharSet& set, int32_t to) {
  static const CharSet kPlain{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastChar}};
  chars(from, intersection(set, kPlain), to);
  static constexpr std::pair<uint32_t, char> kShort[] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                                         {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};
  int32_t escape = -1;
  auto escaped = [&] {
    if (escape < 0) {
      escape = node();
      bytes(from, '\\', '\\', escape);
    }
    return escape;
  };
  for (const auto& [c, letter] : kShort) {
    if (contains(set, c)) bytes(escaped(), static_cast<uint8_t>(letter), static_cast<uint8_t>(letter), to);
  }
  for (uint32_t c = 0; c < 0x20; ++c) {
    const bool has_short = std::any_of(std::begin(kShort), std::end(kShort), [c](auto& s) { return s.first == c; });
    if (has_short || !contains(set, c)) continue;
    const int32_t last = literal(escaped(), std::string("u00") + (c < 16 ? '0' : '1'));
    const auto digit = static_cast<uint8_t>("0123456789abcdef"[c & 15]);
    bytes(last, digit, digit, to);
  }
}

int32_t ProgramBuilder::automaton(int32_t from, const CharNfa& nfa, TextForm form) {
  std::vector<int32_t> at(nfa.states.size());
  for (int32_t& n : at) n = node();
  const int32_t out = node();
  epsilon(from, at[0]);
  // Equal sets of characters into one state share their bytes' nodes: most automata come back to few states.
  for (size_t s = 0; s < nfa.states.size(); ++s) {
    if (nfa.states[s].accepts) epsilon(at[s], out);
    for (const auto& e : nfa.states[s].edges) {
      const int32_t to = at[static_cast<size_t>(e.to)];
      if (form == TextForm::plain) {
        chars(at[s], e.chars, to);
      } else {
        json_chars(at[s], e.chars, to);
      }
    }
  }
  return out;
}

// ---- what the whole needs ------------------------------------------------------------------------------------------

// Nodes from which their rule's end can be reached; calls of rules that cannot end lead nowhere.
void ProgramBuilder::prune() {
  auto& nodes = program_.nodes;
  const size_t n = nodes.size();
  struct Before {
    int32_t node, rule;  // rule < 0: without a call
  };
  std::vector<std::vector<Before>> before(n);
  std::vector<std::vector<int32_t>> starts(n);  // rules that begin at a node
  std::vector<std::vector<Before>> waiting(program_.rule_starts.size());
  for (size_t i = 0; i < n; ++i) {
    const auto id = static_cast<int32_t>(i);
    for (const auto& e : nodes[i].bytes) before[static_cast<size_t>(e.to)].push_back({id, -1});
    for (int32_t to : nodes[i].epsilon) before[static_cast<size_t>(to)].push_back({id, -1});
    for (const auto& c : nodes[i].calls) before[static_cast<size_t>(c.to)].push_back({id, c.rule});
  }
  for (size_t r = 0; r < program_.rule_starts.size(); ++r) {
    starts[static_cast<size_t>(program_.rule_starts[r])].push_back(static_cast<int32_t>(r));
  }
  std::vector<char> is_live(n, 0), can_end(program_.rule_starts.size(), 0);
  std::vector<int32_t> work;
  auto reach = [&](int32_t node) {
    if (is_live[static_cast<size_t>(node)]) return;
    is_live[static_cast<size_t>(node)] = 1;
    work.push_back(node);
  };
  for (size_t i = 0; i < n; ++i) {
    if (nodes[i].is_end) reach(static_cast<int32_t>(i));
  }
  while (!work.empty()) {
    const auto at = static_cast<size_t>(work.back());
    work.pop_back();
    budget_.spend(0);
    for (const Before& b : before[at]) {
      if (b.rule < 0 || can_end[static_cast<size_t>(b.rule)]) {
        reach(b.node);
      } else {
        waiting[static_cast<size_t>(b.rule)].push_back(b);
      }
    }
    for (int32_t rule : starts[at]) {
      can_end[static_cast<size_t>(rule)] = 1;
      for (const Before& b : waiting[static_cast<size_t>(rule)]) reach(b.node);
      waiting[static_cast<size_t>(rule)].clear();
    }
  }
  SINTER_CHECK(can_end[static_cast<size_t>(program_.root)], "no text can satisfy it");
  for (auto& node : nodes) {
    std::erase_if(node.bytes, [&](const auto& e) { return !is_live[static_cast<size_t>(e.to)]; });
    std::erase_if(node.epsilon, [&](int32_t to) { return !is_live[static_cast<size_t>(to)]; });
    std::erase_if(node.calls, [&](const auto& c) {
      return !is_live[static_cast<size_t>(c.to)] || !can_end[static_cast<size_t>(c.rule)];
    });
  }
}

void ProgramBuilder::mark_tails() {
  auto& nodes = program_.nodes;
  for (int round = 0; round < 4; ++round) {
    for (auto& node : nodes) {
      const bool reads_nothing = node.bytes.empty() && node.calls.empty();
      const bool ends = node.is_end && node.epsilon.empty();
      const bool leads_to_end =
          !node.is_end && node.epsilon.size() == 1 && nodes[static_cast<size_t>(node.epsilon[0])].is_tail;
      node.is_tail = reads_nothing && (ends || leads_to_end);
    }
  }
}

// A rule that can call itself before it has read a byte would never come to an end.
void ProgramBuilder::check_left_recursion() const {
  const size_t num_rules = program_.rule_starts.size();
  std::vector<char> is_nullable(num_rules, 0);
  std::vector<std::vector<int32_t>> first_calls(num_rules);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (size_t r = 0; r < num_rules; ++r) {
      std::vector<int32_t> work{program_.rule_starts[r]};
      std::unordered_set<int32_t> seen{work[0]};
      std::vector<int32_t> calls;
      bool ends = false;
      auto add = [&](int32_t to) {
        if (seen.insert(to).second) work.push_back(to);
      };
      while (!work.empty()) {
        const auto& node = program_.nodes[static_cast<size_t>(work.back())];
        work.pop_back();
        budget_.spend(0);
        ends |= node.is_end;
        for (int32_t to : node.epsilon) add(to);
        for (const auto& c : node.calls) {
          calls.push_back(c.rule);
          if (is_nullable[static_cast<size_t>(c.rule)]) add(c.to);
        }
      }
      if (ends && !is_nullable[r]) is_nullable[r] = has_changed = true;
      first_calls[r] = std::move(calls);
    }
  }
  std::vector<int> color(num_rules, 0);  // 1: on the way, 2: done
  for (size_t first = 0; first < num_rules; ++first) {
    if (color[first]) continue;
    std::vector<std::pair<size_t, size_t>> path{{first, 0}};
    color[first] = 1;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == first_calls[rule].size()) {
        color[rule] = 2;
        path.pop_back();
        continue;
      }
      const auto called = static_cast<size_t>(first_calls[rule][next++]);
      SINTER_CHECK(color[called] != 1,
                   "rule '{}' begins with itself (left recursion); write it with repetition instead",
                   program_.rule_names[called]);
      if (color[called] == 0) {
        color[called] = 1;
        path.emplace_back(called, 0);
      }
    }
  }
}

Program ProgramBuilder::finish(int32_t root) {
  program_.root = root;
  program_.limits = budget_.limits();
  check_left_recursion();
  prune();
  mark_tails();
  return std::move(program_);
}

Program compile_regex_program(std::string_view pattern, const GrammarLimits& limits) {
  Budget budget(limits);
  const CharNfa nfa = compile_regex(pattern, RegexMode::whole, budget);
  SINTER_CHECK(!nfa.is_empty(), "regex: no text can match it");
  ProgramBuilder builder(budget);
  const int32_t root = builder.add_rule("root");
  builder.mark_end(builder.automaton(builder.rule_start(root), nfa, TextForm::plain));
  return builder.finish(root);
}

Program compile_choice(const std::vector<std::string>& choices, const GrammarLimits& limits) {
  SINTER_CHECK(!choices.empty(), "choice: the list is empty; expected at least one text");
  Budget budget(limits);
  ProgramBuilder builder(budget);
  const int32_t root = builder.add_rule("root");
  for (const std::string& choice : choices) {
    code_points(choice, "choice");
    builder.mark_end(builder.literal(builder.rule_start(root), choice));
  }
  return builder.finish(root);
}

}  // namespace sinter::engine::grammar
