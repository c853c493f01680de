#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "data/formats/charset.h"
#include "data/formats/warc.h"
#include "data/text/characters.h"
#include "data/text/hash.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

struct Read {
  std::vector<WarcRecord> records;
  std::vector<WarcDamage> damage;
};

Read read_all(const std::string& path) {
  const base::MappedFile file(path);
  Read read;
  read_warc(file.text(), 0, UINT64_MAX,
            {[&](WarcRecord& r) {
               read.records.push_back(std::move(r));
               return true;
             },
             [&](const WarcDamage& d) { read.damage.push_back(d); }});
  return read;
}

std::string text_or_null(const Json& value) { return value.is_null() ? "" : value.get<std::string>(); }

std::string without_brackets(std::string url) {
  return url.starts_with('<') && url.ends_with('>') ? url.substr(1, url.size() - 2) : url;
}

// Spaces in an address come back as %20 from the reference.
std::string with_escapes(std::string url) {
  for (size_t at = url.find(' '); at != std::string::npos; at = url.find(' ', at)) url.replace(at, 1, "%20");
  return url;
}

}  // namespace

Checks verify_warc(const std::string& folder) {
  Tally records("records of sound files"), payloads("payloads"), texts("texts of pages"),
      saved("records of damaged files"), named("damage named");
  const Json recoverable = read_object(folder, "recoverable.json")["files"];
  for (const Json& file : read_rows(folder, "expected.jsonl")) {
    const auto name = file["file"].get<std::string>();
    const Read read = read_all(folder + "/" + name);
    if (recoverable.contains(name)) {
      for (const Json& url : recoverable[name]) {
        const bool is_there = std::any_of(read.records.begin(), read.records.end(),
                                          [&](const WarcRecord& r) { return Json(r.url()) == url; });
        saved.expect(is_there, [&] { return fmt::format("{}: {}", name, url.dump()); });
      }
      saved.expect(read.records.size() <= recoverable[name].size(),
                   [&] { return fmt::format("{}: {} records", name, read.records.size()); });
      const bool is_sound = name.starts_with("empty") || name.starts_with("only-newlines") ||
                            name.find("named") != std::string::npos || name.starts_with("one-member") ||
                            name.starts_with("lf-only") || name.starts_with("no-blank") ||
                            name.starts_with("extra-blank") || name.starts_with("padded");
      if (!is_sound) named.expect(!read.damage.empty(), [&] { return name; });
      continue;
    }
    const Json& want = file["warcio"];
    records.expect(want.size() == read.records.size() && read.damage.empty(), [&] {
      return fmt::format("{}: {} records, {} damages", name, read.records.size(), read.damage.size());
    });
    for (size_t i = 0; i < std::min(want.size(), read.records.size()); ++i) {
      const WarcRecord& r = read.records[i];
      const bool is_right = want[i]["type"] == Json(r.type()) && text_or_null(want[i]["id"]) == r.id() &&
                            with_escapes(without_brackets(text_or_null(want[i]["url"]))) == with_escapes(r.url()) &&
                            text_or_null(want[i]["date"]) == r.date() && want[i]["length"] == Json(r.block.size()) &&
                            (name.ends_with(".zst") || want[i]["offset"] == Json(r.offset));
      records.expect(is_right, [&] { return fmt::format("{} record {}", name, i); });
    }
  }
  std::map<std::string, Read> read;
  for (const Json& want : read_rows(folder, "truth.jsonl")) {
    const auto name = want["file"].get<std::string>();
    if (!read.contains(name)) read[name] = read_all(folder + "/" + name);
    for (const WarcRecord& r : read[name].records) {
      if (r.type() != "response" ||
          with_escapes(r.url()) != with_escapes(without_brackets(want["url"].get<std::string>())))
        continue;
      const HttpMessage message = parse_http(r.block);
      auto where = [&] { return fmt::format("{} {}", name, r.url()); };
      payloads.expect(sha256_hex(message.payload) == want["payload_sha256"].get<std::string>(), where);
      if (!want.contains("text_sha256")) continue;
      std::string text = decode_page(message.payload, content_type_charset(message.header.get("Content-Type"))).text;
      // The reference keeps a byte order mark under the name utf-8; a text has none.
      texts.expect(sha256_hex(text) == want["text_sha256"].get<std::string>() ||
                       sha256_hex("\xef\xbb\xbf" + text) == want["text_sha256"].get<std::string>(),
                   where);
    }
  }
  return {records.check(), payloads.check(), texts.check(), saved.check(), named.check()};
}

}  // namespace sinter::data
