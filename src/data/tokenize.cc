#include "data/tokenize.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "data/token_shard.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kGroupBytes = 16 << 20;  // text tokenized at once: enough for all cores, little memory

// Whatever its case: DATA.JSONL is no plain text.
bool has_ending(const std::string& path, std::string_view ending) {
  return path.size() >= ending.size() &&
         std::equal(ending.begin(), ending.end(), path.end() - static_cast<int64_t>(ending.size()),
                    [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}
bool holds_json_lines(const std::string& path) { return has_ending(path, ".jsonl") || has_ending(path, ".ndjson"); }

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == std::string_view::npos; }

// Calls visit(document) for every document of a file; the view lives for the call only.
void visit_documents(const base::MappedFile& file, const TokenizeOptions& options,
                     const std::function<void(std::string_view)>& visit) {
  const std::string_view text = file.text();
  if (!holds_json_lines(file.path())) {
    for (size_t begin = 0; begin <= text.size();) {
      size_t end = options.separator.empty() ? std::string_view::npos : text.find(options.separator, begin);
      visit(text.substr(begin, end == std::string_view::npos ? std::string_view::npos : end - begin));
      if (end == std::string_view::npos) break;
      begin = end + options.separator.size();
    }
    return;
  }
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    if (is_blank(line)) continue;
    const nlohmann::json value = base::parse_json(line, fmt::format("{} line {}", file.path(), number));
    SINTER_CHECK(value.is_object() && value.contains(options.text_key) && value[options.text_key].is_string(),
                 "'{}' line {}: expected an object with a string '{}'", file.path(), number, options.text_key);
    visit(value[options.text_key].get_ref<const std::string&>());
  }
}

// A file that is no text by its ending would make a shard of noise without a word.
void check_ending(const std::string& path) {
  SINTER_CHECK(!has_ending(path, kShardExtension), "'{}' is a token shard already; expected text, or .jsonl", path);
  SINTER_CHECK(!has_ending(path, ".json"),
               "'{}' is JSON; expected text, or .jsonl: give a file with one object a line that ending", path);
}

// A shard without a name before its ending would be a hidden file that nobody looks for.
void check_output(const std::string& output) {
  std::string name = fs::path(output).filename().string();
  if (has_ending(name, kShardExtension)) name.resize(name.size() - std::string_view(kShardExtension).size());
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
    if (has_ending(output_, kShardExtension)) output_.resize(output_.size() - std::string_view(kShardExtension).size());
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

void check_is_text(std::string_view content, const std::string& path) {
  struct Kind {
    std::string_view magic, what;
  };
  using namespace std::string_view_literals;
  static constexpr Kind kKinds[] = {{"\x1f\x8b"sv, "compressed by gzip"},
                                    {"\x28\xb5\x2f\xfd"sv, "compressed by zstd"},
                                    {"\xfd"
                                     "7zXZ"sv,
                                     "compressed by xz"},
                                    {"BZh"sv, "compressed by bzip2"},
                                    {"PK\x03\x04"sv, "a zip archive"},
                                    {"PAR1"sv, "a Parquet file"},
                                    {"Obj\x01"sv, "an Avro file"},
                                    {"ARROW1"sv, "an Arrow file"}};
  for (const Kind& kind : kKinds) {
    SINTER_CHECK(!content.starts_with(kind.magic), "'{}' is {}; expected text: unpack it first", path, kind.what);
  }
  SINTER_CHECK(!content.starts_with(kShardMagic), "'{}' is a token shard; expected the text it was made of", path);
  constexpr size_t kLookedAt = 64 << 10;
  const bool is_utf16 = content.starts_with("\xff\xfe") || content.starts_with("\xfe\xff");
  SINTER_CHECK(!is_utf16, "'{}' is UTF-16; expected UTF-8: iconv -f UTF-16 -t UTF-8 '{}' > utf8.txt", path, path);
  const size_t zero = content.substr(0, kLookedAt).find('\0');
  SINTER_CHECK(zero == std::string_view::npos, "'{}' has a byte of zero at {}, which no text has; expected text", path,
               zero);
}

uint64_t tokenizer_hash(const tokenizer::Tokenizer& tokenizer) {
  return base::hash_text(tokenizer.to_json()) | 1;  // never 0, which means unknown
}

bool is_text_path(const std::string& path) {
  constexpr std::array<std::string_view, 5> kEndings{".txt", ".text", ".md", ".jsonl", ".ndjson"};
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return has_ending(path, ending); });
}

