#include "tokenizer/train.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"
#include "base/text.h"
#include "base/threads.h"
#include "tokenizer/merge_trainer.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/word_counts.h"

namespace sinter::tokenizer {
namespace {

constexpr size_t kChunk = 1 << 20;

// The pattern, by hand or by regular expression.
struct Splitter {
  std::optional<SplitPattern> known;
  std::unique_ptr<Regex> regex;
  std::string text;  // the regular expression

  explicit Splitter(const std::string& pattern) {
    known = pattern_by_name(pattern);
    if (!known) known = find_pattern(pattern);
    text = known ? std::string(pattern_regex(*known)) : pattern;
    if (known) return;
    const bool is_word =
        std::all_of(pattern.begin(), pattern.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)); });
    if (is_word) {
      base::fail_usage("the pattern '{}' is neither a name ({}) nor a regular expression{}", pattern,
                       fmt::join(pattern_names(), ", "), base::did_you_mean(pattern, pattern_names()));
    }
    try {
      regex = std::make_unique<Regex>(pattern, "pattern");
    } catch (const base::Error& e) {  // files have patterns too, but this one was asked for
      base::fail_usage("{}", e.what());
    }
  }

  // Pieces of the regular expression, and what lies between its matches, as the Split pre-tokenizer (Isolated) gives
  // them.
  void count(std::string_view segment, WordCounts& counts) const {
    if (known) {
      const PieceEnd find_end = piece_end(*known);
      for (size_t pos = 0; pos < segment.size();) {
        const size_t end = find_end(segment, pos);
        counts.add(segment.substr(pos, end - pos));
        pos = end;
      }
      return;
    }
    size_t done = 0;
    auto add = [&](size_t begin, size_t end) {
      if (begin < end) counts.add(segment.substr(begin, end - begin));
    };
    regex->for_each_match(segment, [&](size_t begin, size_t end) {
      add(done, begin);
      add(begin, end);
      done = end;
    });
    add(done, segment.size());
  }
};

AddedTokenFinder make_finder(const std::vector<std::string>& special_tokens) {
  AddedTokenFinder finder;
  for (size_t i = 0; i < special_tokens.size(); ++i) {
    finder.add({.id = static_cast<int32_t>(i), .content = special_tokens[i], .special = true}, special_tokens[i]);
  }
  return finder;
}

// Stretches that can be counted on their own: between special tokens, or smaller where cutting changes nothing.
std::vector<std::string_view> make_chunks(std::span<const std::string_view> texts, const AddedTokenFinder& finder,
                                          bool may_cut) {
  std::vector<std::string_view> chunks;
  for (std::string_view text : texts) {
    if (!may_cut) {
      finder.split(
          text, true, [&](size_t begin, size_t end) { chunks.push_back(text.substr(begin, end - begin)); },
          [](int32_t) {});
      continue;
    }
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = safe_cut(text, std::min(text.size() - 1, pos + kChunk));
      chunks.push_back(text.substr(pos, end - pos));
      pos = end;
    }
  }
  return chunks;
}

WordCounts count_words(std::span<const std::string_view> texts, const Splitter& splitter,
                       const AddedTokenFinder& finder) {
  const auto chunks = make_chunks(texts, finder, splitter.known && finder.allows_cuts());
  std::vector<WordCounts> by_thread(static_cast<size_t>(base::num_threads()));
  base::parallel_for(static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    WordCounts& counts = by_thread[static_cast<size_t>(base::thread_index())];
    for (int64_t i = begin; i < end; ++i) {
      const std::string_view chunk = chunks[static_cast<size_t>(i)];
      finder.split(
          chunk, true, [&](size_t b, size_t e) { splitter.count(chunk.substr(b, e - b), counts); }, [](int32_t) {});
    }
  });
  for (size_t t = 1; t < by_thread.size(); ++t) {
    by_thread[0].add_all(by_thread[t]);
    by_thread[t] = {};
  }
  return std::move(by_thread[0]);
}

