#include "eval/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/device.h"

namespace sinter::eval {
namespace {

std::vector<int32_t> sorted_experts(std::span<const float> logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return order;
}

double standard_deviation(std::span<const float> values) {
  const double count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (float v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / count);
}

double gap_between(std::span<const float> logits, int32_t higher, int32_t lower) {
  const double difference = static_cast<double>(logits[higher]) - logits[lower];
  return difference == 0 ? 0 : difference / standard_deviation(logits);
}

bool contains(const std::vector<int32_t>& experts, int32_t expert) {
  return std::find(experts.begin(), experts.end(), expert) != experts.end();
}

}  // namespace

std::vector<int32_t> choose_experts(std::span<const float> logits, int64_t k) {
  std::vector<int32_t> order = sorted_experts(logits);
  order.resize(std::min(order.size(), static_cast<size_t>(k)));
  return order;
}

RouterChoice closest_choice(std::span<const float> logits, int64_t k) {
  std::vector<int32_t> order = sorted_experts(logits);
  if (static_cast<size_t>(k) >= order.size()) return {.gap = std::numeric_limits<double>::infinity()};
  const int32_t last = order[static_cast<size_t>(k) - 1], next = order[static_cast<size_t>(k)];
  return {.chosen = last, .other = next, .gap = gap_between(logits, last, next)};
}

std::vector<RouterChoice> follow_choice(std::span<float> logits, std::span<const float> reference, int64_t k) {
  const std::vector<int32_t> here = choose_experts(logits, k), there = choose_experts(reference, k);
  std::vector<int32_t> only_here, only_there;
  for (int32_t e : here) {
    if (!contains(there, e)) only_here.push_back(e);
  }
  for (int32_t e : there) {
    if (!contains(here, e)) only_there.push_back(e);
  }
  std::vector<RouterChoice> pairs;
  for (size_t i = 0; i < only_here.size(); ++i) {  // as many on either side
    const int32_t chosen = only_here[i], other = only_there[i];
    pairs.push_back({.chosen = chosen, .other = other, .gap = gap_between(reference, other, chosen)});
    std::swap(logits[chosen], logits[other]);
  }
  return pairs;
}

void edit_rows(const core::Tensor& logits, const std::function<void(int64_t token, std::span<float> row)>& edit) {
  std::vector<float> values = core::to_host<float>(logits);
  const auto experts = static_cast<size_t>(logits.size(-1));
  for (int64_t t = 0; t < logits.rows(); ++t) {
    edit(t, std::span(values).subspan(static_cast<size_t>(t) * experts, experts));
  }
  core::DeviceRuntime& device = core::runtime(logits.device());
  device.copy_to_device(logits.raw(), values.data(), logits.bytes(), device.stream());
}

}  // namespace sinter::eval
