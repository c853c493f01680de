#include "eval/recipes/continuations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "engine/batch.h"
#include "models/open_model.h"

namespace sinter::eval {
namespace {

using nlohmann::json;

constexpr int64_t kNewTokens = 12;
constexpr int32_t kLikeliest = 8;

// Long and short ones, so that prefill is cut into chunks and decode is mixed with it.
std::vector<engine::Request> make_requests(const spec::ModelSpec& spec, uint64_t seed) {
  const base::CounterRng rng{seed, 0xc0471};
  const int64_t most = std::max<int64_t>(1, spec.max_positions - kNewTokens);
  std::vector<engine::Request> requests;
  for (const int64_t wanted : {1, 3, 17, 40}) {
    engine::Request request{.sampling = {.temperature = 0}, .logprobs = kLikeliest};
    const auto prompt = static_cast<uint64_t>(requests.size());
    for (int64_t i = 0; i < std::min(wanted, most); ++i) {
      const uint64_t bits = rng.bits64(prompt * 4096 + static_cast<uint64_t>(i));
      request.prompt.push_back(static_cast<int32_t>(bits % static_cast<uint64_t>(spec.vocab_size)));
    }
    request.max_new_tokens = std::min(kNewTokens, spec.max_positions - static_cast<int64_t>(request.prompt.size()));
    if (request.max_new_tokens > 0) requests.push_back(std::move(request));
  }
  return requests;
}

// The logprob of a token among those given beside the chosen one.
std::optional<double> logprob_of(const json& token, int64_t wanted) {
  if (token[0] == wanted) return token[1].get<double>();
  for (size_t i = 2; i < token.size(); ++i) {
    if (token[i][0] == wanted) return token[i][1].get<double>();
  }
  return std::nullopt;
}

}  // namespace

json make_continuations(const ContinuationOptions& options) {
  const models::OpenModel model = models::open_model(options.folder, {options.device, options.compute, false});
  engine::Engine engine(*model.transformer, {.kv_tokens = 1024, .step_tokens = 24});
  json prompts = json::array();
  for (const std::vector<engine::Completion>& choices :
       engine::run_batch(engine, make_requests(model.spec, options.seed))) {
    json tokens = json::array();
    for (const engine::OutputToken& made : choices[0].details) {
      json token = {made.token, made.logprob};
      for (const engine::TokenLogprob& other : made.top) token.push_back({other.token, other.logprob});
      tokens.push_back(std::move(token));
    }
    prompts.push_back(std::move(tokens));
  }
  return prompts;
}

ContinuationDifference compare_continuations(const json& ours, const json& expected, double limit) {
  ContinuationDifference out;
  if (ours.size() != expected.size() || ours.empty()) {
    out.problem = fmt::format("{} continuations, the reference has {}", ours.size(), expected.size());
    return out;
  }
  for (size_t p = 0; p < ours.size(); ++p) {
    if (ours[p].size() != expected[p].size()) {
      out.problem =
          fmt::format("continuation {} has {} tokens, the reference's {}", p + 1, ours[p].size(), expected[p].size());
      return out;
    }
    for (size_t i = 0; i < ours[p].size(); ++i) {
      const json &mine = ours[p][i], &theirs = expected[p][i];
      const auto token = mine[0].get<int64_t>(), other = theirs[0].get<int64_t>();
      const std::optional<double> own = logprob_of(theirs, token);
      const double error = own ? std::abs(mine[1].get<double>() - *own) : INFINITY;
      const double gap = token == other ? 0 : own ? theirs[1].get<double>() - *own : INFINITY;
      out.logprob_error = std::max(out.logprob_error, std::isnan(error) ? INFINITY : error);
      if (gap > 2 * limit || out.logprob_error > limit) {
        out.problem = fmt::format(
            "token {} of continuation {} is {} (logprob {:.5f}), the reference's {} ({:.5f}); the limit is {:.0e}",
            i + 1, p + 1, token, mine[1].get<double>(), other, theirs[1].get<double>(), limit);
        return out;
      }
      if (token != other) break;
    }
  }
  return out;
}

}  // namespace sinter::eval