TokenizeResult tokenize_files(const std::vector<std::string>& inputs, const std::string& output,
                              const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (const std::string folder = fs::path(output).parent_path(); !folder.empty()) base::create_folders(folder);
  check_output(output);
  int64_t bytes = 0, done = 0;
  for (const std::string& input : inputs) {
    SINTER_CHECK(fs::is_regular_file(input), "'{}' is not a file", input);
    bytes += static_cast<int64_t>(fs::file_size(input));
  }
  if (options.add_eos && tokenizer.special_ids().eos < 0)
    base::log_warning(
        "the tokenizer names no EOS token (eos_token in a tokenizer_config.json beside it): nothing will stand between "
        "documents, and a model will not learn to end one");
  ShardStream stream(output, tokenizer, options);
  for (const std::string& input : inputs) {
    const base::MappedFile file(input);
    check_is_text(file.text(), file.path());
    check_ending(input);
    int64_t seen = 0;
    visit_documents(file, options, [&](std::string_view document) {
      stream.add(document);
      seen += static_cast<int64_t>(document.size());
      if (options.progress) options.progress(done + seen, bytes);
    });
    done += static_cast<int64_t>(file.bytes().size());
  }
  SINTER_CHECK(stream.has_text(), "there is no text to tokenize in '{}'", fmt::join(inputs, "', '"));
  return stream.finish();
}

std::vector<spec::SourceRecipe> prepare_sources(const std::vector<spec::SourceRecipe>& sources,
                                                const std::string& cache, const tokenizer::Tokenizer* tokenizer,
                                                const TokenizeOptions& options) {
  base::remove_abandoned_files(cache, kShardExtension);
  std::vector<spec::SourceRecipe> prepared;
  for (const spec::SourceRecipe& source : sources) {
    SINTER_CHECK(fs::exists(source.path), "data source '{}' does not exist", source.path);
    prepared.push_back(source);
    if (!is_text_path(source.path)) continue;
    SINTER_CHECK(tokenizer, "data source '{}' is text: set data.tokenizer to a tokenizer folder or file", source.path);
    const base::MappedFile file(source.path);
    uint64_t key = base::hash_bytes(file.bytes(), tokenizer_hash(*tokenizer));
    const tokenizer::SpecialIds& special = tokenizer->special_ids();
    key = base::hash_text(
        fmt::format("{}\n{}\n{}\n{}\n{}", options.separator, options.text_key, holds_json_lines(source.path),
                    options.add_bos ? special.bos : -1, options.add_eos ? special.eos : -1),
        key);
    const std::string stem = fmt::format("{}/{}-{:016x}", cache, fs::path(source.path).stem().string(), key);
    prepared.back().path = stem + kShardExtension;
    if (fs::exists(prepared.back().path)) continue;
    base::create_folders(cache);
    TokenizeOptions whole = options;
    whole.max_shard_tokens = INT64_MAX;
    base::ProgressLine line;
    whole.progress = [&](int64_t done, int64_t all) {
      line.update(fmt::format("tokenizing {}: {} of {}", source.path, base::format_bytes(double(done)),
                              base::format_bytes(double(all))));
    };
    const TokenizeResult result = tokenize_files({source.path}, stem, *tokenizer, whole);
    line.finish();
    base::log_info(
        "tokenized {}: {} documents, {} tokens, {:.2f} bytes a token", source.path,
        base::format_grouped(result.num_documents), base::format_grouped(result.num_tokens),
        static_cast<double>(result.num_bytes) / static_cast<double>(std::max<int64_t>(result.num_tokens, 1)));
  }
  return prepared;
}

}  // namespace sinter::data
