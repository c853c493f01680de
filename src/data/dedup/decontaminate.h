// Decontamination: documents that share word n-grams with evaluation items.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sinter::data {

struct EvalItem {
  std::string task, query, label;
};

struct DecontaminationOptions {
  int64_t ngram = 12;
  bool query = false;   // n-grams of the query too
  bool overlap = true;  // those that begin in the query and end in the label
};

class DecontaminationIndex {
 public:
  explicit DecontaminationIndex(DecontaminationOptions options) : options_(options) {}
  void add(const EvalItem& item);
  struct Hit {
    std::string ngram, task;         // the first n-gram found; "" when the document is clean
    std::vector<int64_t> positions;  // index of the first word of every n-gram found
  };
  Hit find(std::string_view text) const;
  // Sorted hashes of a task, as datatrove keeps them.
  std::vector<uint64_t> hashes(const std::string& task) const;
  size_t size() const { return tasks_.size(); }

 private:
  DecontaminationOptions options_;
  std::unordered_map<uint64_t, std::string> tasks_;  // the first task that an n-gram came from
  std::unordered_map<std::string, std::vector<uint64_t>> by_task_;
};

}  // namespace sinter::data
