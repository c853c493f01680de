#include "spec/stages.h"

#include <algorithm>
#include <numeric>

namespace sinter::spec {
namespace {

// As even as possible with `last` layers at the last stage.
std::vector<LayerRange> split(int64_t num_layers, int64_t num_stages, int64_t last) {
  std::vector<LayerRange> stages;
  for (int64_t stage = 0; stage + 1 < num_stages; ++stage)
    stages.push_back(layers_of_stage(num_layers - last, num_stages - 1, stage));
  stages.push_back({num_layers - last, last});
  return stages;
}

double costliest(const std::vector<LayerRange>& stages, std::span<const double> layers, double head) {
  double most = 0;
  for (const LayerRange& range : stages) {
    const auto first = layers.begin() + range.begin;
    const bool is_last = &range == &stages.back();
    most = std::max(most, std::accumulate(first, first + range.count, is_last ? head : 0.0));
  }
  return most;
}

}  // namespace

std::vector<LayerRange> stages_by_cost(std::span<const double> layers, double head, int64_t num_stages) {
  const auto num_layers = static_cast<int64_t>(layers.size());
  int64_t last = num_layers / num_stages;  // of the even split
  std::vector<LayerRange> best = split(num_layers, num_stages, last);
  if (num_stages == 1) return best;
  double least = costliest(best, layers, head);
  while (--last >= 1) {
    std::vector<LayerRange> stages = split(num_layers, num_stages, last);
    const double most = costliest(stages, layers, head);
    if (most >= least) break;  // fewer there are more elsewhere, which cost the most by now
    best = std::move(stages), least = most;
  }
  return best;
}

std::vector<LayerRange> stages_of(const ModelSpec& spec, int64_t num_stages) {
  // Multiplications of a token.
  auto cost_of = [&](int64_t layer) {
    const int64_t matrices = spec.gated_mlp ? 3 : 2;
    const int64_t mlp = spec.is_sparse(layer)
                            ? spec.moe.num_experts + spec.moe.experts_per_token * matrices * spec.moe.ffn
                            : matrices * spec.ffn;
    return static_cast<double>(spec.hidden * (spec.qkv_width() + spec.q_width() + mlp));
  };
  std::vector<double> layers;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) layers.push_back(cost_of(layer));
  const auto extra = static_cast<double>(spec.mtp_heads);
  const double head = (1 + extra) * static_cast<double>(spec.hidden * spec.vocab_size) + extra * layers.back();
  return stages_by_cost(layers, head, num_stages);
}

}  // namespace sinter::spec
