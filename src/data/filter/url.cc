#include "data/filter/url.h"

#include <algorithm>
#include <queue>

#include "data/text/characters.h"
#include "tokenizer/unicode.h"

namespace sinter::data {
namespace {

bool is_alnum(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string only_alnum_lower(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (is_alnum(c)) out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  }
  return out;
}

// RFC 3492; "" where the label is not sound.
std::string decode_punycode(std::string_view input) {
  std::vector<uint32_t> output;
  const size_t hyphen = input.rfind('-');
  size_t pos = 0;
  if (hyphen != std::string_view::npos) {
    for (char c : input.substr(0, hyphen)) output.push_back(static_cast<unsigned char>(c));
    pos = hyphen + 1;
  }
  uint64_t n = 128, i = 0, bias = 72;
  while (pos < input.size()) {
    const uint64_t old = i;
    uint64_t weight = 1;
    for (uint64_t k = 36;; k += 36) {
      if (pos >= input.size()) return "";
      const char c = input[pos++];
      uint64_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint64_t>(c - '0') + 26;
      } else if (c >= 'a' && c <= 'z') {
        digit = static_cast<uint64_t>(c - 'a');
      } else {
        return "";
      }
      i += digit * weight;
      const uint64_t t = k <= bias ? 1 : k >= bias + 26 ? 26 : k - bias;
      if (digit < t) break;
      weight *= 36 - t;
      if (weight > (1u << 30) || i > (1u << 30)) return "";
    }
    const uint64_t count = output.size() + 1;
    uint64_t delta = (i - old) / (old == 0 ? 700 : 2);
    delta += delta / count;
    uint64_t k = 0;
    for (; delta > 455; k += 36) delta /= 35;
    bias = k + 36 * delta / (delta + 38);
    n += i / count;
    if (n > 0x10ffff) return "";
    i %= count;
    output.insert(output.begin() + static_cast<int64_t>(i), static_cast<uint32_t>(n));
    ++i;
  }
  std::string text;
  for (uint32_t code : output) tokenizer::append_utf8(text, code);
  return text;
}

std::string decoded_label(const std::string& label) {
  std::string low = lower(label);
  if (!low.starts_with("xn--")) return low;
  const std::string decoded = decode_punycode(std::string_view(low).substr(4));
  return decoded.empty() ? low : decoded;
}

// What stands between the scheme and the path, without user and port.
std::string host_of(std::string_view url) {
  const size_t slashes = url.find("//");
  if (slashes == 0) {
    url = url.substr(2);
  } else if (slashes != std::string_view::npos && slashes >= 2 && url[slashes - 1] == ':') {
    const std::string_view scheme = url.substr(0, slashes - 1);
    const bool is_scheme = std::all_of(scheme.begin(), scheme.end(),
                                       [](char c) { return is_alnum(c) || c == '+' || c == '-' || c == '.'; });
    if (is_scheme) url = url.substr(slashes + 2);
  }
  url = url.substr(0, url.find_first_of("/?#"));
  const size_t at = url.rfind('@');
  if (at != std::string_view::npos) url = url.substr(at + 1);
  if (url.starts_with('[')) {
    const size_t end = url.find(']');
    if (end != std::string_view::npos) return std::string(url.substr(0, end + 1));
  }
  std::string host(strip(url.substr(0, url.find(':'))));
  for (const std::string_view dot : {"\xe3\x80\x82", "\xef\xbc\x8e", "\xef\xbd\xa1"}) {  // full-width dots
    for (size_t p = host.find(dot); p != std::string::npos; p = host.find(dot, p)) host.replace(p, dot.size(), ".");
  }
  while (host.ends_with('.')) host.pop_back();
  return host;
}

bool is_ipv4(const std::vector<std::string>& labels) {
  return labels.size() == 4 && std::all_of(labels.begin(), labels.end(), [](const std::string& l) {
           return !l.empty() && l.size() <= 3 &&
                  std::all_of(l.begin(), l.end(), [](char c) { return c >= '0' && c <= '9'; }) && std::stoi(l) < 256;
         });
}

std::string join(const std::vector<std::string>& labels, size_t from) {
  std::string out;
  for (size_t i = from; i < labels.size(); ++i) {
    if (labels[i].empty()) continue;
    out += (out.empty() ? "" : ".") + labels[i];
  }
  return out;
}

}  // namespace

