// One optimizer step of GPT-2 124M on random tokens, in fp32 and bf16: tokens/s, GFLOP/s over model FLOPs
// (6 N + 6 L T C per token), the share of the machine's ceiling, and where the time goes.
#pragma once
#include "base/dtype.h"
#include "bench/report.h"
#include "spec/model_spec.h"

namespace sinter::bench {

// A step and where its time went (seconds).
struct StepSample {
  double tokens = 0, seconds = 0;
  double matmul = 0, attention = 0, loss = 0, optimizer = 0;
  double other() const { return seconds - matmul - attention - loss - optimizer; }
};
// The best of the steps run; and the step that the best run of every single kernel call would make, which is what a
// machine takes when nothing else disturbs it.
struct StepSamples {
  StepSample best, undisturbed;
  double mean_seconds = 0;  // over all of them
};
// Steps (one micro-batch, AdamW, clipping) of `sequences` x `length` random tokens for about `seconds` of time, at
// least `least` of them after the first.
StepSamples sample_train_step(const spec::ModelSpec& spec, base::DType dtype, int64_t sequences, int64_t length,
                              double seconds, int least = 2);

Report bench_train_step(const Options&);

// One case, bf16x1024 say: prints "ready" after a step to warm up, then runs a step for each line of standard input and
// prints its milliseconds. So another program can take its own steps between ours, under the same conditions.
void train_steps_in_turns(const std::string& format_and_length);

}  // namespace sinter::bench
