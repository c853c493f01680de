#include "data/scrub/pii.h"

#include <algorithm>
#include <array>
#include <optional>

#include "data/text/characters.h"

namespace sinter::data {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_atom(char c) {
  return is_alnum(c) || std::string_view("!#$%&'*+/=?^_`{|}~-").find(c) != std::string_view::npos;
}

// Python's \w.
bool is_word(uint32_t code, const CharFlags& flags) {
  return code == '_' || (flags(code) & (kLetterChar | kNumberChar));
}

bool is_boundary(std::string_view text, size_t pos, const CharFlags& flags) {
  bool before = false, after = false;
  if (pos > 0) {
    size_t at = pos;
    before = is_word(previous_char(text, at), flags);
  }
  if (pos < text.size()) {
    size_t at = pos;
    after = is_word(next_char(text, at), flags);
  }
  return before != after;
}

// The end of an octet that must end at a full stop, or nothing.
std::optional<size_t> octet_before_dot(std::string_view text, size_t pos) {
  size_t end = pos;
  while (end < text.size() && end - pos < 4 && is_digit(text[end])) ++end;
  const size_t length = end - pos;
  if (length == 0 || length > 3 || end >= text.size() || text[end] != '.') return std::nullopt;
  if (length == 3 && text[pos] > '1' &&
      !(text[pos] == '2' && (text[pos + 1] < '5' || (text[pos + 1] == '5' && text[pos + 2] <= '5'))))
    return std::nullopt;
  return end;
}

// The end of the last octet, as the pattern 25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]? takes it.
std::optional<size_t> last_octet(std::string_view text, size_t pos) {
  auto digit = [&](size_t i) { return i < text.size() && is_digit(text[i]); };
  if (!digit(pos)) return std::nullopt;
  if (text[pos] == '2' && digit(pos + 1) && digit(pos + 2) &&
      (text[pos + 1] < '5' || (text[pos + 1] == '5' && text[pos + 2] <= '5')))
    return pos + 3;
  if (text[pos] <= '1' && digit(pos + 1)) return digit(pos + 2) ? pos + 3 : pos + 2;
  return digit(pos + 1) ? pos + 2 : pos + 1;
}

std::optional<size_t> three_octets(std::string_view text, size_t pos) {
  for (int i = 0; i < 3; ++i) {
    const auto end = octet_before_dot(text, pos);
    if (!end) return std::nullopt;
    pos = *end + 1;
  }
  return pos;
}

std::optional<size_t> domain_end(std::string_view text, size_t pos) {
  if (pos < text.size() && text[pos] == '[') {
    const auto last = three_octets(text, pos + 1);
    if (!last) return std::nullopt;
    // Each alternative of the pattern in turn, until the bracket follows.
    for (size_t length = 3; length >= 1; --length) {
      const size_t end = *last + length;
      if (end < text.size() && text[end] == ']') {
        std::string octet(text.substr(*last, length));
        octet += '.';
        const auto whole = octet_before_dot(octet, 0);
        if (whole && *whole == length) return end + 1;
      }
    }
    size_t end = *last;
    while (end < text.size() && (is_alnum(text[end]) || text[end] == '-')) ++end;
    if (end > *last && is_alnum(text[end - 1]) && end + 1 < text.size() && text[end] == ':' && text[end + 1] == ']')
      return end + 2;
    return std::nullopt;
  }
  size_t labels = 0, matched = 0;
  while (pos < text.size() && is_alnum(text[pos])) {
    size_t end = pos;
    while (end < text.size() && (is_alnum(text[end]) || text[end] == '-')) ++end;
    size_t last = end;
    while (!is_alnum(text[last - 1])) --last;
    ++labels;
    matched = last;
    if (last != end || end >= text.size() || text[end] != '.') break;
    pos = end + 1;
  }
  if (labels < 2) return std::nullopt;
  return matched;
}

constexpr size_t kLongestLocalPart = 4096;

}  // namespace