StringFinder::StringFinder(const std::vector<std::string>& needles) : next_(256, 0), shorter_(1, 0), needle_(1, -1) {
  for (size_t n = 0; n < needles.size(); ++n) {
    int32_t state = 0;
    for (char c : needles[n]) {
      int32_t& to = next_[static_cast<size_t>(state) * 256 + static_cast<unsigned char>(c)];
      if (to == 0) {
        to = static_cast<int32_t>(needle_.size());
        state = to;  // `to` dangles after the growth below
        next_.resize(next_.size() + 256, 0);
        shorter_.push_back(0);
        needle_.push_back(-1);
      } else {
        state = to;
      }
    }
    if (state != 0) needle_[static_cast<size_t>(state)] = static_cast<int32_t>(n);
  }
  std::vector<int32_t> suffix(needle_.size(), 0);
  std::queue<int32_t> order;
  for (size_t c = 0; c < 256; ++c) {
    if (next_[c] != 0) order.push(next_[c]);
  }
  while (!order.empty()) {
    const int32_t state = order.front();
    order.pop();
    const int32_t s = suffix[static_cast<size_t>(state)];
    shorter_[static_cast<size_t>(state)] = needle_[static_cast<size_t>(s)] >= 0 ? s : shorter_[static_cast<size_t>(s)];
    for (size_t c = 0; c < 256; ++c) {
      int32_t& to = next_[static_cast<size_t>(state) * 256 + c];
      const int32_t fallback = next_[static_cast<size_t>(s) * 256 + c];
      if (to == 0) {
        to = fallback;
      } else {
        suffix[static_cast<size_t>(to)] = fallback;
        order.push(to);
      }
    }
  }
}

PublicSuffixes::PublicSuffixes(std::string_view list) : has_list_(!list.empty()) {
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find('\n', begin), list.size());
    std::string_view line = strip(list.substr(begin, end - begin));
    begin = end + 1;
    if (line.find("===BEGIN PRIVATE") != std::string_view::npos) break;
    if (line.empty() || line.starts_with("//")) continue;
    const std::string rule(line.substr(0, line.find_first_of(" \t")));
    rules_.insert(rule);
    for (size_t at = rule.starts_with('!') ? 1 : 0; at != std::string::npos;) {
      nodes_.insert(rule.substr(at));
      const size_t dot = rule.find('.', at);
      at = dot == std::string::npos ? dot : dot + 1;
    }
  }
}

size_t PublicSuffixes::suffix_begin(const std::vector<std::string>& labels) const {
  size_t best = labels.size();
  if (!has_list_) return labels.size() > 1 ? labels.size() - 1 : best;
  std::string tail;
  for (size_t j = labels.size(); j-- > 0;) {
    const std::string label = decoded_label(labels[j]);
    const std::string longer = tail.empty() ? label : label + "." + tail;
    const bool is_exception = rules_.contains("!" + longer);
    if (nodes_.contains(longer) && !is_exception) {
      tail = longer;
      if (rules_.contains(tail)) best = j;
      continue;
    }
    if (!tail.empty() && rules_.contains("*." + tail)) return is_exception ? j + 1 : j;
    break;
  }
  return best;
}

