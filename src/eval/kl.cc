#include "eval/kl.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/threads.h"
#include "core/host_batch.h"
#include "eval/score/log_softmax.h"
#include "kernels/choices.h"

namespace sinter::eval {
namespace {

// A cache in a format of its own with room for a batch, each sequence in blocks of its own.
struct BatchCache {
  BatchCache(const models::OpenModel& model, const core::HostBatch& host, core::DType format) {
    constexpr int64_t kBlock = 16;
    core::Allocator& memory = core::runtime(model.store->options().device).allocator();
    const int64_t S = host.num_sequences();
    int64_t width = 1;
    for (int32_t context : host.contexts) width = std::max<int64_t>(width, (context + kBlock - 1) / kBlock);
    cache = core::KvCache(memory, {.num_blocks = S * width,
                                   .block_size = kBlock,
                                   .num_kv_heads = model.spec.num_kv_heads,
                                   .head_dim = model.spec.head_dim,
                                   .formats = std::vector(static_cast<size_t>(model.spec.num_layers), format),
                                   .layer_places = {},
                                   .heads_first = memory.device().kind == core::DeviceKind::cuda});
    std::vector<int32_t> tables, slots;
    for (int64_t b = 0; b < S * width; ++b) tables.push_back(static_cast<int32_t>(b));
    for (int64_t t = 0; t < host.num_tokens(); ++t) {
      const auto i = static_cast<size_t>(t);
      slots.push_back(static_cast<int32_t>(host.sequence_of[i] * width * kBlock + host.positions[i]));
    }
    view = {&cache, core::make_tensor(memory, {S, width}, tables),
            core::make_tensor(memory, {host.num_tokens()}, slots)};
  }
  core::KvCache cache;
  core::KvView view;
};

// Logits of the rows that count, (R, V) as floats.
std::vector<float> logits_of(const models::OpenModel& model, const core::HostBatch& host,
                             const std::vector<int32_t>& rows, core::DType kv_format = core::DType::f32) {
  const models::StoreOptions& store = model.store->options();
  core::DeviceRuntime& device = core::runtime(store.device);
  const kernels::WithoutMeasuring without_measuring;
  core::RaggedBatch batch = core::upload(device.allocator(), host);
  std::unique_ptr<const BatchCache> cache;
  if (kv_format != core::DType::f32) {
    cache = std::make_unique<const BatchCache>(model, host, kv_format);
    batch.kv = &cache->view;
    batch.equal_lengths = false;
  }
  ops::Context context{kernels::kernels_for(store.device), device.stream(), device.allocator(), nullptr};
  const core::Tensor hidden = model.transformer->forward(context, batch, {}).value;  // (T, C)
  const auto count = static_cast<int64_t>(rows.size());
  core::Tensor picked = context.make({count, hidden.size(1)}, hidden.dtype());
  context.kernels.embedding_forward(
      context.stream, {.tokens = core::make_tensor(device.allocator(), {count}, rows), .table = hidden, .y = picked});
  return core::to_host_floats(model.transformer->logits(context, picked));
}

struct TokenComparison {
  double kl = 0, reference_loss = 0, model_loss = 0;
  bool same_top = false;
};

TokenComparison compare_row(const float* p, const float* q, size_t count, size_t target) {
  const LogitRow a = read_logits(p, count), b = read_logits(q, count);
  TokenComparison result;
  for (size_t i = 0; i < count; ++i) {
    const double log_p = p[i] - a.log_sum;
    if (log_p > -40) result.kl += std::exp(log_p) * (log_p - (q[i] - b.log_sum));
  }
  result.kl = std::max(result.kl, 0.0);
  result.reference_loss = a.log_sum - p[target];
  result.model_loss = b.log_sum - q[target];
  result.same_top = find_max(p, count, a.max) == find_max(q, count, b.max);
  return result;
}

}  // namespace

KlResult compare_predictions(const models::OpenModel& reference, const models::OpenModel& model,
                             const std::vector<int32_t>& tokens, const KlOptions& options,
                             const std::function<void(int64_t, int64_t)>& progress) {
  SINTER_CHECK(reference.spec.vocab_size == model.spec.vocab_size,
               "the reference has {} tokens and the model {}: their predictions cannot be compared",
               reference.spec.vocab_size, model.spec.vocab_size);
  const int64_t V = model.spec.vocab_size, total = static_cast<int64_t>(tokens.size());
  const int64_t length = std::min({options.context, reference.spec.max_positions, model.spec.max_positions});
  SINTER_CHECK(total > length, "the text has {} tokens; more than {}, one window, are needed", total, length);
  for (int32_t t : tokens) SINTER_CHECK(t >= 0 && t < V, "token {} is outside the models' vocabulary of {}", t, V);
  std::vector<double> kls;
  double reference_loss = 0, model_loss = 0, num_same = 0;
  const int64_t per_batch = std::max<int64_t>(1, options.batch_tokens / length);
  for (int64_t begin = 0; begin + length < total;) {
    core::HostBatch host;
    std::vector<int32_t> rows, targets;
    for (int64_t w = 0; w < per_batch && begin + length < total; ++w, begin += length) {
      const int64_t first = host.num_tokens();
      host.add_sequence(std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(length)));
      for (int64_t i = length / 2; i < length; ++i) {
        rows.push_back(static_cast<int32_t>(first + i));
        targets.push_back(tokens[static_cast<size_t>(begin + i + 1)]);
      }
    }
    const std::vector<float> p = logits_of(reference, host, rows), q = logits_of(model, host, rows, options.kv_format);
    std::vector<TokenComparison> found(rows.size());
    base::parallel_for(static_cast<int64_t>(rows.size()), 4, [&](int64_t from, int64_t to) {
      for (int64_t r = from; r < to; ++r) {
        found[static_cast<size_t>(r)] = compare_row(p.data() + r * V, q.data() + r * V, static_cast<size_t>(V),
                                                    static_cast<size_t>(targets[static_cast<size_t>(r)]));
      }
    });
    for (const TokenComparison& t : found) {
      kls.push_back(t.kl);
      reference_loss += t.reference_loss;
      model_loss += t.model_loss;
      num_same += t.same_top;
    }
    if (progress) progress(begin, total);
  }
  KlResult result;
  const auto n = static_cast<double>(kls.size());
  result.num_tokens = static_cast<int64_t>(kls.size());
  for (double kl : kls) result.mean_kl += kl / n;
  std::sort(kls.begin(), kls.end());
  result.median_kl = kls[kls.size() / 2];
  result.kl_99 = kls[static_cast<size_t>(0.99 * (n - 1))];
  result.kl_999 = kls[static_cast<size_t>(0.999 * (n - 1))];
  result.max_kl = kls.back();
  result.same_top = num_same / n;
  result.reference_perplexity = std::exp(reference_loss / n);
  result.model_perplexity = std::exp(model_loss / n);
  return result;
}

}  // namespace sinter::eval
