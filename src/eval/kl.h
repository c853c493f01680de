// How far a model's predictions are from a reference's over a text: for quantized, pruned and tuned models.
#pragma once
#include <functional>
#include <vector>

#include "models/open_model.h"

namespace sinter::eval {

struct KlOptions {
  int64_t context = 512;  // tokens of a window; each begins without context, and its first half is not counted
  int64_t batch_tokens = 2048;
  // The model (not the reference) reads keys and values from a cache in this format (core/kv_format.h); f32: from none.
  core::DType kv_format = core::DType::f32;
};

struct KlResult {
  int64_t num_tokens = 0;
  double mean_kl = 0, median_kl = 0, kl_99 = 0, kl_999 = 0, max_kl = 0;  // nats, reference against model
  double same_top = 0;  // share of tokens whose most likely token is the same
  double reference_perplexity = 0, model_perplexity = 0;
};

// Both models must have the same vocabulary. Throws base::Error where they do not, or where the text is too short.
KlResult compare_predictions(const models::OpenModel& reference, const models::OpenModel& model,
                             const std::vector<int32_t>& tokens, const KlOptions& options,
                             const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace sinter::eval
