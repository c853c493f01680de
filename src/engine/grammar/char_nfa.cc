#include "engine/grammar/char_nfa.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace sinter::engine::grammar {

// ---- sets of characters --------------------------------------------------------------------------------------------

CharSet normalized(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet out;
  for (const CharRange& r : set) {
    if (r.first > r.last) continue;
    if (!out.empty() && r.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, r.last);
    } else {
      out.push_back(r);
    }
  }
  return out;
}

CharSet inverted(const CharSet& set) {
  CharSet out;
  uint32_t next = 0;
  for (const CharRange& r : set) {
    if (r.first > next) out.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= kLastChar) out.push_back({next, kLastChar});
  return intersection(out, any_char());
}

CharSet intersection(const CharSet& a, const CharSet& b) {
  CharSet out;
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    const uint32_t first = std::max(a[i].first, b[j].first), last = std::min(a[i].last, b[j].last);
    if (first <= last) out.push_back({first, last});
    (a[i].last < b[j].last ? i : j)++;
  }
  return out;
}

bool contains(const CharSet& set, uint32_t c) {
  return std::any_of(set.begin(), set.end(), [c](const CharRange& r) { return r.first <= c && c <= r.last; });
}

CharSet any_char() { return {{0, 0xD7FF}, {0xE000, kLastChar}}; }

std::vector<uint32_t> code_points(std::string_view text, std::string_view what) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < text.size();) {
    const uint8_t lead = static_cast<uint8_t>(text[i]);
    const int length = lead < 0x80                   ? 1
                       : lead >= 0xC2 && lead < 0xE0 ? 2
                       : lead >= 0xE0 && lead < 0xF0 ? 3
                       : lead >= 0xF0 && lead < 0xF5 ? 4
                                                     : 0;
    bool is_right = length > 0 && i + static_cast<size_t>(length) <= text.size();
    uint32_t c = length == 1 ? lead : lead & (0x7F >> length);
    for (int k = 1; is_right && k < length; ++k) {
      const uint8_t byte = static_cast<uint8_t>(text[i + static_cast<size_t>(k)]);
      is_right = (byte & 0xC0) == 0x80;
      c = (c << 6) | (byte & 0x3F);
    }
    static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    is_right = is_right && c >= kLeast[length] && c <= kLastChar && !(c >= 0xD800 && c <= 0xDFFF);
    SINTER_CHECK(is_right, "{} is not UTF-8 at byte {}", what, i);
    out.push_back(c);
    i += static_cast<size_t>(length);
  }
  return out;
}

// ---- automata ------------------------------------------------------------------------------------------------------

bool CharNfa::matches(std::string_view text) const {
  std::set<int32_t> now{0};
  for (uint32_t c : code_points(text, "text")) {
    std::set<int32_t> next;
    for (int32_t s : now) {
      for (const Edge& e : states[static_cast<size_t>(s)].edges) {
        if (contains(e.chars, c)) next.insert(e.to);
      }
    }
    now = std::move(next);
  }
  return std::any_of(now.begin(), now.end(), [&](int32_t s) { return states[static_cast<size_t>(s)].accepts; });
}

CharNfa trimmed(const CharNfa& nfa) {
  const size_t n = nfa.states.size();
  std::vector<std::vector<int32_t>> before(n);
  std::vector<char> is_live(n, 0);
  std::vector<int32_t> work;
  for (size_t s = 0; s < n; ++s) {
    for (const auto& e : nfa.states[s].edges) {
      if (!e.chars.empty()) before[static_cast<size_t>(e.to)].push_back(static_cast<int32_t>(s));
    }
    if (nfa.states[s].accepts) {
      is_live[s] = 1;
      work.push_back(static_cast<int32_t>(s));
    }
  }
  while (!work.empty()) {
    const int32_t s = work.back();
    work.pop_back();
    for (int32_t p : before[static_cast<size_t>(s)]) {
      if (!is_live[static_cast<size_t>(p)]) {
        is_live[static_cast<size_t>(p)] = 1;
        work.push_back(p);
      }
    }
  }
  CharNfa out;
  if (!is_live[0]) return out;
  std::vector<int32_t> number(n, -1);
  std::vector<int32_t> order{0};
  number[0] = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    const auto& from = nfa.states[static_cast<size_t>(order[k])];
    CharNfa::State state{.accepts = from.accepts};
    for (const auto& e : from.edges) {
      if (e.chars.empty() || !is_live[static_cast<size_t>(e.to)]) continue;
      int32_t& to = number[static_cast<size_t>(e.to)];
      if (to < 0) {
        to = static_cast<int32_t>(order.size());
        order.push_back(e.to);
      }
      state.edges.push_back({e.chars, to});
    }
    out.states.resize(order.size());
    out.states[k] = std::move(state);
  }
  return out;
}

