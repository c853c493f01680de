// Shared by the checks of the cases: reading the answers, counting what differs.
#pragma once
#include <fmt/format.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/verify/verify.h"

namespace sinter::data {

using Json = nlohmann::json;

// The objects of FOLDER/NAME, a .jsonl or .jsonl.gz file.
std::vector<Json> read_rows(const std::string& folder, const std::string& name);
Json read_object(const std::string& folder, const std::string& name);

// Counts comparisons; the first that fails is kept for the note.
class Tally {
 public:
  explicit Tally(std::string name) : name_(std::move(name)) {}
  template <class Describe>
  void expect(bool is_right, Describe describe) {
    ++total_;
    if (is_right) return;
    if (wrong_++ == 0) first_ = describe();
  }
  void expect(bool is_right) {
    expect(is_right, [&] { return fmt::format("comparison {}", total_); });
  }
  DataCheck check() const { return {name_, fmt::format("of {} differ", total_), double(wrong_), 0, first_}; }

 private:
  std::string name_, first_;
  int64_t total_ = 0, wrong_ = 0;
};

using Checks = std::vector<DataCheck>;
using Cases = std::vector<DataCase>;
Checks verify_filters(const std::string& folder);
Checks verify_minhash(const std::string& folder);
Checks verify_dedup(const std::string& folder);
Checks verify_pii(const std::string& folder);
Checks verify_urls(const std::string& folder, const Cases& all);
Checks verify_badwords(const std::string& folder);
Checks verify_languages(const std::string& folder, const Cases& all);
Checks verify_classifiers(const std::string& folder);
Checks verify_decontamination(const std::string& folder);
Checks verify_ranking(const std::string& folder);
Checks verify_warc(const std::string& folder);
Checks verify_parquet(const std::string& folder);
Checks verify_shards(const std::string& folder);
Checks verify_html(const std::string& folder);

// FOLDER/NAME, else the file in a case of the same kind among `all`, else "".
std::string find_shared(const std::string& folder, const std::string& name, const std::string& kind, const Cases& all);

}  // namespace sinter::data
