#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/rng.h"

namespace sinter::engine {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void check_tokens(std::span<const int32_t> tokens, const char* name, int64_t vocab_size) {
  for (int32_t token : tokens) {
    if (token < 0 || (vocab_size > 0 && token >= vocab_size))
      base::fail_usage("{} names token {}; expected 0 to {}", name, token, vocab_size - 1);
  }
}

// The likeliest token, the first of equals. Logits with a NaN among them have no order to choose by.
size_t find_best(std::span<const float> logits) {
  size_t best = 0;
  bool has_nan = logits.empty();
  for (size_t i = 0; i < logits.size(); ++i) {
    has_nan |= std::isnan(logits[i]);
    if (logits[i] > logits[best]) best = i;
  }
  SINTER_CHECK(!has_nan && std::isfinite(logits[best]), "{}", kLogitsNotFinite);
  return best;
}

bool changes_logits(const SamplingOptions& o, const SamplingHistory& h) {
  return !o.logit_bias.empty() || !o.allowed_tokens.empty() || !o.bad_words.empty() || o.repetition_penalty != 1.0f ||
         o.presence_penalty != 0.0f || o.frequency_penalty != 0.0f || o.dry.multiplier > 0.0f || !h.mask.empty() ||
         !h.banned.empty();
}

// A bad word of one token never comes; of a longer one the last never comes behind the others.
void drop_bad_words(std::span<float> logits, const SamplingOptions& options, std::span<const int32_t> tokens) {
  for (const std::vector<int32_t>& word : options.bad_words) {
    if (word.empty() || word.size() - 1 > tokens.size()) continue;
    const bool follows =
        std::equal(word.begin(), word.end() - 1, tokens.end() - (static_cast<int64_t>(word.size()) - 1));
    if (follows && static_cast<size_t>(word.back()) < logits.size()) logits[static_cast<size_t>(word.back())] = kNever;
  }
}

void drop_tokens(std::span<float> logits, const SamplingOptions& options, const SamplingHistory& history,
                 SamplerScratch& scratch) {
  if (!history.mask.empty()) {
    for (size_t t = 0; t < logits.size(); ++t) {
      const size_t word = t / 32;
      if (word >= history.mask.size() || !((history.mask[word] >> (t % 32)) & 1u)) logits[t] = kNever;
    }
  }
  if (!options.allowed_tokens.empty()) {
    scratch.order.assign(logits.size(), 0);
    for (int32_t token : options.allowed_tokens) {
      if (static_cast<size_t>(token) < logits.size()) scratch.order[static_cast<size_t>(token)] = 1;
    }
    for (size_t t = 0; t < logits.size(); ++t) {
      if (!scratch.order[t]) logits[t] = kNever;
    }
  }
  for (int32_t token : history.banned) {
    if (static_cast<size_t>(token) < logits.size()) logits[static_cast<size_t>(token)] = kNever;
  }
  drop_bad_words(logits, options, history.tokens);
}

void apply_penalties(std::span<float> logits, const SamplingOptions& o, const SamplingHistory& h,
                     SamplerScratch& scratch) {
  if (o.repetition_penalty == 1.0f && o.presence_penalty == 0.0f && o.frequency_penalty == 0.0f) return;
  // counts: 1 + how often in the output; 0: in neither prompt nor output. Only entries of the history are touched.
  scratch.counts.resize(std::max(scratch.counts.size(), logits.size()), 0);
  for (size_t i = 0; i < h.tokens.size(); ++i) {
    const auto t = static_cast<size_t>(h.tokens[i]);
    if (t >= logits.size()) continue;
    scratch.counts[t] = std::max(scratch.counts[t], 1) + (static_cast<int64_t>(i) >= h.prompt_length ? 1 : 0);
  }
  for (int32_t token : h.tokens) {
    const auto t = static_cast<size_t>(token);
    if (t >= logits.size() || scratch.counts[t] == 0) continue;
    const int32_t count = std::exchange(scratch.counts[t], 0) - 1;
    logits[t] = logits[t] > 0 ? logits[t] / o.repetition_penalty : logits[t] * o.repetition_penalty;
    if (count > 0) logits[t] -= o.presence_penalty + o.frequency_penalty * static_cast<float>(count);
  }
}

// For each place before the end, how many tokens up to it equal those up to the end: the Z-function of the reversed
// history, so one pass whatever it repeats.
void apply_dry(std::span<float> logits, const DryOptions& dry, std::span<const int32_t> tokens,
               SamplerScratch& scratch) {
  if (dry.multiplier <= 0.0f || tokens.size() < 2) return;
  if (dry.range > 0 && static_cast<size_t>(dry.range) < tokens.size())
    tokens = tokens.last(static_cast<size_t>(dry.range));
  auto is_breaker = [&](int32_t token) {
    return std::find(dry.breakers.begin(), dry.breakers.end(), token) != dry.breakers.end();
  };
  const size_t n = tokens.size();
  size_t reach = 0;  // a repetition cannot be longer than the tokens behind the last breaker
  while (reach < n && !is_breaker(tokens[n - 1 - reach])) ++reach;
  std::vector<int32_t>& z = scratch.order;
  z.assign(n, 0);
  auto reversed = [&](size_t i) { return tokens[n - 1 - i]; };
  std::unordered_map<int32_t, int32_t> longest;  // of each token that would continue a repetition
  for (size_t i = 1, left = 0, right = 0; i < n; ++i) {
    size_t length = i < right ? std::min<size_t>(right - i, static_cast<size_t>(z[i - left])) : 0;
    while (i + length < n && reversed(length) == reversed(i + length)) ++length;
    z[i] = static_cast<int32_t>(length);
    if (i + length > right) left = i, right = i + length;
    const auto used = static_cast<int32_t>(std::min(length, reach));
    if (used < dry.allowed_length) continue;
    int32_t& known = longest[reversed(i - 1)];
    known = std::max(known, used);
  }
  for (const auto& [token, length] : longest) {
    if (static_cast<size_t>(token) >= logits.size()) continue;
    const double power = std::min<double>(static_cast<double>(length - dry.allowed_length), 256);
    const double loss = static_cast<double>(dry.multiplier) * std::pow(static_cast<double>(dry.base), power);
    // Bounded, so that a logit stays a number: a token that may come is not dropped by a penalty.
    logits[static_cast<size_t>(token)] -= static_cast<float>(std::min(loss, 1e6));
  }
}

using Candidates = std::vector<std::pair<float, int32_t>>;  // (logit / temperature - the highest of these, token)

bool is_likelier(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

// Keeps the smallest beginning whose probability reaches `share` of `total`, at least one.
void keep_share(Candidates& candidates, float share, double total) {
  size_t kept = 0;
  double mass = 0;
  while (kept < candidates.size() && (kept == 0 || mass < static_cast<double>(share) * total)) {
    mass += std::exp(static_cast<double>(candidates[kept++].first));
  }
  candidates.resize(kept);
}

double sum_of(const Candidates& candidates) {
  double total = 0;
  for (const auto& c : candidates) total += std::exp(static_cast<double>(c.first));
  return total;
}

void keep_typical(Candidates& candidates, float share) {
  const double total = sum_of(candidates), log_total = std::log(total);
  double entropy = 0;
  for (const auto& c : candidates) {
    const double log_p = static_cast<double>(c.first) - log_total;
    entropy -= std::exp(log_p) * log_p;
  }
  auto distance = [&](const std::pair<float, int32_t>& c) {
    return std::abs(log_total - static_cast<double>(c.first) - entropy);
  };
  std::sort(candidates.begin(), candidates.end(), [&](const auto& a, const auto& b) {
    const double da = distance(a), db = distance(b);
    return da != db ? da < db : is_likelier(a, b);
  });
  keep_share(candidates, share, total);
  std::sort(candidates.begin(), candidates.end(), is_likelier);
}

void filter(Candidates& candidates, const SamplingOptions& o) {
  const bool is_sorted = o.top_k > 0 || o.top_p < 1.0f || o.typical_p < 1.0f;
  if (o.top_k > 0 && static_cast<size_t>(o.top_k) < candidates.size()) {
    std::partial_sort(candidates.begin(), candidates.begin() + o.top_k, candidates.end(), is_likelier);
    candidates.resize(static_cast<size_t>(o.top_k));
  } else if (is_sorted) {
    std::sort(candidates.begin(), candidates.end(), is_likelier);
  }
  if (o.typical_p < 1.0f) keep_typical(candidates, o.typical_p);
  if (o.top_p < 1.0f) keep_share(candidates, o.top_p, sum_of(candidates));
  if (o.min_p > 0.0f) {
    float best = kNever;  // typical may have dropped the likeliest
    for (const auto& c : candidates) best = std::max(best, c.first);
    const float least = best + std::log(o.min_p);
    std::erase_if(candidates, [&](const auto& c) { return c.first < least; });
  }
}

// Standard Gumbel noise of a token: -log(-log(u)), u uniform in (0, 1) of 52 bits.
double gumbel(const base::CounterRng& rng, int32_t token) {
  const double u = (static_cast<double>(rng.bits64(static_cast<uint64_t>(token)) >> 12) + 0.5) * 0x1p-52;
  return -std::log(-std::log(u));
}
constexpr double kMostGumbel = 37.0;  // above -log(-log(1 - 2^-53)) = 36.74

// The token with the largest logit plus noise. The likeliest goes first: those that no noise can bring above what was
// found are not drawn for, so that a plain choice from 100,000 tokens costs a few hundred draws.
int32_t choose(const Candidates& candidates, uint64_t seed, uint64_t position) {
  const base::CounterRng rng{seed, base::mix_bits(0x5a3b1e, position)};
  auto better = [](double a, int32_t token, double b, int32_t other) { return a > b || (a == b && token < other); };
  const auto first = std::min_element(candidates.begin(), candidates.end(), is_likelier);
  int32_t best = first->second;
  double score = static_cast<double>(first->first) + gumbel(rng, best);
  for (const auto& [logit, token] : candidates) {
    if (static_cast<double>(logit) + kMostGumbel < score || token == first->second) continue;
    const double own = static_cast<double>(logit) + gumbel(rng, token);
    if (better(own, token, score, best)) score = own, best = token;
  }
  return best;
}

}  // namespace

void check_sampling(const SamplingOptions& o, int64_t vocab_size) {
  auto check = [](bool holds, const char* name, double value, const char* expected) {
    if (!holds) base::fail_usage("{} is {}; expected {}", name, value, expected);
  };
  check(o.temperature >= 0 && o.temperature <= 100, "temperature", o.temperature, "0 (greedy) to 100");
  check(o.top_k >= 0, "top-k", static_cast<double>(o.top_k), "0 (off) or more");
  check(o.top_p > 0 && o.top_p <= 1, "top-p", o.top_p, "above 0, up to 1");
  check(o.min_p >= 0 && o.min_p <= 1, "min-p", o.min_p, "0 to 1");
  check(o.typical_p > 0 && o.typical_p <= 1, "typical-p", o.typical_p, "above 0, up to 1");
  check(o.repetition_penalty > 0 && o.repetition_penalty <= 100, "repetition penalty", o.repetition_penalty,
        "above 0, up to 100 (1 is off)");
  check(std::abs(o.presence_penalty) <= 100, "presence penalty", o.presence_penalty, "-100 to 100");
  check(std::abs(o.frequency_penalty) <= 100, "frequency penalty", o.frequency_penalty, "-100 to 100");
  check(o.dry.multiplier >= 0 && o.dry.multiplier <= 100, "DRY multiplier", o.dry.multiplier, "0 (off) to 100");
  check(o.dry.base >= 1 && o.dry.base <= 10, "DRY base", o.dry.base, "1 to 10");
  check(o.dry.allowed_length >= 1, "DRY allowed length", static_cast<double>(o.dry.allowed_length), "1 or more");
  check(o.dry.range >= 0, "DRY range", static_cast<double>(o.dry.range), "0 (all) or more");
  check_tokens(o.dry.breakers, "a DRY breaker", vocab_size);
  check_tokens(o.allowed_tokens, "an allowed token", vocab_size);
  for (const auto& [token, bias] : o.logit_bias) {
    check_tokens(std::span(&token, 1), "a logit bias", vocab_size);
    check(std::abs(bias) <= 1000, "a logit bias", bias, "-1000 to 1000");
  }
  for (const std::vector<int32_t>& word : o.bad_words) {
    if (word.empty()) base::fail_usage("a bad word has no tokens");
    check_tokens(word, "a bad word", vocab_size);
  }
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position,
                     const SamplingHistory& history, SamplerScratch& scratch) {
  size_t best = find_best(logits);
  if (changes_logits(options, history)) {
    scratch.logits.assign(logits.begin(), logits.end());
    for (const auto& [token, bias] : options.logit_bias) {
      if (static_cast<size_t>(token) < logits.size()) scratch.logits[static_cast<size_t>(token)] += bias;
    }
    drop_tokens(scratch.logits, options, history, scratch);
    apply_penalties(scratch.logits, options, history, scratch);
    apply_dry(scratch.logits, options.dry, history.tokens, scratch);
    logits = scratch.logits;
    best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (logits[best] == kNever) return -1;
  }
  if (options.temperature == 0.0f || options.top_k == 1) return static_cast<int32_t>(best);
  Candidates& candidates = scratch.candidates;
  candidates.clear();
  const float top = logits[best], scale = 1.0f / options.temperature;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] != kNever) candidates.emplace_back((logits[i] - top) * scale, static_cast<int32_t>(i));
  }
  filter(candidates, options);
  return choose(candidates, options.seed, position);
}

int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position) {
  SamplerScratch scratch;
  return sample_token(logits, options, position, {}, scratch);
}

}  // namespace sinter::engine
