#include <nlohmann/json.hpp>
#include <set>

#include "data/filter/url.h"
#include "data/formats/compression.h"
#include "data/scrub/pii.h"
#include "data/text/characters.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

bool is_text(const Json& want, const std::string& text, const std::string& found) {
  return found == (want.is_boolean() ? text : want.get<std::string>());
}

ScrubOptions variant(const std::string& name) {
  ScrubOptions options;
  if (name == "all_ips") options.only_public_ips = false;
  if (name == "emails_only") options.ips = false;
  if (name == "ips_only") options.emails = false;
  if (name == "custom") {
    options.email_replacements = {"<EMAIL>"};
    options.ip_replacements = {"<IP1>", "<IP2>"};
  }
  return options;
}

}  // namespace

Checks verify_pii(const std::string& folder) {
  Tally texts("scrubbed texts"), one("one scrubber for all"), ips("public addresses"), phones("telephone numbers");
  const std::vector<Json> rows = read_rows(folder, "texts.jsonl");
  for (const Json& row : rows) {
    const auto text = row["text"].get<std::string>();
    for (const char* name : {"default", "all_ips", "emails_only", "ips_only", "custom"}) {
      const std::string found = Scrubber(variant(name)).scrub(text);
      texts.expect(is_text(row[name], text, found),
                   [&] { return fmt::format("{} {}: {}", row["id"].dump(), name, found); });
    }
  }
  Scrubber scrubber;
  const std::vector<Json> out = read_rows(folder, "one_formatter.jsonl");
  for (size_t i = 0; i < rows.size(); ++i)
    one.expect(scrubber.scrub(rows[i]["text"].get<std::string>()) == out[i]["out"].get<std::string>(),
               [&] { return out[i]["id"].dump(); });
  const Json public_ips = read_object(folder, "public_ip.json");
  for (const auto& [address, is_public] : public_ips.items())
    ips.expect(is_public_ipv4(address) == is_public.get<bool>(), [&] { return address; });
  for (const Json& row : read_rows(folder, "phones.jsonl")) {
    const auto text = row["text"].get<std::string>();
    Json found = Json::array();
    for (const Span& s : find_phones(text))
      found.push_back({count_chars(text.substr(0, s.begin)), count_chars(text.substr(0, s.end))});
    phones.expect(found == row["spans"], [&] { return row["text"].dump(); });
  }
  return {texts.check(), one.check(), ips.check(), phones.check()};
}

Checks verify_urls(const std::string& folder, const Cases& all) {
  Tally verdicts("address verdicts"), domains("registered domains");
  const Json lists = read_object(folder, "lists.json");
  UrlLists url_lists{
      lists["domains"], lists["urls"], lists["banned_words"], lists["soft_banned_words"], lists["banned_subwords"], ""};
  const std::string suffixes = find_shared(folder, "public_suffix_list.dat", "url", all);
  if (suffixes.empty())
    return {{"address verdicts", "left out", 0, 0,
             "no public_suffix_list.dat here, in another case given, or in SINTER_FIXTURES"}};
  url_lists.public_suffixes = read_unpacked(suffixes);
  const UrlFilter filter(url_lists);
  for (const Json& row : read_rows(folder, "urls.jsonl")) {
    const auto url = row["url"].get<std::string>();
    const Verdict verdict = filter.judge(url);
    verdicts.expect(row["reason"].is_null() ? verdict.is_kept() : row["reason"] == Json(verdict.reason),
                    [&] { return fmt::format("{}: {}", url, verdict.reason); });
    const PublicSuffixes::Host host = filter.suffixes().split(url);
    domains.expect(lower(host.registered_domain) == lower(row["registered_domain"].get<std::string>()) &&
                       lower(host.fqdn) == lower(row["fqdn"].get<std::string>()),
                   [&] { return fmt::format("{}: {} {}", url, host.registered_domain, host.fqdn); });
  }
  return {verdicts.check(), domains.check()};
}

Checks verify_badwords(const std::string& folder) {
  Tally verdicts("word list verdicts");
  const BadWordFilter filter(read_object(folder, "lists.json").get<std::map<std::string, std::vector<std::string>>>());
  for (const Json& row : read_rows(folder, "texts.jsonl")) {
    const Verdict verdict = filter.judge(row["text"].get<std::string>(), row["language"]);
    verdicts.expect(verdict.is_kept() == row["kept"].get<bool>(), [&] { return row["text"].dump(); });
  }
  return {verdicts.check()};
}

}  // namespace sinter::data