// Four numbers below 256 without leading zeros, or nothing.
std::optional<uint32_t> parse_ipv4(std::string_view address) {
  uint32_t value = 0;
  size_t pos = 0;
  for (int part = 0; part < 4; ++part) {
    uint32_t octet = 0;
    const size_t begin = pos;
    while (pos < address.size() && is_digit(address[pos]))
      octet = octet * 10 + static_cast<uint32_t>(address[pos++] - '0');
    if (pos == begin || pos - begin > 3 || octet > 255 || (pos - begin > 1 && address[begin] == '0'))
      return std::nullopt;
    value = value << 8 | octet;
    if (part < 3 && (pos >= address.size() || address[pos++] != '.')) return std::nullopt;
  }
  if (pos != address.size()) return std::nullopt;
  return value;
}

bool is_public_ipv4(std::string_view address) {
  const std::optional<uint32_t> parsed = parse_ipv4(address);
  if (!parsed) return false;
  const uint32_t value = *parsed;
  if (value == 0xc0000009 || value == 0xc000000a) return true;  // 192.0.0.9, 192.0.0.10
  struct Net {
    uint32_t base;
    int bits;
  };
  static constexpr Net kNets[] = {{0x00000000, 8},  {0x0a000000, 8},  {0x64400000, 10}, {0x7f000000, 8},
                                  {0xa9fe0000, 16}, {0xac100000, 12}, {0xc0000000, 24}, {0xc0000200, 24},
                                  {0xc0a80000, 16}, {0xc6120000, 15}, {0xc6336400, 24}, {0xcb007100, 24},
                                  {0xf0000000, 4}};
  return std::none_of(std::begin(kNets), std::end(kNets),
                      [&](const Net& n) { return value >> (32 - n.bits) == n.base >> (32 - n.bits); });
}

std::vector<Span> find_emails(std::string_view text) {
  std::vector<Span> found;
  const CharFlags flags;
  size_t floor = 0;
  for (size_t at = text.find('@'); at != std::string_view::npos; at = text.find('@', at + 1)) {
    if (at < floor || at == 0 || text[at - 1] == '.') continue;
    const size_t least = std::max(floor, at > kLongestLocalPart ? at - kLongestLocalPart : 0);
    size_t begin = at;
    while (begin > least && (is_atom(text[begin - 1]) || (text[begin - 1] == '.' && text[begin] != '.'))) --begin;
    while (begin < at && (text[begin] == '.' || !is_boundary(text, begin, flags))) ++begin;
    if (begin == at) continue;
    const auto end = domain_end(text, at + 1);
    if (!end) continue;
    found.push_back({begin, *end});
    floor = *end;
  }
  return found;
}

std::vector<Span> find_ips(std::string_view text) {
  std::vector<Span> found;
  for (size_t dot = text.find('.'), floor = 0; dot != std::string_view::npos; dot = text.find('.', dot + 1)) {
    if (dot < floor) continue;
    size_t begin = dot;
    while (begin > floor && dot - begin < 3 && is_digit(text[begin - 1])) --begin;
    for (; begin < dot; ++begin) {  // leftmost first
      const auto last = three_octets(text, begin);
      if (!last) continue;
      const auto end = last_octet(text, *last);
      if (!end) continue;
      found.push_back({begin, *end});
      floor = *end;
      break;
    }
  }
  return found;
}

