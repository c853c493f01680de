// What the engine costs beside the model: scheduling, and masks of structured output.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

// A step's scheduling (inbox, deadlines, blocks, the batch's lists) with 64, 256 and 1024 sequences that decode, and
// all of a step but the model's part.
Report bench_schedule(const Options& options);
// The mask over a vocabulary of 128k tokens, per token of random outputs of a few schemas: first meeting and again.
// options.tokenizer: a vocabulary of one's own.
Report bench_masks(const Options& options);

}  // namespace sinter::bench
