// Cuts of documents by columns: the values that rules, classifiers and scores left beside them (columns of a run, of
// `sinter data stats`, fields of the documents themselves), so that thresholds are chosen later and as often as one
// likes.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/formats/document.h"

namespace sinter::data {

// "words >= 100", "language == en".
struct CutCondition {
  std::string column, relation, value;  // relation: >= <= > < == !=
  double number = 0;
  bool is_number = false;  // else texts are compared
};
// Throws base::UsageError saying what was expected.
CutCondition parse_condition(std::string_view text);

// "rank_score=.1": the tenth of the documents with the highest values; "-perplexity=.1" with the lowest.
struct CutShare {
  std::string column;
  double share = 1;
  bool is_lowest = false;
};
CutShare parse_share(std::string_view text);

struct CutOptions {
  std::vector<std::string> columns;  // files of rows with an id, in the order of the documents; may have more rows
  std::vector<CutCondition> conditions;
  std::vector<CutShare> shares;  // of what the conditions leave; a document must be in all of them
  ReadOptions read;
};

struct CutResult {
  int64_t documents = 0, written = 0, bad = 0;
  std::map<std::string, int64_t> dropped;        // by condition
  std::map<std::string, double> least_of_share;  // what the documents in a share have at least (at most)
};

// Writes the lines of the documents that are left to `output` (.jsonl, .gz or .zst behind it, - for standard output),
// in their order. A column that a document does not have, or that is null, holds for no condition. Throws base::Error
// for a document that no row belongs to, or a column that nothing has.
CutResult cut_documents(const std::vector<std::string>& inputs, const std::string& output, const CutOptions& options);

}  // namespace sinter::data
