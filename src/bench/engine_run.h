// Requests of random tokens through an engine, timed.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace sinter::bench {

std::vector<int32_t> random_prompt(int64_t length, int64_t vocab, uint64_t index);

// So many prompts at once, and how many tokens follow each.
struct EngineRun {
  int64_t batch = 1, prompt = 128, new_tokens = 128;
  uint64_t seed = 1;  // of the prompts
};
struct EngineTimes {
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t decode_tokens = 0, decode_steps = 0;
};
// Prompts until every request has its first token, then decoding (greedy) until all have ended. `on_decode` is called
// between the two.
EngineTimes run_requests(engine::Engine& engine, const EngineRun& run, const std::function<void()>& on_decode = {});

}  // namespace sinter::bench
