#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "data/dedup/exact.h"

namespace sinter::data {
namespace {

// Suffix array by induced sorting (SA-IS, Nong, Zhang, Chan 2009) of values in [0, upper].
std::vector<int32_t> induced_sort(const std::vector<int32_t>& s, int32_t upper) {
  const auto n = static_cast<int32_t>(s.size());
  if (n == 0) return {};
  if (n == 1) return {0};
  std::vector<int32_t> sa(s.size());
  std::vector<bool> is_small(s.size());
  for (int32_t i = n - 2; i >= 0; --i) {
    const auto at = static_cast<size_t>(i);
    is_small[at] = s[at] == s[at + 1] ? is_small[at + 1] : s[at] < s[at + 1];
  }
  std::vector<int32_t> large_begin(static_cast<size_t>(upper) + 2), small_begin(static_cast<size_t>(upper) + 2);
  for (int32_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!is_small[at]) {
      ++small_begin[static_cast<size_t>(s[at])];
    } else {
      ++large_begin[static_cast<size_t>(s[at]) + 1];
    }
  }
  for (size_t c = 0; c <= static_cast<size_t>(upper); ++c) {
    small_begin[c] += large_begin[c];
    large_begin[c + 1] += small_begin[c];
  }
  auto is_leftmost = [&](int32_t i) {
    return i > 0 && is_small[static_cast<size_t>(i)] && !is_small[static_cast<size_t>(i) - 1];
  };
  auto induce = [&](const std::vector<int32_t>& leftmost) {
    std::fill(sa.begin(), sa.end(), -1);
    std::vector<int32_t> bucket = small_begin;
    for (int32_t d : leftmost) {
      if (d < n) sa[static_cast<size_t>(bucket[static_cast<size_t>(s[static_cast<size_t>(d)])]++)] = d;
    }
    bucket = large_begin;
    auto put_large = [&](int32_t i) {
      sa[static_cast<size_t>(bucket[static_cast<size_t>(s[static_cast<size_t>(i)])]++)] = i;
    };
    put_large(n - 1);
    for (int32_t i = 0; i < n; ++i) {
      const int32_t v = sa[static_cast<size_t>(i)];
      if (v >= 1 && !is_small[static_cast<size_t>(v) - 1]) put_large(v - 1);
    }
    bucket = large_begin;
    for (int32_t i = n - 1; i >= 0; --i) {
      const int32_t v = sa[static_cast<size_t>(i)];
      if (v >= 1 && is_small[static_cast<size_t>(v) - 1])
        sa[static_cast<size_t>(--bucket[static_cast<size_t>(s[static_cast<size_t>(v) - 1]) + 1])] = v - 1;
    }
  };
  std::vector<int32_t> number(s.size() + 1, -1), leftmost;
  for (int32_t i = 1; i < n; ++i) {
    if (is_leftmost(i)) {
      number[static_cast<size_t>(i)] = static_cast<int32_t>(leftmost.size());
      leftmost.push_back(i);
    }
  }
  induce(leftmost);
  if (leftmost.empty()) return sa;
  std::vector<int32_t> sorted;
  for (int32_t v : sa) {
    if (v >= 0 && number[static_cast<size_t>(v)] >= 0) sorted.push_back(v);
  }
  const size_t m = leftmost.size();
  std::vector<int32_t> reduced(m);
  int32_t names = 0;
  auto end_of = [&](int32_t v) {
    const size_t k = static_cast<size_t>(number[static_cast<size_t>(v)]) + 1;
    return k < m ? leftmost[k] : n;
  };
  reduced[static_cast<size_t>(number[static_cast<size_t>(sorted[0])])] = 0;
  for (size_t i = 1; i < m; ++i) {
    int32_t l = sorted[i - 1], r = sorted[i];
    const int32_t end_l = end_of(l), end_r = end_of(r);
    bool is_same = end_l - l == end_r - r;
    if (is_same) {
      while (l < end_l && s[static_cast<size_t>(l)] == s[static_cast<size_t>(r)]) {
        ++l;
        ++r;
      }
      is_same = l != n && r != n && s[static_cast<size_t>(l)] == s[static_cast<size_t>(r)];
    }
    if (!is_same) ++names;
    reduced[static_cast<size_t>(number[static_cast<size_t>(sorted[i])])] = names;
  }
  const std::vector<int32_t> inner = induced_sort(reduced, names);
  for (size_t i = 0; i < m; ++i) sorted[i] = leftmost[static_cast<size_t>(inner[i])];
  induce(sorted);
  return sa;
}

// Longest common prefix of neighbours in the suffix array (Kasai).
std::vector<int32_t> common_prefixes(const std::vector<int32_t>& s, const std::vector<int32_t>& sa) {
  const size_t n = s.size();
  std::vector<int32_t> rank(n), lcp(n, 0);
  for (size_t i = 0; i < n; ++i) rank[static_cast<size_t>(sa[i])] = static_cast<int32_t>(i);
  size_t h = 0;
  for (size_t i = 0; i < n; ++i) {
    if (rank[i] == 0) {
      h = 0;
      continue;
    }
    const auto j = static_cast<size_t>(sa[static_cast<size_t>(rank[i]) - 1]);
    while (i + h < n && j + h < n && s[i + h] == s[j + h] && s[i + h] != 0) ++h;
    lcp[static_cast<size_t>(rank[i])] = static_cast<int32_t>(h);
    if (h > 0) --h;
  }
  return lcp;
}

}  // namespace

