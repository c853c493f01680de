// Choosing tokens: candidates are sorted, then the filters of engine/sampler.h, then Gumbel's noise.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

struct Candidate {
  float value;  // (logit - the highest) / temperature
  int32_t token;
};
bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.value != b.value ? a.value > b.value : a.token < b.token;
}

void keep_share(std::vector<Candidate>& candidates, float share) {
  double total = 0, mass = 0;
  for (const Candidate& c : candidates) total += std::exp(static_cast<double>(c.value));
  size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || mass < static_cast<double>(share) * total)) {
    mass += std::exp(static_cast<double>(candidates[kept++].value));
  }
  candidates.resize(kept);
}

int32_t draw(const std::vector<Candidate>& candidates, const SampleRow& row) {
  const base::CounterRng rng{row.seed, row.stream};
  int32_t best = -1;
  double best_score = 0;
  for (const Candidate& c : candidates) {
    const double u = (static_cast<double>(rng.bits64(static_cast<uint64_t>(c.token)) >> 12) + 0.5) * 0x1p-52;
    const double score = static_cast<double>(c.value) - std::log(-std::log(u));
    if (best < 0 || score > best_score || (score == best_score && c.token < best)) best = c.token, best_score = score;
  }
  return best;
}

constexpr float kNever = -std::numeric_limits<float>::infinity();

int32_t choose(std::vector<float> logits, const SampleRow& row, const SampleArgs& args) {
  for (float x : logits) {
    if (std::isnan(x)) return -2;
  }
  if (!std::isfinite(*std::max_element(logits.begin(), logits.end()))) return -2;
  const auto* edits = args.edits ? args.edits.data<LogitEdit>() : nullptr;
  for (int32_t i = row.first_edit; i < row.first_edit + row.num_edits; ++i) {
    if (edits[i].token >= static_cast<int64_t>(logits.size())) continue;
    float& x = logits[static_cast<size_t>(edits[i].token)];
    x += edits[i].bias;
    x = x > 0 ? x / edits[i].divisor : x * edits[i].divisor;
    x -= edits[i].loss;
  }
  if (row.mask >= 0) {
    const uint32_t* words = args.masks.data<uint32_t>() + row.mask * args.masks.size(-1);
    for (size_t t = 0; t < logits.size(); ++t) {
      if (!((words[t / 32] >> (t % 32)) & 1u)) logits[t] = kNever;
    }
  }
  const auto best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (logits[best] == kNever) return -1;
  if (row.temperature == 0.0f || row.top_k == 1) return static_cast<int32_t>(best);
  const float top = logits[best], scale = 1.0f / row.temperature;
  std::vector<Candidate> candidates;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (logits[t] != kNever) candidates.push_back({(logits[t] - top) * scale, static_cast<int32_t>(t)});
  }
  std::sort(candidates.begin(), candidates.end(), is_likelier);
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < candidates.size())
    candidates.resize(static_cast<size_t>(row.top_k));
  if (row.top_p < 1.0f) keep_share(candidates, row.top_p);
  if (row.min_p > 0.0f) {
    const float least = std::log(row.min_p);
    std::erase_if(candidates, [&](const Candidate& c) { return c.value < least; });
  }
  return draw(candidates, row);
}

}  // namespace

void sample(Stream&, const SampleArgs& args) {
  const int64_t R = args.logits.rows(), V = args.logits.size(-1);
  for_each_index(R, [&](int64_t r) {
    const SampleRow& row = args.rows.data<SampleRow>()[r];
    const float* logits = args.logits.data<float>() + r * V;
    int32_t& token = args.tokens.data<int32_t>()[r];
    token = row.is_used ? choose({logits, logits + args.vocab}, row, args) : -1;
    if (!args.ranks) return;
    int32_t rank = 0;
    for (int64_t t = 0; token >= 0 && t < V; ++t)
      rank += logits[t] > logits[token] || (logits[t] == logits[token] && t < token);
    args.ranks.data<int32_t>()[r] = rank;
  });
}

}  // namespace sinter::kernels::reference
