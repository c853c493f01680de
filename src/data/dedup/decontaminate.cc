#include "data/dedup/decontaminate.h"

#include <algorithm>

#include "data/dedup/exact.h"
#include "data/text/segment.h"

namespace sinter::data {
namespace {

std::string join(const std::vector<std::string_view>& words, size_t begin, size_t count) {
  std::string out;
  for (size_t i = begin; i < begin + count; ++i) {
    if (i > begin) out.push_back(' ');
    out.append(words[i]);
  }
  return out;
}

}  // namespace

void DecontaminationIndex::add(const EvalItem& item) {
  const auto n = static_cast<size_t>(options_.ngram);
  const std::string query = simplify(item.query), label = simplify(item.label);
  const std::vector<std::string_view> q = words_of(query), l = words_of(label);
  auto add_hash = [&](const std::string& gram) {
    const uint64_t hash = hash_text64(gram);
    tasks_.emplace(hash, item.task);
    by_task_[item.task].push_back(hash);
  };
  for (size_t i = 0; i + n <= l.size(); ++i) add_hash(join(l, i, n));
  if (options_.query) {
    for (size_t i = 0; i + n <= q.size(); ++i) add_hash(join(q, i, n));
  }
  for (size_t k = 1; options_.overlap && k < n; ++k) {
    if (q.size() >= n - k && l.size() >= k) add_hash(join(q, q.size() - (n - k), n - k) + " " + join(l, 0, k));
  }
}

DecontaminationIndex::Hit DecontaminationIndex::find(std::string_view text) const {
  const auto n = static_cast<size_t>(options_.ngram);
  const std::string simple = simplify(text);
  const std::vector<std::string_view> words = words_of(simple);
  Hit hit;
  for (size_t i = 0; i + n <= words.size(); ++i) {
    const std::string gram = join(words, i, n);
    const auto at = tasks_.find(hash_text64(gram));
    if (at == tasks_.end()) continue;
    if (hit.positions.empty()) {
      hit.ngram = gram;
      hit.task = at->second;
    }
    hit.positions.push_back(static_cast<int64_t>(i));
  }
  return hit;
}

std::vector<uint64_t> DecontaminationIndex::hashes(const std::string& task) const {
  const auto at = by_task_.find(task);
  if (at == by_task_.end()) return {};
  std::vector<uint64_t> sorted = at->second;
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return sorted;
}

}  // namespace sinter::data
