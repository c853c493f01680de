#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/rng.h"

namespace sinter::engine {

void check_sampling(const SamplingOptions& o) {
  auto check = [](bool holds, const char* name, double value, const char* expected) {
    if (!holds) base::fail_usage("{} is {}; expected {}", name, value, expected);
  };
  check(o.temperature >= 0 && o.temperature <= 100, "temperature", o.temperature, "0 (greedy) to 100");
  check(o.top_k >= 0, "top-k", static_cast<double>(o.top_k), "0 (off) or more");
  check(o.top_p > 0 && o.top_p <= 1, "top-p", o.top_p, "above 0, up to 1");
  check(o.min_p >= 0 && o.min_p <= 1, "min-p", o.min_p, "0 to 1");
}

namespace {

// The likeliest token, the first of equals. Candidates with a NaN among them have no order to choose by.
size_t find_best(std::span<const float> logits) {
  size_t best = 0;
  bool has_nan = logits.empty();
  for (size_t i = 0; i < logits.size(); ++i) {
    has_nan |= std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  SINTER_CHECK(!has_nan && std::isfinite(logits[best]),
               "the logits are not finite: the model's weights are damaged or its training diverged; `sinter inspect "
               "MODEL --values` counts the weights that are NaN or infinite");
  return best;
}

}  // namespace

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position) {
  const auto best = static_cast<int32_t>(find_best(logits));
  if (options.temperature == 0.0f || options.top_k == 1) return best;
  struct Candidate {
    int32_t token;
    double weight;
  };
  const double top = logits[static_cast<size_t>(best)];
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates[i] = {static_cast<int32_t>(i), std::exp((logits[i] - top) / options.temperature)};
  }
  auto likelier = [](const Candidate& a, const Candidate& b) {
    return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
  };
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < candidates.size()) {
    auto end = candidates.begin() + options.top_k;
    std::partial_sort(candidates.begin(), end, candidates.end(), likelier);
    candidates.erase(end, candidates.end());
  } else {
    std::sort(candidates.begin(), candidates.end(), likelier);
  }
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  size_t kept = 0;
  double mass = 0;
  while (kept < candidates.size() && (kept == 0 || mass < options.top_p * total) &&
         candidates[kept].weight >= options.min_p * candidates[0].weight) {
    mass += candidates[kept++].weight;
  }
  const double draw =
      static_cast<double>(base::CounterRng{options.seed, 0x5a3b1e}.bits64(position) >> 11) * 0x1p-53 * mass;
  double passed = 0;
  for (size_t i = 0; i < kept; ++i) {
    passed += candidates[i].weight;
    if (draw < passed) return candidates[i].token;
  }
  return candidates[kept - 1].token;
}

}  // namespace sinter::engine
