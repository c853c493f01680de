#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "data/dedup/decontaminate.h"
#include "data/dedup/exact.h"
#include "data/dedup/minhash.h"
#include "data/text/hash.h"
#include "data/text/segment.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

struct Signed {
  std::vector<uint64_t> signatures;
  std::vector<bool> has_signature;
  std::vector<std::array<int64_t, 2>> place;  // file, index
  std::vector<size_t> file_begin;
};

Signed sign_documents(const std::string& folder, const MinHashOptions& options) {
  Signed all;
  MinHasher hasher(options);
  const auto n = static_cast<size_t>(options.num_hashes());
  for (int64_t file = 0; file < 4; ++file) {
    all.file_begin.push_back(all.place.size());
    int64_t index = 0;
    for (const Json& row : read_rows(folder, fmt::format("docs/{:05}.jsonl.gz", file))) {
      all.signatures.resize(all.signatures.size() + n);
      const std::span<uint64_t> out(all.signatures.data() + all.signatures.size() - n, n);
      all.has_signature.push_back(hasher.sign(row["text"].get_ref<const std::string&>(), out));
      all.place.push_back({file, index++});
    }
  }
  return all;
}

std::string hex_rows(std::span<const uint64_t> values) {
  std::string out;
  for (uint64_t v : values) out += fmt::format("{:016x}", v);
  return out;
}

// datatrove's signature file of one input file and band: 68-byte records, sorted.
std::string signature_file(const Signed& all, const MinHashOptions& options, size_t file, size_t band) {
  const auto rows = static_cast<size_t>(options.rows), n = static_cast<size_t>(options.num_hashes());
  std::vector<std::pair<std::vector<uint64_t>, uint32_t>> records;
  const size_t end = file + 1 < all.file_begin.size() ? all.file_begin[file + 1] : all.place.size();
  for (size_t d = all.file_begin[file]; d < end; ++d) {
    if (!all.has_signature[d]) continue;
    const uint64_t* from = all.signatures.data() + d * n + band * rows;
    records.emplace_back(std::vector<uint64_t>(from, from + rows), static_cast<uint32_t>(all.place[d][1]));
  }
  std::sort(records.begin(), records.end());
  std::string bytes;
  for (const auto& [values, document] : records) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * 8);
    bytes.append(reinterpret_cast<const char*>(&document), 4);
  }
  return bytes;
}

void check_clusters(const Json& want, const Signed& all, const MinHashOptions& options, Tally& removed,
                    Tally& clusters) {
  std::vector<uint32_t> cluster;
  const std::vector<bool> gone = find_near_duplicates(options, all.signatures, all.has_signature, &cluster);
  std::set<std::array<int64_t, 2>> expected;
  for (const Json& d : want["removed_lowest_kept"])
    expected.insert(std::array<int64_t, 2>{d[0].get<int64_t>(), d[1].get<int64_t>()});
  for (size_t d = 0; d < gone.size(); ++d)
    removed.expect(gone[d] == expected.contains(all.place[d]),
                   [&] { return fmt::format("document {}:{}", all.place[d][0], all.place[d][1]); });
  std::map<uint32_t, std::vector<std::array<int64_t, 2>>> groups;
  for (size_t d = 0; d < gone.size(); ++d) groups[cluster[d]].push_back(all.place[d]);
  Json found = Json::array();
  for (const auto& [root, members] : groups) {
    if (members.size() > 1) found.push_back(members);
  }
  Json sorted = want["clusters"];
  std::sort(found.begin(), found.end());
  std::sort(sorted.begin(), sorted.end());
  clusters.expect(found == sorted);
}

}  // namespace

Checks verify_minhash(const std::string& folder) {
  Checks checks;
  Tally simple("simplified texts");
  for (const Json& row : read_rows(folder, "normalise.jsonl")) {
    simple.expect(simplify(row["text"].get<std::string>()) == row["simplified"].get<std::string>(),
                  [&] { return row["text"].dump(); });
  }
  checks.push_back(simple.check());
  const Json params = read_object(folder, "params.json"), files = read_object(folder, "bucket_files.json"),
             clusters = read_object(folder, "clusters.json");
  const std::vector<Json> rows = read_rows(folder, "signatures.jsonl.gz");
  for (const auto& [name, hash] : {std::pair{"xxhash", ShingleHash::xxhash64}, std::pair{"sha1", ShingleHash::sha1}}) {
    MinHashOptions options;
    options.ngram = params["n_grams"];
    options.bands = params["num_buckets"];
    options.rows = params["hashes_per_bucket"];
    options.seed = params["seed"];
    options.hash = hash;
    const MinHasher hasher(options);
    Tally constants(fmt::format("hash functions ({})", name));
    for (size_t i = 0; i < params["a"].size(); ++i) {
      constants.expect(std::to_string(hasher.a()[i]) == params["a"][i].get<std::string>());
      constants.expect(std::to_string(hasher.b()[i]) == params["b"][i].get<std::string>());
    }
    checks.push_back(constants.check());
    const Signed all = sign_documents(folder, options);
    Tally signatures(fmt::format("signatures ({})", name)), sorted(fmt::format("signature files ({})", name));
    const auto n = static_cast<size_t>(options.num_hashes());
    for (const Json& row : rows) {
      const size_t d = all.file_begin[row["file"].get<size_t>()] + row["doc"].get<size_t>();
      const Json& want = row["plain"][name];
      signatures.expect(want.is_null() != all.has_signature[d]);
      for (size_t band = 0; band < want.size(); ++band) {
        const std::span<const uint64_t> band_rows(all.signatures.data() + d * n + band * size_t(options.rows),
                                                  size_t(options.rows));
        signatures.expect(hex_rows(band_rows) == want[band].get<std::string>(),
                          [&] { return fmt::format("document {}:{}", row["file"].dump(), row["doc"].dump()); });
      }
    }
    for (const auto& [file, digest] : files[fmt::format("plain/{}", name)].items()) {
      unsigned band = 0, number = 0;
      if (std::sscanf(file.c_str(), "sig/bucket_%u/%u.minhash.sig", &band, &number) != 2) continue;
      sorted.expect(sha256_hex(signature_file(all, options, number, band)) == digest["sha256"].get<std::string>(),
                    [&] { return file; });
    }
    checks.push_back(signatures.check());
    checks.push_back(sorted.check());
    Tally removed(fmt::format("documents removed ({})", name)), groups(fmt::format("clusters ({})", name));
    check_clusters(clusters[fmt::format("plain/{}", name)], all, options, removed, groups);
    checks.push_back(removed.check());
    checks.push_back(groups.check());
  }
  return checks;
}

