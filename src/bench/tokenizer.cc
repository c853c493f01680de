#include "bench/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

#include "base/file.h"
#include "base/rng.h"
#include "base/threads.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/train.h"

namespace sinter::bench {
namespace {

// The shortest time this thread itself was running, so that a busy machine does not spoil one-thread figures.
template <class Body>
double best_cpu_seconds(double seconds, Body&& body) {
  double best = 1e300;
  best_seconds(seconds, [&] {
    timespec start, stop;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    body();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &stop);
    best = std::min(best, static_cast<double>(stop.tv_sec - start.tv_sec) +
                              1e-9 * static_cast<double>(stop.tv_nsec - start.tv_nsec));
  });
  return best;
}

// Text with the statistics that matter here: words of 1 to 12 letters whose frequencies fall as 1/rank (40,000 of
// them), sentences, numbers and line breaks.
std::string make_text(size_t size) {
  const base::CounterRng rng{11, 4};
  std::vector<std::string> words;
  for (uint64_t w = 0; w < 40000; ++w) {
    std::string word;
    const uint32_t letters = 1 + (rng.bits(w * 16) % 6) + std::min<uint32_t>(6, static_cast<uint32_t>(w / 60));
    static constexpr std::string_view kLetters = "etaoinshrdlucmfwypvbgkjqxzetaoinshretaoin";
    for (uint32_t k = 0; k < letters; ++k) word += kLetters[rng.bits(w * 16 + 1 + k) % kLetters.size()];
    words.push_back(std::move(word));
  }
  std::string text;
  text.reserve(size + 64);
  const double log_count = std::log(static_cast<double>(words.size()));
  for (uint64_t i = 0; text.size() < size; ++i) {
    const auto rank = static_cast<size_t>(std::exp(rng.uniform(1'000'000 + i) * log_count)) - 1;
    const uint32_t dice = rng.bits(50'000'000 + i) % 100;
    text += words[std::min(rank, words.size() - 1)];
    if (dice < 6)
      text += ". ";
    else if (dice < 12)
      text += ", ";
    else if (dice < 14)
      text += ".\n\n";
    else if (dice < 15)
      text += fmt::format(" {} ", rng.bits(i) % 2000);
    else
      text += ' ';
  }
  return text;
}

double split_seconds(tokenizer::SplitPattern pattern, std::string_view text, double seconds) {
  const tokenizer::PieceEnd find_end = tokenizer::piece_end(pattern);
  volatile size_t sink = 0;
  return best_cpu_seconds(seconds, [&] {
    size_t pieces = 0;
    for (size_t pos = 0; pos < text.size(); ++pieces) pos = find_end(text, pos);
    sink = pieces;
  });
}

}  // namespace

TokenizerSpeed measure_tokenizer(const tokenizer::Tokenizer& tokenizer, std::string_view text, double seconds) {
  const auto size = static_cast<double>(text.size());
  TokenizerSpeed speed;
  std::vector<int32_t> ids;
  speed.encode_bytes_per_s = size / best_cpu_seconds(seconds, [&] { ids = tokenizer.encode(text); });
  speed.parallel_bytes_per_s = size / best_seconds(seconds, [&] { ids = tokenizer.encode_parallel(text); });
  speed.num_tokens = ids.size();
  std::string decoded;
  speed.decode_bytes_per_s = size / best_cpu_seconds(seconds, [&] { decoded = tokenizer.decode(ids); });
  return speed;
}

Report bench_tokenizer(const Options& options) {
  Report report;
  report.name = "tokenizer";
  report.columns = {{"what", "what"},
                    {"threads", "threads", 0},
                    {"mb_per_s", "MB/s"},
                    {"ns_per_token", "ns/token"},
                    {"bytes_per_token", "bytes/token", 2},
                    {"share", "% of limit", 0},
                    {"limit", "limit"}};
  const int threads = base::num_threads();
  const std::string text =
      options.text.empty() ? make_text(options.is_full ? 64 << 20 : 8 << 20) : base::read_file(options.text);
  const auto size = static_cast<double>(text.size());
  const std::string_view texts[] = {text};
  auto train = [&] { return tokenizer::train_bpe(texts, {.vocab_size = 8192}); };

  std::optional<tokenizer::Tokenizer> tokenizer;
  double train_seconds = 0;
  if (options.tokenizer.empty()) {
    double start = now_seconds();
    tokenizer = train().tokenizer;
    train_seconds = now_seconds() - start;
  } else {
    tokenizer = tokenizer::Tokenizer::load(options.tokenizer);
  }
  report.title = fmt::format("Tokenizer: {:.1f} MB of {} text, {}", size / 1e6,
                             options.text.empty() ? "made-up" : "the given", tokenizer->description());
  const TokenizerSpeed speed = measure_tokenizer(*tokenizer, text, options.case_seconds);
  const auto tokens = static_cast<double>(speed.num_tokens);
  auto add = [&](const char* what, int used, double bytes_per_s, Cell share, Cell limit) {
    report.rows.push_back({what, static_cast<double>(used), bytes_per_s / 1e6, 1e9 * size / bytes_per_s / tokens,
                           size / tokens, share, limit});
  };
  Cell share, limit;
  if (auto pattern = tokenizer->split_pattern()) {
    const double split = size / split_seconds(*pattern, text, options.case_seconds);
    add("split", 1, split, {}, {});
    share = 100 * speed.encode_bytes_per_s / split;
    limit = "splitting alone";
  }
  add("encode", 1, speed.encode_bytes_per_s, share, limit);
  add("encode", threads, speed.parallel_bytes_per_s,
      100 * speed.parallel_bytes_per_s / speed.encode_bytes_per_s / threads, "one thread x threads");
  add("decode", 1, speed.decode_bytes_per_s, {}, {});
  if (train_seconds > 0) add("train, 8192 tokens", threads, size / train_seconds, {}, {});
  return report;
}

}  // namespace sinter::bench
