#include "data/source.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

// Most documents that any window of the shard touches.
int64_t most_pieces(const TokenShard& shard, int64_t window) {
  int64_t most = 1, first = 0;
  for (int64_t begin = 0; begin < shard.num_tokens(); begin += window) {
    const int64_t end = std::min(begin + window, shard.num_tokens());
    while (shard.document_begin(first + 1) <= begin) ++first;
    int64_t last = first;
    while (shard.document_begin(last + 1) < end) ++last;
    most = std::max(most, last - first + 1);
    first = last;
  }
  return most;
}

}  // namespace

std::vector<std::string> shard_paths(const std::string& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == kShardExtension) paths.push_back(entry.path().string());
  }
  // NAME.tok is the first of NAME.tok, NAME-00001.tok, ...: by the names without their ending.
  std::sort(paths.begin(), paths.end(), [](const std::string& a, const std::string& b) {
    return fs::path(a).replace_extension() < fs::path(b).replace_extension();
  });
  SINTER_CHECK(!paths.empty(), "folder '{}' has no token shards (*{}); make them with `sinter data tokenize`", path,
               kShardExtension);
  return paths;
}

std::string tokenizer_folder_of(const std::string& shard) {
  std::string stem = shard.ends_with(kShardExtension) ? shard.substr(0, shard.size() - 4) : shard;
  const size_t dash = stem.rfind('-');
  const bool is_numbered = dash != std::string::npos && stem.size() - dash == 6 &&
                           stem.find_first_not_of("0123456789", dash + 1) == std::string::npos;
  if (is_numbered) stem.resize(dash);
  return stem + ".tokenizer";
}

std::string tokenizer_beside(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "";
  const std::string folder = tokenizer_folder_of(shard_paths(path).front());
  return fs::is_directory(folder, ignored) ? folder : "";
}

TokenSource::TokenSource(const std::string& path, int64_t window, const SourcePart& part)
    : path_(path), window_(window) {
  for (const std::string& file : shard_paths(path)) {
    shards_.push_back(std::make_unique<TokenShard>(file));
    const TokenShard& shard = *shards_.back();
    SINTER_CHECK(shard.vocab_size() == shards_.front()->vocab_size() &&
                     shard.tokenizer_hash() == shards_.front()->tokenizer_hash(),
                 "token shards '{}' and '{}' were made with different tokenizers", shards_.front()->path(),
                 shard.path());
    const int64_t whole = shard.num_tokens() / window, tail = shard.num_tokens() % window;
    const int64_t all = whole + (part.keep_tail && tail > 0 ? 1 : 0);
    const auto held = static_cast<int64_t>(std::ceil(part.held_share * static_cast<double>(whole)));
    first_windows_.push_back(part.has_held_only ? all - held : 0);
    windows_before_.push_back(windows_before_.back() + (part.has_held_only ? held : all - held));
    max_pieces_ = std::max(max_pieces_, most_pieces(shard, window));
  }
  int64_t longest = 0;
  for (const auto& shard : shards_) longest = std::max(longest, shard->num_tokens());
  SINTER_CHECK(num_windows() > 0,
               "'{}' has {} tokens{}, fewer than one sequence of {}{}; add data or lower data.sequence_length", path,
               longest, shards_.size() == 1 ? "" : " in the longest of its shards", window,
               part.held_share > 0 ? " beside data.validation_share" : "");
}

void TokenSource::check_same_tokenizer(const TokenSource& other) const {
  SINTER_CHECK(vocab_size() == other.vocab_size(),
               "'{}' and '{}' were made with different tokenizers ({} and {} tokens); tokenize them with one", path_,
               other.path_, vocab_size(), other.vocab_size());
  const uint64_t own = tokenizer_hash(), theirs = other.tokenizer_hash();
  SINTER_CHECK(own == 0 || theirs == 0 || own == theirs,
               "'{}' and '{}' were made with different tokenizers of {} tokens each; tokenize them with one", path_,
               other.path_, vocab_size());
}

int64_t TokenSource::num_tokens() const {
  int64_t sum = 0;
  for (const auto& shard : shards_) sum += shard->num_tokens();
  return sum;
}

int64_t TokenSource::num_documents() const {
  int64_t sum = 0;
  for (const auto& shard : shards_) sum += shard->num_documents();
  return sum;
}

int64_t TokenSource::vocab_size() const { return shards_.front()->vocab_size(); }

int64_t TokenSource::read(int64_t i, std::vector<int32_t>& tokens, std::vector<WindowPiece>& pieces) const {
  const auto s = static_cast<size_t>(std::upper_bound(windows_before_.begin(), windows_before_.end(), i) -
                                     windows_before_.begin() - 1);
  const TokenShard& shard = *shards_[s];
  const int64_t begin = (i - windows_before_[s] + first_windows_[s]) * window_;
  const int64_t end = std::min(begin + window_, shard.num_tokens());
  const int64_t count = end - begin;
  tokens.assign(static_cast<size_t>(count) + 1, -1);
  pieces.clear();
  int64_t document = shard.document_of(begin);
  for (int64_t at = begin; at < end; ++document) {
    const int64_t stop = std::min(shard.document_begin(document + 1), end);
    if (stop > at) pieces.push_back({at - begin, stop - at});
    at = std::max(at, stop);
  }
  // The token behind the window is only looked at where the document goes on into it.
  const bool goes_on = shard.document_begin(document) > end;
  shard.read(begin, count + (goes_on ? 1 : 0), tokens.data());
  return count;
}

}  // namespace sinter::data
