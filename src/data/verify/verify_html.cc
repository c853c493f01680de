#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/extract/extract.h"
#include "data/formats/charset.h"
#include "data/formats/compression.h"
#include "data/text/characters.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

// Members of a tar archive: name to bytes.
std::map<std::string, std::string> read_tar(const std::string& path) {
  const std::string bytes = read_unpacked(path);
  std::map<std::string, std::string> members;
  for (size_t at = 0; at + 512 <= bytes.size() && bytes[at] != 0;) {
    const std::string name(bytes.c_str() + at);
    const size_t size = std::stoul(bytes.substr(at + 124, 11), nullptr, 8);
    SINTER_CHECK(at + 512 + size <= bytes.size(), "'{}' is cut off", path);
    if (bytes[at + 156] == '0' || bytes[at + 156] == 0) members[name] = bytes.substr(at + 512, size);
    at += 512 + (size + 511) / 512 * 512;
  }
  return members;
}

std::map<std::string, int64_t> tokens_of(std::string_view text, int64_t& count) {
  const CharFlags flags;
  std::map<std::string, int64_t> bag;
  const std::string low = lower(text);
  std::string word;
  count = 0;
  auto flush = [&] {
    if (word.empty()) return;
    ++bag[word];
    ++count;
    word.clear();
  };
  for (size_t pos = 0; pos < low.size();) {
    const size_t at = pos;
    const uint32_t c = next_char(low, pos);
    if (c == '_' || (flags(c) & (kLetterChar | kNumberChar))) {
      word.append(low, at, pos - at);
    } else {
      flush();
    }
  }
  flush();
  return bag;
}

double token_f1(std::string_view found, std::string_view reference) {
  int64_t n = 0, m = 0, common = 0;
  const auto a = tokens_of(found, n), b = tokens_of(reference, m);
  if (n == 0 && m == 0) return 1;
  if (n == 0 || m == 0) return 0;
  for (const auto& [word, times] : a) {
    const auto at = b.find(word);
    if (at != b.end()) common += std::min(times, at->second);
  }
  const double p = double(common) / double(n), r = double(common) / double(m);
  return p + r > 0 ? 2 * p * r / (p + r) : 0;
}

}  // namespace

Checks verify_html(const std::string& folder) {
  std::map<std::string, std::map<std::string, std::string>> archives;
  std::map<std::string, std::pair<double, double>> f1;  // sum and pages of each group
  Tally absent("pages read");
  for (const Json& page : read_rows(folder, "pages.jsonl.gz")) {
    const auto file = page["file"].get<std::string>();
    const std::string tar = file.substr(0, file.find(':')), member = file.substr(file.find(':') + 1);
    if (!std::filesystem::exists(folder + "/" + tar)) continue;
    if (!archives.contains(tar)) archives[tar] = read_tar(folder + "/" + tar);
    absent.expect(archives[tar].contains(member), [&] { return member; });
    const Decoded decoded = decode_page(archives[tar][member], "");
    const double score = token_f1(extract_page(decoded.text).text, page["reference"].get<std::string>());
    for (const std::string& group : {page["group"].get<std::string>(), std::string("all")}) {
      f1[group].first += score;
      f1[group].second += 1;
    }
  }
  const Json scores = read_object(folder, "scores.json");
  Checks checks{absent.check()};
  for (const auto& [group, sum] : f1) {
    const double mean = sum.first / sum.second;
    double best = 0;
    std::string who;
    for (const auto& [name, s] : scores[group].items()) {
      if (s.contains("f1") && s["f1"].get<double>() > best) {
        best = s["f1"];
        who = name;
      }
    }
    // Only the two means that the extractor is held to are checks; the others are told.
    const bool is_held = group == "aeb" || group == "all";
    const double error = std::max(0.0, best - mean);
    checks.push_back({fmt::format("token F1 of {} pages ({})", sum.second, group), "below the best reference",
                      is_held ? error : 0, 0, fmt::format("{:.4f}; best reference {} {:.4f}", mean, who, best)});
  }
  return checks;
}

}  // namespace sinter::data
