// Filters by address and by word list.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "data/filter/text_rules.h"

namespace sinter::data {

// Finds any of many strings in one pass (Aho-Corasick over bytes).
class StringFinder {
 public:
  explicit StringFinder(const std::vector<std::string>& needles);
  // Calls found(needle, end) for every occurrence until it returns true; whether it did.
  template <class Found>
  bool find(std::string_view text, Found found) const {
    int32_t state = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      state = next_[static_cast<size_t>(state) * 256 + static_cast<unsigned char>(text[i])];
      for (int32_t at = state; at > 0; at = shorter_[static_cast<size_t>(at)]) {
        if (needle_[static_cast<size_t>(at)] >= 0 &&
            found(static_cast<size_t>(needle_[static_cast<size_t>(at)]), i + 1))
          return true;
      }
    }
    return false;
  }

 private:
  std::vector<int32_t> next_, shorter_, needle_;  // shorter_: the longest proper suffix that is a needle, or 0
};

// The parts of an address, as the public suffix list cuts them. Its private part is not used.
class PublicSuffixes {
 public:
  // `list`: the text of public_suffix_list.dat; "" knows single-label suffixes only (example.com of www.example.com).
  explicit PublicSuffixes(std::string_view list);
  struct Host {
    std::string registered_domain, fqdn;  // "" where there is none
  };
  Host split(std::string_view url) const;

 private:
  size_t suffix_begin(const std::vector<std::string>& labels) const;
  std::unordered_set<std::string> rules_, nodes_;  // nodes_: every tail of a rule
  bool has_list_ = false;
};

struct UrlLists {
  std::vector<std::string> domains, urls, banned_words, soft_banned_words, banned_subwords;
  std::string public_suffixes;  // text of the list
};

// Reasons in their order: domain, subdomain, url, hard_blacklisted, soft_blacklisted (two soft words),
// blacklisted_subword.
class UrlFilter {
 public:
  explicit UrlFilter(const UrlLists& lists);
  Verdict judge(std::string_view url) const;
  const PublicSuffixes& suffixes() const { return suffixes_; }

 private:
  PublicSuffixes suffixes_;
  std::unordered_set<std::string> domains_, urls_, hard_, soft_;
  std::unique_ptr<StringFinder> subwords_;
};

// Word lists by language, as C4 uses them: a word counts between characters that are no word characters; in Japanese,
// Thai and Chinese anywhere. A language without a list keeps every text.
class BadWordFilter {
 public:
  explicit BadWordFilter(const std::map<std::string, std::vector<std::string>>& words_by_language);
  Verdict judge(std::string_view text, const std::string& language) const;

 private:
  struct List {
    std::vector<std::string> words;
    std::unique_ptr<StringFinder> finder;
    bool is_anywhere = false;
  };
  std::map<std::string, List> lists_;
};

}  // namespace sinter::data