CharNfa intersected(const CharNfa& a, const CharNfa& b, Budget& budget) {
  CharNfa out;
  std::map<std::pair<int32_t, int32_t>, int32_t> number{{{0, 0}, 0}};
  std::vector<std::pair<int32_t, int32_t>> order{{0, 0}};
  for (size_t k = 0; k < order.size(); ++k) {
    budget.spend();
    const auto& sa = a.states[static_cast<size_t>(order[k].first)];
    const auto& sb = b.states[static_cast<size_t>(order[k].second)];
    CharNfa::State state{.accepts = sa.accepts && sb.accepts};
    for (const auto& ea : sa.edges) {
      for (const auto& eb : sb.edges) {
        CharSet both = intersection(ea.chars, eb.chars);
        if (both.empty()) continue;
        auto [at, is_new] = number.try_emplace({ea.to, eb.to}, static_cast<int32_t>(order.size()));
        if (is_new) order.emplace_back(ea.to, eb.to);
        state.edges.push_back({std::move(both), at->second});
      }
    }
    out.states.resize(order.size());
    out.states[k] = std::move(state);
  }
  return trimmed(out);
}

CharNfa complemented(const CharNfa& nfa, Budget& budget) {
  using Subset = std::vector<int32_t>;
  CharNfa out;
  std::map<Subset, int32_t> number{{{0}, 0}};
  std::vector<Subset> order{{0}};
  for (size_t k = 0; k < order.size(); ++k) {
    budget.spend(4);
    const Subset here = order[k];
    CharNfa::State state{.accepts = true};
    std::vector<uint32_t> cuts{0, kLastChar + 1};  // where the set of reached states may change
    for (int32_t s : here) {
      const auto& from = nfa.states[static_cast<size_t>(s)];
      if (from.accepts) state.accepts = false;
      for (const auto& e : from.edges) {
        for (const CharRange& r : e.chars) {
          cuts.push_back(r.first);
          cuts.push_back(r.last + 1);
        }
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::map<Subset, CharSet> reached;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::set<int32_t> to;
      for (int32_t s : here) {
        for (const auto& e : nfa.states[static_cast<size_t>(s)].edges) {
          if (contains(e.chars, cuts[i])) to.insert(e.to);
        }
      }
      reached[Subset(to.begin(), to.end())].push_back({cuts[i], cuts[i + 1] - 1});
      budget.spend(0);
    }
    for (auto& [subset, chars] : reached) {
      auto [at, is_new] = number.try_emplace(subset, static_cast<int32_t>(order.size()));
      if (is_new) order.push_back(subset);
      state.edges.push_back({intersection(normalized(chars), any_char()), at->second});
    }
    out.states.resize(order.size());
    out.states[k] = std::move(state);
  }
  return trimmed(out);
}

CharNfa united(const CharNfa& a, const CharNfa& b) {
  CharNfa out;
  const auto shift_b = static_cast<int32_t>(a.states.size()) + 1;
  auto copy = [&](const CharNfa& from, int32_t shift) {
    for (const auto& state : from.states) {
      out.states.push_back(state);
      for (auto& e : out.states.back().edges) e.to += shift;
    }
  };
  copy(a, 1);
  copy(b, shift_b);
  out.states[0] = out.states[1];
  const auto& sb = out.states[static_cast<size_t>(shift_b)];
  out.states[0].accepts |= sb.accepts;
  const auto edges = sb.edges;
  out.states[0].edges.insert(out.states[0].edges.end(), edges.begin(), edges.end());
  return trimmed(out);
}

CharNfa of_length(int64_t min, int64_t max, Budget& budget) {
  CharNfa out;
  const int64_t last = max < 0 ? min : max;
  budget.spend(last);
  out.states.resize(static_cast<size_t>(last) + 1);
  for (int64_t i = 0; i <= last; ++i) {
    auto& state = out.states[static_cast<size_t>(i)];
    state.accepts = i >= min;
    if (i < last) state.edges.push_back({any_char(), static_cast<int32_t>(i + 1)});
    if (i == last && max < 0) state.edges.push_back({any_char(), static_cast<int32_t>(i)});
  }
  return max >= 0 && min > max ? CharNfa{} : out;
}

CharNfa of_words(const std::vector<std::string>& words) {
  CharNfa out;
  for (const std::string& word : words) {
    int32_t at = 0;
    for (uint32_t c : code_points(word, "text")) {
      int32_t next = -1;
      for (const auto& e : out.states[static_cast<size_t>(at)].edges) {
        if (e.chars[0].first == c) next = e.to;
      }
      if (next < 0) {
        next = static_cast<int32_t>(out.states.size());
        out.states[static_cast<size_t>(at)].edges.push_back({CharSet{{c, c}}, next});
        out.states.emplace_back();
      }
      at = next;
    }
    out.states[static_cast<size_t>(at)].accepts = true;
  }
  return out;
}

// ---- building ------------------------------------------------------------------------------------------------------

int32_t NfaBuilder::node() {
  budget_.spend();
  nodes_.emplace_back();
  return static_cast<int32_t>(nodes_.size()) - 1;
}

Fragment NfaBuilder::empty() {
  const Fragment f{node(), node()};
  epsilon(f.in, f.out);
  return f;
}

Fragment NfaBuilder::chars(CharSet set) {
  const Fragment f{node(), node()};
  edge(f.in, std::move(set), f.out);
  return f;
}

Fragment NfaBuilder::word(std::string_view text) {
  Fragment f = empty();
  for (uint32_t c : code_points(text, "text")) f = sequence(f, chars({{c, c}}));
  return f;
}

Fragment NfaBuilder::sequence(Fragment a, Fragment b) {
  epsilon(a.out, b.in);
  return {a.in, b.out};
}

Fragment NfaBuilder::either(Fragment a, Fragment b) {
  const Fragment f{node(), node()};
  epsilon(f.in, a.in);
  epsilon(f.in, b.in);
  epsilon(a.out, f.out);
  epsilon(b.out, f.out);
  return f;
}

Fragment NfaBuilder::optional(Fragment a) { return either(a, empty()); }

Fragment NfaBuilder::star(Fragment a) {
  const Fragment f{node(), node()};
  epsilon(f.in, a.in);
  epsilon(f.in, f.out);
  epsilon(a.out, a.in);
  epsilon(a.out, f.out);
  return f;
}

Fragment NfaBuilder::assertion(Assertion kind) {
  const Fragment f{node(), node()};
  nodes_[static_cast<size_t>(f.in)].epsilon.push_back({f.out, kind});
  return f;
}
Fragment NfaBuilder::assert_start() { return assertion(Assertion::start); }
Fragment NfaBuilder::assert_end() { return assertion(Assertion::end); }

// States of the result are (node, anything read before, end asserted): '^' holds only while nothing was read, and after
// '$' nothing may be read.
CharNfa NfaBuilder::finish(Fragment part, bool is_search) {
  if (is_search) {
    const Fragment before = star(chars(any_char())), after = star(chars(any_char()));
    part = sequence(sequence(before, part), after);
  }
  using Key = std::tuple<int32_t, bool, bool>;
  std::map<Key, int32_t> number;
  std::vector<Key> order;
  auto number_of = [&](const Key& key) {
    auto [at, is_new] = number.try_emplace(key, static_cast<int32_t>(order.size()));
    if (is_new) order.push_back(key);
    return at->second;
  };
  number_of({part.in, false, false});
  CharNfa out;
  for (size_t k = 0; k < order.size(); ++k) {
    CharNfa::State state;
    const auto [start, has_read, has_ended] = order[k];
    std::set<std::pair<int32_t, bool>> seen{{start, has_ended}};
    std::vector<std::pair<int32_t, bool>> work{{start, has_ended}};
    while (!work.empty()) {
      const auto [n, ended] = work.back();
      work.pop_back();
      budget_.spend(0);
      if (n == part.out) state.accepts = true;
      const Node& here = nodes_[static_cast<size_t>(n)];
      for (const Epsilon& e : here.epsilon) {
        if (e.assertion == Assertion::start && has_read) continue;
        const std::pair<int32_t, bool> to{e.to, ended || e.assertion == Assertion::end};
        if (seen.insert(to).second) work.push_back(to);
      }
      if (ended) continue;
      for (const auto& e : here.edges) state.edges.push_back({e.chars, number_of({e.to, true, false})});
    }
    budget_.spend(1 + static_cast<int64_t>(state.edges.size()) / 8);
    out.states.resize(order.size());
    out.states[k] = std::move(state);
  }
  return trimmed(out);
}

}  // namespace sinter::engine::grammar
