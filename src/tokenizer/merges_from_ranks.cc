#include "tokenizer/merges_from_ranks.h"

namespace sinter::tokenizer {

void add_merges_from_ranks(BpeModel& model, base::FunctionRef<uint32_t(int32_t)> rank) {
  const Vocabulary& vocabulary = model.vocabulary;
  model.merges.reserve(static_cast<size_t>(vocabulary.count()) * 2);
  auto mergeable = [&](std::string_view bytes) {
    const int32_t id = vocabulary.find(bytes);
    return id >= 0 && rank(id) != Merge::kNoRank ? id : -1;
  };
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.has(id) || rank(id) == Merge::kNoRank) continue;
    const std::string_view token = vocabulary.bytes(id);
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const int32_t left = mergeable(token.substr(0, cut));
      if (left < 0) continue;
      const int32_t right = mergeable(token.substr(cut));
      if (right >= 0) model.merges.add(left, right, {rank(id), id});
    }
  }
}

}  // namespace sinter::tokenizer