std::vector<Span> find_phones(std::string_view text) {
  const CharFlags flags;
  std::vector<Span> found;
  auto digits = [&](size_t pos, int count) -> std::optional<size_t> {
    for (; count > 0; --count) {
      if (pos >= text.size() || !(flags(next_char(text, pos)) & kDecimal)) return std::nullopt;
    }
    return pos;
  };
  auto is_at = [&](size_t pos, std::string_view any) {
    return pos < text.size() && any.find(text[pos]) != std::string_view::npos;
  };
  size_t space = std::string_view::npos;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    if (flags(next_char(text, pos)) & kPythonSpace) {
      if (space == std::string_view::npos) space = at;
      continue;
    }
    const size_t begin = space;
    space = std::string_view::npos;
    if (begin == std::string_view::npos) continue;
    auto end = digits(is_at(at, "(") ? at + 1 : at, 3);
    if (!end) continue;
    if (is_at(*end, ")")) ++*end;
    while (is_at(*end, "-. ")) ++*end;
    end = digits(*end, 3);
    if (!end) continue;
    end = digits(is_at(*end, "-. ") ? *end + 1 : *end, 4);
    if (!end) continue;
    found.push_back({begin, *end});
    pos = *end;
  }
  return found;
}

std::vector<Span> find_keys(std::string_view text) {
  struct Form {
    std::string_view prefix;
    size_t least;  // characters behind the prefix
  };
  static constexpr Form kForms[] = {{"AKIA", 16}, {"ASIA", 16}, {"ghp_", 36},  {"gho_", 36},  {"github_pat_", 22},
                                    {"sk-", 32},  {"hf_", 30},  {"xoxb-", 20}, {"xoxp-", 20}, {"AIza", 35}};
  std::vector<Span> found;
  auto is_key_char = [](char c) { return is_alnum(c) || c == '_' || c == '-'; };
  for (const Form& form : kForms) {
    for (size_t at = text.find(form.prefix); at != std::string_view::npos; at = text.find(form.prefix, at + 1)) {
      if (at > 0 && is_alnum(text[at - 1])) continue;
      size_t end = at + form.prefix.size();
      while (end < text.size() && is_key_char(text[end])) ++end;
      if (end - at - form.prefix.size() >= form.least) found.push_back({at, end});
    }
  }
  constexpr std::string_view kBegin = "-----BEGIN ", kEnd = "PRIVATE KEY-----";
  for (size_t at = text.find(kBegin); at != std::string_view::npos; at = text.find(kBegin, at + 1)) {
    const size_t head = text.find("PRIVATE KEY-----", at);
    if (head == std::string_view::npos || head - at > 40) continue;
    const size_t end = text.find(kEnd, head + kEnd.size());
    if (end == std::string_view::npos) continue;
    found.push_back({at, end + kEnd.size()});
  }
  std::sort(found.begin(), found.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> apart;
  for (const Span& span : found) {
    if (apart.empty() || span.begin >= apart.back().end) apart.push_back(span);
  }
  return apart;
}

std::string Scrubber::scrub(std::string_view text) {
  std::string out(text);
  auto replace = [&](const std::vector<Span>& spans, auto&& replacement) {
    if (spans.empty()) return;
    std::string next;
    size_t from = 0;
    for (const Span& span : spans) {
      const std::optional<std::string> with =
          replacement(std::string_view(out).substr(span.begin, span.end - span.begin));
      if (!with) continue;
      next.append(out, from, span.begin - from).append(*with);
      from = span.end;
      ++num_replaced_;
    }
    next.append(out, from);
    out = std::move(next);
  };
  using Text = std::optional<std::string>;
  if (options_.emails && !options_.email_replacements.empty()) {
    const auto& with = options_.email_replacements;
    replace(find_emails(out), [&](std::string_view) -> Text { return with[next_email_++ % with.size()]; });
  }
  if (options_.ips && !options_.ip_replacements.empty()) {
    const auto& with = options_.ip_replacements;
    replace(find_ips(out), [&](std::string_view ip) -> Text {
      if (!(options_.only_public_ips ? is_public_ipv4(ip) : parse_ipv4(ip).has_value())) return std::nullopt;
      return with[next_ip_++ % with.size()];
    });
  }
  if (options_.phones) replace(find_phones(out), [&](std::string_view) -> Text { return options_.phone_replacement; });
  if (options_.keys) replace(find_keys(out), [&](std::string_view) -> Text { return options_.key_replacement; });
  return out;
}

}  // namespace sinter::data