void check_options(const TrainOptions& options) {
  std::unordered_set<std::string_view> seen;
  for (const std::string& token : options.special_tokens) {
    if (token.empty()) base::fail_usage("a special token is empty");
    if (!seen.insert(token).second) base::fail_usage("the special token '{}' is given twice", token);
  }
  const auto least = 256 + static_cast<int32_t>(options.special_tokens.size());
  if (options.vocab_size < least || options.vocab_size > Vocabulary::kMaxId) {
    base::fail_usage("vocabulary size {}: expected {} (256 bytes and {} special token{}) to {}", options.vocab_size,
                     least, options.special_tokens.size(), options.special_tokens.size() == 1 ? "" : "s",
                     Vocabulary::kMaxId);
  }
}

Tokenizer make_tokenizer(const MergeTrainer& trainer, const Splitter& splitter,
                         const std::vector<std::string>& special_tokens) {
  auto parts = std::make_unique<TokenizerParts>();
  parts->origin = "trained tokenizer";
  parts->model.over_bytes = true;
  for (int32_t id = 0; id < trainer.num_tokens(); ++id) parts->model.vocabulary.add(id, trainer.token(id));
  uint32_t rank = 0;
  for (const MergeTrainer::MergeStep& step : trainer.steps())
    parts->model.merges.add(step.left, step.right, {rank++, step.result});
  parts->model.finish();
  int32_t id = trainer.num_tokens();
  for (const std::string& token : special_tokens)
    parts->added.push_back({.id = id++, .content = token, .special = true});
  if (!parts->added.empty()) parts->special_ids.bos = parts->special_ids.eos = parts->added[0].id;
  const bool plain_gpt2 = splitter.known == SplitPattern::gpt2;
  const nlohmann::json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", plain_gpt2}};
  const nlohmann::json split{
      {"type", "Split"}, {"pattern", {{"Regex", splitter.text}}}, {"behavior", "Isolated"}, {"invert", false}};
  parts->pre_tokenizer_json =
      (plain_gpt2 ? byte_level : nlohmann::json{{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}).dump();
  parts->decoder_json = parts->post_processor_json = byte_level.dump();
  // Documents in training begin with BOS, so prompts do.
  if (!parts->added.empty()) {
    const nlohmann::json bos = bos_template_json(parts->added[0].content, parts->added[0].id);
    parts->post_processor_json = nlohmann::json{{"type", "Sequence"}, {"processors", {byte_level, bos}}}.dump();
  }
  parts->finish();
  return Tokenizer(std::move(parts));
}

}  // namespace

BpeTraining train_bpe(std::span<const std::string_view> texts, const TrainOptions& options) {
  check_options(options);
  const Splitter splitter(options.pattern);
  const AddedTokenFinder finder = make_finder(options.special_tokens);
  const WordCounts counts = count_words(texts, splitter, finder);
  SINTER_CHECK(counts.size() > 0, "there is no text to train a tokenizer on");
  uint64_t num_pieces = 0;
  counts.for_each([&](std::string_view, uint64_t count) { num_pieces += count; });

  MergeTrainer trainer(counts);
  const int32_t wanted = options.vocab_size - static_cast<int32_t>(options.special_tokens.size());
  while (trainer.num_tokens() < wanted && trainer.merge_next(options.min_count)) {
    if (options.progress && trainer.steps().size() % 256 == 0)
      options.progress(trainer.num_tokens() - 256, wanted - 256);
  }
  BpeTraining result{.tokenizer = make_tokenizer(trainer, splitter, options.special_tokens),
                     .merges = {},
                     .num_pieces = num_pieces,
                     .num_distinct = counts.size()};
  for (const MergeTrainer::MergeStep& step : trainer.steps()) {
    result.merges.emplace_back(trainer.token(step.left), trainer.token(step.right));
  }
  return result;
}

}  // namespace sinter::tokenizer
