#include "tune/run/distillation.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/threads.h"
#include "core/host_copy.h"
#include "tune/objectives/policy.h"

namespace sinter::tune {
namespace {

using core::Tensor;

constexpr int64_t kChunkRows = 256;  // whose logits exist at once

// The k largest of a row of logits, and their log-probabilities.
void take_likeliest(const float* logits, int64_t vocab, std::vector<int32_t>& tokens, std::vector<double>& logprobs) {
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto k = static_cast<ptrdiff_t>(tokens.size());
  std::partial_sort(order.begin(), order.begin() + k, order.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  double sum = 0;
  const double largest = logits[order[0]];
  for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[v] - largest);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = order[i];
    logprobs[i] = logits[order[i]] - largest - std::log(sum);
  }
}

}  // namespace

void Distillation::open_teacher(const models::Transformer& student) {
  const models::StoreOptions& options = student.store().options();
  teacher_ = models::open_model(options_.teacher, {options.device, options.compute});
  SINTER_CHECK(teacher_.spec.vocab_size == student.spec().vocab_size,
               "tune.teacher '{}' has {} tokens; the model has {}: both must have the same", options_.teacher,
               teacher_.spec.vocab_size, student.spec().vocab_size);
  SINTER_CHECK(options_.top_k < teacher_.spec.vocab_size, "tune.teacher_top_k is {}, of {} tokens", options_.top_k,
               teacher_.spec.vocab_size);
}

Distillation::Likeliest Distillation::ask_teacher(const data::MicroBatch& host) const {
  const models::Transformer& teacher = *teacher_.transformer;
  core::DeviceRuntime& device = core::runtime(teacher.store().options().device);
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  const ops::Context context{kernels::kernels_for(device.stream().device), device.stream(), device.allocator()};
  const Tensor hidden = teacher.forward(context, batch, {}).value;
  const auto T = static_cast<size_t>(host.num_tokens()), K = static_cast<size_t>(options_.top_k);
  const int64_t vocab = teacher.spec().vocab_size;
  Likeliest out{std::vector(K, std::vector<int32_t>(T, -1)), std::vector(K, std::vector<double>(T, 0.0))};
  for (int64_t first = 0; first < host.num_tokens(); first += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, host.num_tokens() - first);
    const std::vector<float> logits = core::to_host<float>(teacher.logits(context, hidden.slice(first, rows)));
    base::parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> tokens(K);
      std::vector<double> logprobs(K);
      for (int64_t r = begin; r < end; ++r) {
        const auto t = static_cast<size_t>(first + r);
        if (host.targets[t] < 0) continue;
        take_likeliest(logits.data() + r * vocab, vocab, tokens, logprobs);
        for (size_t k = 0; k < K; ++k) out.tokens[k][t] = tokens[k], out.logprobs[k][t] = logprobs[k];
      }
    });
  }
  return out;
}

void Distillation::forward(const train::ObjectivePass& pass) {
  const models::LossPlaces& places = pass.places;
  SINTER_CHECK(static_cast<bool>(places.weights), "[distillation] the run's batches have no room for weights");
  const bool learns = pass.context.is_recording();
  const auto K = static_cast<size_t>(options_.top_k), T = static_cast<size_t>(pass.batch.num_tokens);
  core::DeviceRuntime& device = core::runtime(pass.context.stream.device);
  const autograd::Variable hidden =
      pass.transformer.forward(pass.context, pass.batch, pass.dropout, nullptr, places.balance);
  const Tensor targets = pass.context.make({pass.batch.num_tokens}, core::DType::i32);
  if (pass.host && !teacher_.transformer) open_teacher(pass.transformer);
  const Likeliest teacher = pass.host ? ask_teacher(*pass.host) : Likeliest{};
  ops::Context looking = pass.context;
  looking.tape = nullptr;
  const models::LossPlaces plain{.scale = places.scale, .losses = places.losses};
  auto put = [&](const Tensor& to, const void* from) {
    device.copy_to_device(to.raw(), from, to.bytes(), device.stream());
    device.synchronize(device.stream());
  };
  // The student's log-probabilities of the teacher's tokens, and of the data's.
  std::vector<std::vector<float>> student(K), weights(K + 1, std::vector<float>(T, 0.0f));
  for (size_t k = 0; k < K; ++k) {
    if (pass.host) put(targets, teacher.tokens[k].data());
    pass.transformer.head_loss(looking, {hidden.value, nullptr, nullptr}, targets, plain);
    if (pass.host) student[k] = core::to_host<float>(places.losses);
  }
  pass.transformer.head_loss(looking, {hidden.value, nullptr, nullptr}, pass.batch.targets, plain);
  std::vector<float> losses(T, 0.0f);
  if (pass.host) {
    const std::vector<float> own = core::to_host<float>(places.losses);
    std::vector<double> p(K), q(K), slopes(K);
    for (size_t t = 0; t < T; ++t) {
      const double weight = pass.host->weights.empty() ? 1 : static_cast<double>(pass.host->weights[t]);
      if (pass.host->targets[t] < 0 || weight == 0) continue;
      for (size_t k = 0; k < K; ++k) p[k] = teacher.logprobs[k][t], q[k] = -static_cast<double>(student[k][t]);
      const double divergence = distillation_loss(p, q, slopes), share = options_.weight;
      losses[t] = static_cast<float>(weight * (share * divergence + (1 - share) * static_cast<double>(own[t])));
      for (size_t k = 0; k < K; ++k) weights[k][t] = static_cast<float>(-slopes[k] * share * weight);
      weights[K][t] = static_cast<float>((1 - share) * weight);
      if (!learns) continue;
      divergence_ += weight * divergence;
      cross_entropy_ += weight * static_cast<double>(own[t]);
      tokens_ += weight;
    }
  }
  for (size_t k = 0; learns && k <= K; ++k) {
    if (pass.host) put(places.weights, weights[k].data());
    if (pass.host && k < K) put(targets, teacher.tokens[k].data());
    const models::LossPlaces weighted{.scale = places.scale, .losses = places.losses, .weights = places.weights};
    pass.transformer.head_loss(pass.context, hidden, k < K ? targets : pass.batch.targets, weighted);
    if (pass.host) device.synchronize(device.stream());
  }
  if (pass.host) put(places.losses, losses.data());
}

double Distillation::count(const data::MicroBatch& batch) const {
  if (batch.weights.empty()) return static_cast<double>(batch.num_supervised);
  return std::accumulate(batch.weights.begin(), batch.weights.end(), 0.0);
}

std::vector<train::Objective::Metric> Distillation::take_metrics() {
  const double tokens = std::exchange(tokens_, 0);
  return {{"divergence", std::exchange(divergence_, 0), tokens},
          {"cross_entropy", std::exchange(cross_entropy_, 0), tokens}};
}

}  // namespace sinter::tune
