#include "data/tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <memory>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "data/token_shard.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kGroupBytes = 16 << 20;  // text tokenized at once: enough for all cores, little memory

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// A shard without a name before its ending would be a hidden file that nobody looks for.
void check_output(const std::string& output) {
  std::string name = fs::path(output).filename().string();
  if (name.ends_with(kShardExtension)) name.resize(name.size() - std::string_view(kShardExtension).size());
  if (name.empty() || name == "." || name == "..") {
    base::fail_usage("the output '{}' has no file name; expected one, as in '{}'", output,
                     (fs::path(output).parent_path() / (std::string("train") + kShardExtension)).string());
  }
}

// Every shard of a text is open until all are written; the usual limit of 1,024 is not the most a process may have.
void allow_more_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);  // where it fails, opening the file too many will say so
}

// Gathers documents into groups, tokenizes a group on all cores and writes it in order.
class ShardStream {
 public:
  ShardStream(std::string output, const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options)
      : output_(std::move(output)), tokenizer_(tokenizer), hash_(tokenizer_hash(tokenizer)), options_(options) {
    if (output_.ends_with(kShardExtension)) output_.resize(output_.size() - std::string_view(kShardExtension).size());
  }

  void add(std::string_view document) {
    if (is_blank(document)) return;
    texts_.emplace_back(document);
    group_bytes_ += document.size();
    if (group_bytes_ >= kGroupBytes) flush();
  }

  void flush() {
    std::vector<std::string_view> views(texts_.begin(), texts_.end());
    // One long text is cut inside; many texts go to the cores whole.
    std::vector<std::vector<int32_t>> ids;
    if (views.size() == 1) {
      ids.push_back(tokenizer_.encode_parallel(views[0]));
    } else {
      ids = tokenizer_.encode_many(views);
    }
    const tokenizer::SpecialIds& special = tokenizer_.special_ids();
    for (std::vector<int32_t>& document : ids) {
      if (options_.add_bos && special.bos >= 0) document.insert(document.begin(), special.bos);
      if (options_.add_eos && special.eos >= 0) document.push_back(special.eos);
      write(document);
    }
    result_.num_bytes += static_cast<int64_t>(group_bytes_);
    texts_.clear();
    group_bytes_ = 0;
  }

  bool has_text() const { return !texts_.empty() || !result_.shards.empty(); }

  // There must be text. Shards get their names here, one right after the other: an error or a kill at any time before
  // leaves what was there before.
  TokenizeResult finish() {
    flush();
    for (; !writers_.empty(); writers_.pop_back()) writers_.back()->commit();
    remove_older_shards();
    return std::move(result_);
  }

 private:
  std::string shard_path(size_t number) const {
    return number == 0 ? output_ + kShardExtension : fmt::format("{}-{:05}{}", output_, number, kShardExtension);
  }

  // Shards that an earlier, longer text left under this name: whoever reads the folder would take them for part of it.
  void remove_older_shards() const {
    std::error_code error;
    size_t number = result_.shards.size();
    for (; fs::remove(shard_path(number), error); ++number) {
      base::log_info("removed '{}', which an earlier text of the same name had left", shard_path(number));
    }
    SINTER_CHECK(!error,
                 "cannot remove '{}', which an earlier text of the same name left: {}; remove it, or whoever reads the "
                 "folder takes it for part of this text",
                 shard_path(number), error.message());
  }

  void write(const std::vector<int32_t>& document) {
    const bool is_full = !writers_.empty() && writers_.back()->num_tokens() + static_cast<int64_t>(document.size()) >
                                                  options_.max_shard_tokens;
    if (is_full) {
      writers_.back()->seal();
      allow_more_files();
    }
    if (is_full || writers_.empty()) {
      result_.shards.push_back(shard_path(result_.shards.size()));
      writers_.push_back(std::make_unique<TokenShardWriter>(result_.shards.back(), tokenizer_.vocab_size(), hash_));
    }
    writers_.back()->add_document(document);
    result_.num_documents += 1;
    result_.num_tokens += static_cast<int64_t>(document.size());
  }

  std::string output_;
  const tokenizer::Tokenizer& tokenizer_;
  const uint64_t hash_;
  const TokenizeOptions& options_;
  std::vector<std::string> texts_;
  size_t group_bytes_ = 0;
  // All but the last are sealed. Each keeps its file open, whose lock tells others that it is not abandoned.
  std::vector<std::unique_ptr<TokenShardWriter>> writers_;
  TokenizeResult result_;
};

}  // namespace

uint64_t tokenizer_hash(const tokenizer::Tokenizer& tokenizer) {
  return base::hash_text(tokenizer.to_json()) | 1;  // never 0, which means unknown
}

