// Checks the data pipeline against answers of the reference libraries (docs/data.md names the form of the folders):
// filters, MinHash, deduplication, language, classifiers, personal data, addresses, archives, tables, shards, n-grams.
#pragma once
#include <string>
#include <vector>

namespace sinter::data {

struct DataCheck {
  std::string name;             // "minhash signatures (xxhash)"
  std::string kind;             // what `error` counts: "of 110 differ", "largest difference"
  double error = 0, limit = 0;  // holds when error <= limit
  std::string note;             // the first case that differs, or what was left out
};

struct DataCase {
  std::string kind, folder;  // "filters", "minhash", ...
};
// Every case in a folder or below it; empty for a folder of another form.
std::vector<DataCase> find_data_cases(const std::string& folder);
// Throws base::Error when a file of the case cannot be read. `all` are the cases found, among which files that several
// sets share (a language model, the public suffix list) are looked for.
std::vector<DataCheck> verify_data_case(const DataCase& which, const std::vector<DataCase>& all);

}  // namespace sinter::data
