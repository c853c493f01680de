// Personal data in text: e-mail addresses, IPv4 addresses, telephone numbers and keys, replaced.
//
// E-mails and IPs follow datatrove's patterns, replacements and order; telephone numbers dolma's pattern. Every scan is
// linear in the text, whatever it holds.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/text/segment.h"

namespace sinter::data {

struct ScrubOptions {
  bool emails = true, ips = true, phones = false, keys = false;
  bool only_public_ips = true;
  std::vector<std::string> email_replacements{"email@example.com", "firstname.lastname@example.org"};
  std::vector<std::string> ip_replacements{"22.214.171.124", "126.96.36.199",  "188.8.131.52",
                                           "184.108.40.206", "220.127.116.11", "18.104.22.168"};
  std::string phone_replacement = " <PHONE>", key_replacement = "<KEY>";
};

// Replacements take turns; the turns go on from text to text, so that one Scrubber per document makes the result
// independent of the documents before it.
class Scrubber {
 public:
  explicit Scrubber(ScrubOptions options = {}) : options_(std::move(options)) {}
  std::string scrub(std::string_view text);
  int64_t num_replaced() const { return num_replaced_; }

 private:
  ScrubOptions options_;
  size_t next_email_ = 0, next_ip_ = 0;
  int64_t num_replaced_ = 0;
};

bool is_public_ipv4(std::string_view address);
std::vector<Span> find_emails(std::string_view text);
std::vector<Span> find_ips(std::string_view text);
std::vector<Span> find_phones(std::string_view text);
// Access tokens of the usual forms (AKIA..., ghp_..., sk-..., xox?-...) and PEM private keys.
std::vector<Span> find_keys(std::string_view text);

}  // namespace sinter::data
