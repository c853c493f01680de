// How fast a model of one's own answers on this machine: any folder or .gguf file.
#pragma once
#include <cstdint>
#include <vector>

#include "bench/report.h"
#include "core/kv_format.h"
#include "models/open_model.h"

namespace sinter::bench {

struct ModelSpeedOptions {
  int64_t prompt = 256, new_tokens = 64;
  std::vector<int64_t> batches{1, 8};        // of decoding
  int64_t rounds = 5;                        // of each case, after one that is not counted
  core::DType kv_format = core::DType::f32;  // core/kv_format.h
};

// Prompts read alone, then decoding at each batch: the median of the rounds, the slowest and the fastest, and on the
// CPU the bytes of weights read a second beside the rate at which memory is read here.
Report bench_model(const models::OpenModel& model, const ModelSpeedOptions& options);

}  // namespace sinter::bench
