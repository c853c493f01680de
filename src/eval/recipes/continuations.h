// What a model generates from random prompts, for comparison between two sets of kernels: greedy tokens with the
// likeliest beside each, several prompts at once over the paged cache.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/device.h"

namespace sinter::eval {

struct ContinuationOptions {
  std::string folder;  // of the model
  core::Device device;
  base::DType compute = base::DType::f32;
  uint64_t seed = 1;  // of the prompts
};
// [[[token, logprob, [likeliest token, its logprob], ...], ...] of each prompt]
nlohmann::json make_continuations(const ContinuationOptions& options);

struct ContinuationDifference {
  double logprob_error = 0;  // largest, absolute
  std::string problem;       // "": equal, but for tokens that are as likely within `limit`
};
// A prompt is followed up to the first token that differs: what comes after has another past.
ContinuationDifference compare_continuations(const nlohmann::json& ours, const nlohmann::json& expected, double limit);

}  // namespace sinter::eval