std::vector<int32_t> suffix_array(std::string_view text) {
  std::vector<int32_t> s(text.size());
  for (size_t i = 0; i < text.size(); ++i) s[i] = static_cast<unsigned char>(text[i]);
  return induced_sort(s, 255);
}

std::vector<std::vector<Span>> find_repeated_substrings(const std::vector<std::string_view>& texts, int64_t least) {
  SINTER_CHECK(least >= 8, "repeated substrings of {} bytes; expected at least 8", least);
  size_t total = 0;
  for (std::string_view text : texts) total += text.size() + 1;
  SINTER_CHECK(total < (size_t{1} << 31) - 16,
               "{} bytes of text for one suffix array; at most 2 GiB: use smaller shards", total);
  // Bytes as 1..256 and 0 between the texts, which equals nothing.
  std::vector<int32_t> s;
  s.reserve(total);
  for (std::string_view text : texts) {
    for (char c : text) s.push_back(static_cast<unsigned char>(c) + 1);
    s.push_back(0);
  }
  const std::vector<int32_t> sa = induced_sort(s, 256), lcp = common_prefixes(s, sa);
  // Suffixes that agree in `least` bytes stand together; all but the first by position are repeats there.
  std::vector<bool> is_repeat(total, false);
  for (size_t i = 0; i < sa.size();) {
    size_t end = i + 1;
    int32_t first = sa[i];
    for (; end < sa.size() && lcp[end] >= least; ++end) first = std::min(first, sa[end]);
    for (size_t k = i; end - i > 1 && k < end; ++k) is_repeat[static_cast<size_t>(sa[k])] = sa[k] != first;
    i = end;
  }
  std::vector<std::vector<Span>> spans(texts.size());
  size_t base = 0;
  for (size_t t = 0; t < texts.size(); base += texts[t].size() + 1, ++t) {
    const std::string_view text = texts[t];
    auto is_inside = [&](size_t p) { return p < text.size() && (static_cast<unsigned char>(text[p]) & 0xc0) == 0x80; };
    for (size_t p = 0; p < text.size(); ++p) {
      if (!is_repeat[base + p]) continue;
      Span span{p, std::min(p + static_cast<size_t>(least), text.size())};
      while (is_inside(span.begin)) ++span.begin;
      while (is_inside(span.end)) --span.end;
      if (span.begin >= span.end) continue;
      if (!spans[t].empty() && span.begin <= spans[t].back().end) {
        spans[t].back().end = std::max(spans[t].back().end, span.end);
      } else {
        spans[t].push_back(span);
      }
    }
  }
  return spans;
}

}  // namespace sinter::data