PublicSuffixes::Host PublicSuffixes::split(std::string_view url) const {
  const std::string host = host_of(url);
  if (host.empty() || host.starts_with('[')) return {};
  std::vector<std::string> labels;
  for (size_t begin = 0; begin <= host.size();) {
    const size_t end = std::min(host.find('.', begin), host.size());
    labels.push_back(host.substr(begin, end - begin));
    begin = end + 1;
  }
  const size_t suffix = suffix_begin(labels);
  if (is_ipv4(labels) || suffix == labels.size() || suffix == 0) return {};
  Host result;
  const std::string tail = join(labels, suffix);
  if (!labels[suffix - 1].empty()) {
    result.registered_domain = labels[suffix - 1] + "." + tail;
    result.fqdn = join(labels, 0);
  }
  return result;
}

UrlFilter::UrlFilter(const UrlLists& lists) : suffixes_(lists.public_suffixes) {
  auto fill = [](std::unordered_set<std::string>& set, const std::vector<std::string>& from, bool is_word) {
    for (const std::string& line : from) {
      std::string entry = is_word ? only_alnum_lower(line) : std::string(strip(line));
      if (!entry.empty()) set.insert(std::move(entry));
    }
  };
  fill(domains_, lists.domains, false);
  fill(urls_, lists.urls, false);
  fill(hard_, lists.banned_words, true);
  fill(soft_, lists.soft_banned_words, true);
  std::unordered_set<std::string> subwords;
  fill(subwords, lists.banned_subwords, true);
  if (!subwords.empty())
    subwords_ = std::make_unique<StringFinder>(std::vector<std::string>(subwords.begin(), subwords.end()));
}

Verdict UrlFilter::judge(std::string_view url) const {
  if (!domains_.empty()) {
    const PublicSuffixes::Host host = suffixes_.split(url);
    if (domains_.contains(host.registered_domain)) return {"domain"};
    if (domains_.contains(host.fqdn)) return {"subdomain"};
  }
  if (urls_.contains(std::string(url))) return {"url"};
  std::unordered_set<std::string> soft;
  if (!hard_.empty() || !soft_.empty()) {
    for (size_t pos = 0; pos < url.size();) {
      size_t end = pos;
      while (end < url.size() && is_alnum(url[end])) ++end;
      const std::string word(url.substr(pos, end - pos));
      pos = end + 1;
      if (word.empty()) continue;
      if (hard_.contains(word)) return {"hard_blacklisted"};
      if (soft_.contains(word)) soft.insert(word);
    }
  }
  if (soft.size() >= 2) return {"soft_blacklisted"};
  if (subwords_ && subwords_->find(only_alnum_lower(url), [](size_t, size_t) { return true; }))
    return {"blacklisted_subword"};
  return {};
}

BadWordFilter::BadWordFilter(const std::map<std::string, std::vector<std::string>>& words_by_language) {
  // Harmless words of the Japanese and Chinese lists.
  static const std::unordered_set<std::string> kAllowed{"sm", "グロ", "女の子", "性"};
  for (const auto& [language, words] : words_by_language) {
    List& list = lists_[language];
    list.is_anywhere = language == "ja" || language == "th" || language == "zh";
    for (const std::string& word : words) {
      if (!word.empty() && !kAllowed.contains(word)) list.words.push_back(word);
    }
    list.finder = std::make_unique<StringFinder>(list.words);
  }
}

Verdict BadWordFilter::judge(std::string_view text, const std::string& language) const {
  const auto at = lists_.find(language);
  if (at == lists_.end()) return {};
  const List& list = at->second;
  const CharFlags flags;
  const std::string low = lower(text);
  auto is_word = [&](uint32_t c) { return c == '_' || (flags(c) & (kLetterChar | kNumberChar)) != 0; };
  const bool is_hit = list.finder->find(low, [&](size_t needle, size_t end) {
    if (list.is_anywhere) return true;
    size_t begin = end - list.words[needle].size(), behind = end;
    const bool starts = begin == 0 || !is_word(previous_char(low, begin));
    return starts && (end == low.size() || !is_word(next_char(low, behind)));
  });
  return {is_hit ? "document_removed_with_badwords" : ""};
}

}  // namespace sinter::data