TokenizeResult tokenize_files(const std::vector<std::string>& inputs, const std::string& output,
                              const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (const std::string folder = fs::path(output).parent_path(); !folder.empty()) base::create_folders(folder);
  check_output(output);
  int64_t bytes = 0, done = 0;
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    for (std::string& file : list_text_files(input)) files.push_back(std::move(file));
  }
  for (const std::string& file : files) bytes += static_cast<int64_t>(fs::file_size(file));
  if (options.add_eos && tokenizer.special_ids().eos < 0)
    base::log_warning(
        "the tokenizer names no EOS token: nothing will stand between documents, and a model will not learn to end "
        "one; "
        "name it with --eos TOKEN, or as eos_token in a tokenizer_config.json beside it");
  ShardStream stream(output, tokenizer, options);
  for (const std::string& file : files) {
    const auto size = static_cast<int64_t>(fs::file_size(file));
    int64_t seen = 0;
    visit_documents(file, options, [&](std::string_view document) {
      stream.add(document);
      seen += static_cast<int64_t>(document.size());
      if (options.progress) options.progress(done + std::min(seen, size), bytes);  // compressed text is longer
    });
    done += size;
  }
  SINTER_CHECK(stream.has_text(), "there is no text to tokenize in '{}'", fmt::join(inputs, "', '"));
  return stream.finish();
}

namespace {

// The shard in `cache` of a text source: its name holds a hash of the text and of what decides its tokens.
std::string shard_of(const std::string& path, const std::string& cache, const tokenizer::Tokenizer& tokenizer,
                     const TokenizeOptions& options) {
  const tokenizer::SpecialIds& special = tokenizer.special_ids();
  uint64_t key = base::hash_text(fmt::format("{}\n{}\n{}\n{}", options.separator, options.text_key,
                                             options.add_bos ? special.bos : -1, options.add_eos ? special.eos : -1),
                                 tokenizer_hash(tokenizer));
  for (const std::string& name : list_text_files(path)) {
    const base::MappedFile file(name);
    key = base::hash_text(fs::path(name).filename().string(), base::hash_bytes(file.bytes(), key));
  }
  std::string stem;  // of a pattern too a name that files may have
  for (const char c : (path.ends_with('/') ? fs::path(path).parent_path() : fs::path(path)).stem().string())
    stem += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ? c : '_';
  return fmt::format("{}/{}-{:016x}{}", cache, stem, key, kShardExtension);
}

// Folders that are made for the shard go again where there is nothing to put into them.
void tokenize_into_cache(const std::string& source, const std::string& shard, const tokenizer::Tokenizer& tokenizer,
                         TokenizeOptions options) {
  std::vector<fs::path> made;  // the deepest first
  for (fs::path folder = fs::path(shard).parent_path(); !folder.empty() && !fs::exists(folder);
       folder = folder.parent_path())
    made.push_back(folder);
  options.max_shard_tokens = INT64_MAX;
  base::ProgressLine line;
  options.progress = [&](int64_t done, int64_t all) {
    line.update(fmt::format("tokenizing {}: {} of {}", source, base::format_bytes(double(done)),
                            base::format_bytes(double(all))));
  };
  try {
    const TokenizeResult result = tokenize_files({source}, shard, tokenizer, options);
    line.finish();
    base::log_info(
        "tokenized {}: {} document{}, {} tokens, {:.2f} bytes a token", source,
        base::format_grouped(result.num_documents), result.num_documents == 1 ? "" : "s",
        base::format_grouped(result.num_tokens),
        static_cast<double>(result.num_bytes) / static_cast<double>(std::max<int64_t>(result.num_tokens, 1)));
  } catch (...) {
    std::error_code ignored;
    for (const fs::path& folder : made) fs::remove(folder, ignored);  // only empty ones
    throw;
  }
}

}  // namespace

void check_sources(const std::vector<spec::SourceRecipe>& sources, const tokenizer::Tokenizer* tokenizer) {
  for (const spec::SourceRecipe& source : sources) {
    if (stands_for_text(source.path)) {
      SINTER_CHECK(tokenizer, "data source '{}' is text: set data.tokenizer to a tokenizer folder or file",
                   source.path);
      list_text_files(source.path);  // throws for one that is not there
    } else {
      SINTER_CHECK(fs::exists(source.path), "data source '{}' does not exist", source.path);
    }
  }
}

std::vector<spec::SourceRecipe> prepare_sources(const std::vector<spec::SourceRecipe>& sources,
                                                const std::string& cache, const tokenizer::Tokenizer* tokenizer,
                                                const TokenizeOptions& options) {
  check_sources(sources, tokenizer);
  base::remove_abandoned_files(cache, kShardExtension);
  std::vector<spec::SourceRecipe> prepared;
  for (const spec::SourceRecipe& source : sources) {
    prepared.push_back(source);
    if (!stands_for_text(source.path)) continue;
    prepared.back().path = shard_of(source.path, cache, *tokenizer, options);
    if (!fs::exists(prepared.back().path)) tokenize_into_cache(source.path, prepared.back().path, *tokenizer, options);
  }
  return prepared;
}

}  // namespace sinter::data
