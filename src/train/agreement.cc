#include "train/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/hash.h"
#include "comm/together.h"
#include "train/resume.h"

namespace sinter::train {
namespace {

std::string describe_source(const data::TokenSource& source) {
  constexpr int64_t kWindows = 64;  // spread over the source
  uint64_t hash = 0;
  std::vector<int32_t> tokens;
  std::vector<data::WindowPiece> pieces;
  const int64_t n = source.num_windows(), count = std::min(n, kWindows);
  for (int64_t i = 0; i < count; ++i) {
    source.read(i * n / count, tokens, pieces);
    hash = base::hash_bytes(std::as_bytes(std::span(tokens))) + 31 * hash;
  }
  return fmt::format("{} documents, {} tokens, vocabulary {}, tokenizer {:016x}, content {:016x}",
                     source.num_documents(), source.num_tokens(), source.vocab_size(), source.tokenizer_hash(), hash);
}

}  // namespace

void check_same_recipe(comm::Communicator& comm, const spec::Recipe& recipe) {
  static const std::set<std::string> kFree{"train.device", "train.threads", "data.cache"};
  std::string own;
  for (const auto& [key, value] : recipe_keys(spec::recipe_to_toml(recipe))) {
    if (!kFree.contains(key)) own += fmt::format("{} = {}\n", key, value);
  }
  comm::check_same(comm, own, [](const std::string& first, const std::string& here) {
    const std::map<std::string, std::string> theirs = recipe_keys(first);
    std::string text = "the recipe differs from that of rank 0";
    for (const auto& [key, value] : recipe_keys(here)) {
      const auto found = theirs.find(key);
      if (found == theirs.end() || found->second != value)
        text += fmt::format("; {} is {}, on rank 0 {}", key, value, found == theirs.end() ? "absent" : found->second);
    }
    return text + "; start all ranks with the same recipe and overrides";
  });
}

std::string describe_data(const data::Loader& loader) {
  std::string text;
  for (const auto& source : loader.sources()) text += describe_source(*source) + "\n";
  return text;
}

void check_same_data(comm::Communicator& comm, const data::Loader& loader) {
  if (comm.size() == 1) return;
  const std::string own = describe_data(loader);
  comm::check_same(comm, own, [&](const std::string& first, const std::string& here) {
    std::istringstream theirs(first), ours(here);
    std::string a, b;
    size_t i = 0;
    while (std::getline(theirs, a) && std::getline(ours, b) && a == b) ++i;
    const std::string path = i < loader.sources().size() ? loader.sources()[i]->path() : "";
    return fmt::format(
        "data.sources '{}' holds other data than on rank 0: {}; on rank 0 {}; give all ranks the same files", path, b,
        a);
  });
}

}  // namespace sinter::train
