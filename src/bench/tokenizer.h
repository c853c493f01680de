// Tokenizer speeds: splitting alone, encoding on one thread and on all, decoding, training.
#pragma once
#include <string_view>

#include "bench/report.h"
#include "tokenizer/tokenizer.h"

namespace sinter::bench {

struct TokenizerSpeed {
  size_t num_tokens = 0;          // the text's
  double encode_bytes_per_s = 0;  // one thread
  double parallel_bytes_per_s = 0;
  double decode_bytes_per_s = 0;
};

// The best of runs that take about `seconds` each for encode, parallel encode and decode. One-thread speeds are over
// the thread's CPU time.
TokenizerSpeed measure_tokenizer(const tokenizer::Tokenizer& tokenizer, std::string_view text, double seconds);

// With options.tokenizer and options.text: those files. Otherwise a vocabulary trained here on made-up text.
Report bench_tokenizer(const Options& options);

}  // namespace sinter::bench
