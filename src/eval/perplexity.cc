#include "eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "core/host_batch.h"
#include "kernels/choices.h"

namespace sinter::eval {
namespace {

double per_unit(double nll, int64_t count) { return count > 0 ? std::exp(nll / static_cast<double>(count)) : NAN; }

struct Document {
  int64_t begin, end;  // tokens, its separator included
};

std::vector<Document> find_documents(const std::vector<int32_t>& tokens, int32_t separator) {
  std::vector<Document> documents;
  const auto total = static_cast<int64_t>(tokens.size());
  for (int64_t begin = 0; begin < total; begin = documents.back().end) {
    auto found = separator < 0 ? tokens.end() : std::find(tokens.begin() + begin, tokens.end(), separator);
    documents.push_back({begin, found == tokens.end() ? total : found - tokens.begin() + 1});
  }
  return documents;
}

// Adds the window that predicts tokens [begin, end) with as much context before as fits and as the document has;
// context is not supervised. No prefix token (-1): begin is not the document's first.
void add_window(core::HostBatch& batch, const std::vector<int32_t>& tokens, int32_t prefix, const Document& document,
                int64_t begin, int64_t end, int64_t context) {
  const int64_t before = document.begin - 1;  // where the prefix token stands
  int64_t first = std::max<int64_t>(end - 1 - context, prefix < 0 ? document.begin : before);
  first = std::min(first, begin - 1);
  std::vector<int32_t> window;
  for (int64_t i = first; i < end - 1; ++i) window.push_back(i == before ? prefix : tokens[static_cast<size_t>(i)]);
  batch.add_sequence(window);
  for (int64_t i = first; i < end - 1; ++i) {
    batch.targets.push_back(i + 1 >= begin ? tokens[static_cast<size_t>(i + 1)] : -1);
  }
}

double batch_loss(const models::OpenModel& model, const core::HostBatch& host) {
  core::DeviceRuntime& device = core::runtime(model.store->options().device);
  core::RaggedBatch batch = core::upload(device.allocator(), host);
  const kernels::WithoutMeasuring without_measuring;  // batches of documents hardly ever have as many rows
  ops::Context context{kernels::kernels_for(model.store->options().device), device.stream(), device.allocator(),
                       nullptr};
  models::LossPlaces places;
  places.losses = core::Tensor(device.allocator(), {batch.num_tokens}, core::DType::f32);
  model.transformer->loss(context, batch, {}, places);
  double sum = 0;
  for (float loss : core::to_host_floats(places.losses)) sum += loss;
  return sum;
}

}  // namespace

double PerplexityResult::token_perplexity() const { return per_unit(negative_log_likelihood, num_tokens); }
double PerplexityResult::word_perplexity() const { return per_unit(negative_log_likelihood, num_words); }
double PerplexityResult::byte_perplexity() const { return per_unit(negative_log_likelihood, num_bytes); }
double PerplexityResult::bits_per_byte() const {
  return negative_log_likelihood / std::log(2.0) / static_cast<double>(std::max<int64_t>(num_bytes, 1));
}

PerplexityResult perplexity(const models::OpenModel& model, const std::vector<int32_t>& tokens, int32_t prefix_token,
                            const PerplexityOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  SINTER_CHECK(!tokens.empty(), "the text has no tokens");
  SINTER_CHECK(prefix_token >= 0 || tokens.size() > 1,
               "the text has one token, and there is no BOS or EOS token it could follow");
  auto check_token = [&](int32_t t, const char* which) {
    SINTER_CHECK(t < model.spec.vocab_size && t >= 0, "token {} {} is outside the model's vocabulary of {}", t, which,
                 model.spec.vocab_size);
  };
  for (int32_t t : tokens) check_token(t, "of the text");
  if (prefix_token >= 0) check_token(prefix_token, "before the text");
  const int64_t context = options.context > 0 ? options.context : model.spec.max_positions;
  SINTER_CHECK(!model.spec.learned_positions || context <= model.spec.max_positions,
               "a context of {} was asked for, but the model has {} positions", context, model.spec.max_positions);
  SINTER_CHECK(options.stride <= context, "a stride of {} is longer than the context of {} that it moves",
               options.stride, context);
  const int64_t stride = options.stride > 0 ? options.stride : context;
  const auto total = static_cast<int64_t>(tokens.size());
  auto start = std::chrono::steady_clock::now();
  PerplexityResult result;
  const std::vector<Document> documents = find_documents(tokens, options.separator);
  result.num_documents = static_cast<int64_t>(documents.size());
  core::HostBatch batch;
  auto run_batch = [&](int64_t done) {
    if (batch.num_tokens() == 0) return;
    const double loss = batch_loss(model, batch);
    SINTER_CHECK(
        std::isfinite(loss),
        "the loss of the text is {}: the model's weights are damaged or its training diverged; `sinter inspect "
        "MODEL --values` counts the weights that are NaN or infinite",
        std::abs(loss));
    result.negative_log_likelihood += loss;
    batch = {};
    if (progress) progress(done, total);
  };
  for (const Document& document : documents) {
    const int64_t first = document.begin + (prefix_token >= 0 ? 0 : 1);  // predicted
    result.num_tokens += document.end - first;
    for (int64_t begin = first, end = 0; begin < document.end; begin = end) {
      end = std::min(document.end, begin + (begin == first ? context : stride));
      const int64_t length = std::min(context, end - document.begin);  // at most, of the window
      if (batch.num_tokens() + length > std::max(options.batch_tokens, context)) run_batch(begin);
      add_window(batch, tokens, prefix_token, document, begin, end, context);
    }
  }
  run_batch(total);
  SINTER_CHECK(result.num_tokens > 0,
               "no token follows another in any of {} documents, and there is no BOS or EOS token they could follow",
               result.num_documents);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

void count_text(const std::string& text, PerplexityResult& result) {
  result.num_bytes = static_cast<int64_t>(text.size());
  bool in_word = false;
  for (unsigned char c : text) {
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    result.num_words += !is_space && !in_word;
    in_word = !is_space;
  }
}

}  // namespace sinter::eval