Checks verify_dedup(const std::string& folder) {
  Tally documents("documents kept"), lines("lines and sentences"), ngrams("13-grams");
  const std::vector<Json> rows = read_rows(folder, "documents.jsonl.gz");
  const Json documents_expected = read_object(folder, "documents_expected.json");
  for (const auto& [name, want] : documents_expected.items()) {
    const std::string key = name.substr(0, name.find('_'));
    std::vector<std::string> keys;
    std::vector<int64_t> priorities;
    for (const Json& row : rows) {
      keys.push_back(row[key].get<std::string>());
      if (name.ends_with("priority")) priorities.push_back(row["priority"]);
    }
    const std::vector<bool> keep = keep_first_of_equal({keys.begin(), keys.end()}, priorities);
    Json kept = Json::array();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (keep[i]) kept.push_back(rows[i]["id"]);
    }
    documents.expect(kept == want["kept"], [&] { return name; });
  }
  struct Variant {
    const char* name;
    SpanDedupOptions options;
  };
  const Variant variants[] = {{"line_n1", {1, TextUnit::line, 0, 0}},
                              {"line_n3", {3, TextUnit::line, 0, 0}},
                              {"line_n1_min50words_3sentences", {1, TextUnit::line, 50, 3}},
                              {"sentence_n3", {3, TextUnit::sentence, 0, 0}},
                              {"sentence_n3_min50words_3sentences", {3, TextUnit::sentence, 50, 3}}};
  const std::vector<Json> texts = read_rows(folder, "lines.jsonl.gz"),
                          expected = read_rows(folder, "lines_expected.jsonl.gz");
  for (const Variant& variant : variants) {
    SpanDedup dedup(variant.options);
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto text = texts[i]["text"].get<std::string>();
      const auto found = dedup.add(text);
      const Json& want = expected[i][variant.name];
      const bool is_right =
          want.is_null() ? !found : found && *found == (want.is_boolean() ? text : want.get<std::string>());
      lines.expect(is_right, [&] { return fmt::format("{} {}", variant.name, texts[i]["id"].dump()); });
    }
  }
  NgramDedup dedup(13);
  const std::vector<Json> grams = read_rows(folder, "ngram.jsonl.gz"),
                          counts = read_rows(folder, "ngram_expected.jsonl");
  for (size_t i = 0; i < grams.size(); ++i) {
    const NgramDedup::Counts found = dedup.add(grams[i]["text"].get<std::string>());
    const bool is_right = counts[i]["shingles"] == Json(found.shingles) &&
                          counts[i]["duplicates_exact"] == Json(found.duplicates) &&
                          counts[i]["kept_exact"] == Json(!(found.share() > .8));
    ngrams.expect(is_right, [&] { return grams[i]["id"].dump(); });
  }
  return {documents.check(), lines.check(), ngrams.check()};
}

Checks verify_decontamination(const std::string& folder) {
  Tally verdicts("contaminated documents"), hashes("index of hashes");
  const std::vector<Json> items = read_rows(folder, "eval_items.jsonl"),
                          documents = read_rows(folder, "documents.jsonl"),
                          expected = read_rows(folder, "expected.jsonl");
  struct Variant {
    const char* name;
    bool query, overlap;
  };
  for (const Variant& v : {Variant{"label", false, false}, Variant{"label_overlap", false, true},
                           Variant{"query_label", true, false}, Variant{"all", true, true}}) {
    for (const int64_t n : {12, 13}) {
      DecontaminationIndex index({n, v.query, v.overlap});
      for (const Json& item : items) index.add({item["task"], item["query"], item["label"]});
      const std::string key = fmt::format("plain/{}/{}", n, v.name);
      for (size_t d = 0; d < documents.size(); ++d) {
        const DecontaminationIndex::Hit hit = index.find(documents[d]["text"].get<std::string>());
        const Json& want = expected[d][key];
        const bool is_right =
            want["contaminated"] == Json(!hit.positions.empty()) &&
            (hit.positions.empty() || (want["positions"] == Json(hit.positions) && want["ngram"] == Json(hit.ngram)));
        verdicts.expect(is_right, [&] { return fmt::format("{} document {}", key, documents[d]["id"].dump()); });
      }
      if (key != "plain/13/all") continue;
      for (const char* task : {"arc_easy", "copa", "gsm8k", "lambada", "openbook_qa", "piqa"}) {
        std::string bytes;
        try {
          bytes = base::read_file(fmt::format("{}/index_plain_13_all/{}.index.hashes", folder, task));
        } catch (const std::exception&) {
          continue;
        }
        const std::vector<uint64_t> found = index.hashes(task);
        hashes.expect(bytes == std::string_view(reinterpret_cast<const char*>(found.data()), found.size() * 8),
                      [&] { return task; });
      }
    }
  }
  return {verdicts.check(), hashes.check()};
}

}  // namespace sinter::data
