#include "bench/engine_run.h"

#include "base/rng.h"
#include "bench/report.h"

namespace sinter::bench {

std::vector<int32_t> random_prompt(int64_t length, int64_t vocab, uint64_t index) {
  const base::CounterRng rng{23, index};
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<int32_t>(rng.bits(static_cast<uint64_t>(i)) % static_cast<uint32_t>(vocab)));
  return tokens;
}

EngineTimes run_requests(engine::Engine& engine, const EngineRun& run, const std::function<void()>& on_decode) {
  const int64_t vocab = engine.vocab_size(), before = engine.stats().num_steps;
  for (int64_t b = 0; b < run.batch; ++b) {
    engine::Request request;
    request.prompt = random_prompt(run.prompt, vocab, run.seed * 1000 + static_cast<uint64_t>(b));
    request.max_new_tokens = run.new_tokens;
    request.sampling.temperature = 0;
    engine.submit(std::move(request));
  }
  EngineTimes times;
  int64_t with_tokens = 0, tokens = 0, last_prefill_step = before;
  const double begin = now_seconds();
  double decode_begin = begin;
  while (engine.has_work()) {
    engine.step();
    for (const engine::Output& out : engine.take_outputs()) {
      tokens += static_cast<int64_t>(out.tokens.size());
      with_tokens += out.usage.output_tokens == 1;
    }
    if (with_tokens >= run.batch && decode_begin == begin) {
      decode_begin = now_seconds();
      times.decode_tokens = -tokens;
      last_prefill_step = engine.stats().num_steps;
      if (on_decode) on_decode();
    }
  }
  times.prefill_seconds = decode_begin - begin;
  times.decode_seconds = now_seconds() - decode_begin;
  times.decode_tokens += tokens;
  times.decode_steps = engine.stats().num_steps - last_prefill_step;
  return times;
}

}  // namespace sinter::bench
