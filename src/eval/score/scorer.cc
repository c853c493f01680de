#include "eval/score/scorer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/threads.h"
#include "core/host_batch.h"
#include "eval/score/log_softmax.h"
#include "kernels/choices.h"

namespace sinter::eval {
namespace {

constexpr int64_t kMaxSequences = 512;
constexpr int64_t kMaxLogits = int64_t{1} << 25;  // at once

// The tokens that go into the model: the last max_length + 1 of context and continuation, without the very last.
std::vector<int32_t> input_of(const TokenPair& request, int64_t max_length) {
  std::vector<int32_t> tokens = request.context;
  tokens.insert(tokens.end(), request.continuation.begin(), request.continuation.end());
  const auto keep = static_cast<size_t>(max_length + 1);
  if (tokens.size() > keep) tokens.erase(tokens.begin(), tokens.end() - static_cast<ptrdiff_t>(keep));
  tokens.pop_back();
  return tokens;
}

}  // namespace

// Requests with the same input, which differ at most in what is predicted.
struct Scorer::Input {
  std::vector<int32_t> tokens;
  std::vector<size_t> requests;
  int64_t first_row = 0;  // the first token whose logits some request needs
};

struct Scorer::Batch {
  core::HostBatch host;
  std::vector<int32_t> slots;
  std::vector<std::vector<int32_t>> tables;  // blocks of each sequence
  std::vector<int32_t> owned;                // blocks first written here
  struct Entry {
    const Input* input;
    int64_t cached;       // tokens before those computed here
    int64_t first_token;  // of the batch
  };
  std::vector<Entry> entries;
};

Scorer::Scorer(const models::Transformer& model, const ScorerOptions& options) : model_(model), options_(options) {
  if (options_.max_length <= 0) options_.max_length = model.spec().max_positions;
  if (model.spec().rope.kind == spec::RopeKind::dynamic) options_.shares_prefixes = false;  // keys turn with the length
}

void Scorer::make_cache() {
  if (cache_) return;
  const int64_t tokens = options_.batch_tokens + 3 * options_.max_length;
  const int64_t num_blocks = tokens / options_.block_size + 2 * kMaxSequences + 4;
  const models::StoreOptions& store = model_.store().options();
  core::Allocator& memory = core::runtime(store.device).allocator();
  cache_ = core::KvCache(memory, {.num_blocks = num_blocks,
                                  .block_size = options_.block_size,
                                  .num_kv_heads = model_.spec().num_kv_heads,
                                  .head_dim = model_.spec().head_dim,
                                  .formats = std::vector(static_cast<size_t>(model_.spec().num_layers), store.compute),
                                  .layer_places = {}});
  for (int64_t b = num_blocks; b-- > 0;) free_blocks_.push_back(static_cast<int32_t>(b));
}

std::vector<Scorer::Input> Scorer::sort_inputs(std::span<const TokenPair> requests) const {
  std::vector<Input> inputs(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const TokenPair& request = requests[i];
    SINTER_CHECK(!request.context.empty() && !request.continuation.empty(), "request {} has no tokens", i);
    SINTER_CHECK(static_cast<int64_t>(request.continuation.size()) <= options_.max_length,
                 "a continuation of {} tokens is longer than the model's {} positions", request.continuation.size(),
                 options_.max_length);
    for (const auto* tokens : {&request.context, &request.continuation}) {
      for (int32_t t : *tokens) {
        SINTER_CHECK(t >= 0 && t < model_.spec().vocab_size,
                     "token {} is outside the model's vocabulary of {}: tokenizer and model do not fit", t,
                     model_.spec().vocab_size);
      }
    }
    inputs[i].tokens = input_of(request, options_.max_length);
    inputs[i].requests = {i};
    inputs[i].first_row =
        static_cast<int64_t>(inputs[i].tokens.size()) - static_cast<int64_t>(request.continuation.size());
  }
  std::sort(inputs.begin(), inputs.end(), [](const Input& a, const Input& b) { return a.tokens < b.tokens; });
  std::vector<Input> unique;
  for (Input& input : inputs) {
    if (!unique.empty() && unique.back().tokens == input.tokens) {
      unique.back().requests.push_back(input.requests[0]);
      unique.back().first_row = std::min(unique.back().first_row, input.first_row);
    } else {
      unique.push_back(std::move(input));
    }
  }
  return unique;
}

// What the input has in common with the one before is in the cache, or will be when this batch's attention reads it:
// keys of a whole batch are written before.
void Scorer::add_input(Batch& batch, const Input& input) {
  const int64_t length = static_cast<int64_t>(input.tokens.size()), block = options_.block_size;
  int64_t shared = 0;
  if (options_.shares_prefixes) {
    const auto end = std::mismatch(input.tokens.begin(), input.tokens.end(), last_tokens_.begin(), last_tokens_.end());
    shared = std::min<int64_t>(end.first - input.tokens.begin(), input.first_row) / block * block;
  }
  std::vector<int32_t> blocks(last_blocks_.begin(), last_blocks_.begin() + shared / block);
  while (static_cast<int64_t>(blocks.size()) * block < length) {
    blocks.push_back(free_blocks_.back());
    batch.owned.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  batch.entries.push_back({&input, shared, batch.host.num_tokens()});
  batch.host.add_sequence(std::span(input.tokens).subspan(static_cast<size_t>(shared)), static_cast<int32_t>(shared));
  for (int64_t p = shared; p < length; ++p) {
    batch.slots.push_back(blocks[static_cast<size_t>(p / block)] * static_cast<int32_t>(block) +
                          static_cast<int32_t>(p % block));
  }
  last_tokens_ = input.tokens;
  last_blocks_ = blocks;
  batch.tables.push_back(std::move(blocks));
}

void Scorer::run_batch(Batch& batch, std::span<const TokenPair> requests, std::vector<Score>& scores,
                       const OnScore& on_score) {
  if (batch.entries.empty()) return;
  const models::StoreOptions& store = model_.store().options();
  core::DeviceRuntime& device = core::runtime(store.device);
  const kernels::WithoutMeasuring without_measuring;  // hardly two batches have as many rows
  size_t width = 1;
  for (const auto& table : batch.tables) width = std::max(width, table.size());
  std::vector<int32_t> tables;
  for (auto& table : batch.tables) {
    table.resize(width, 0);
    tables.insert(tables.end(), table.begin(), table.end());
  }
  core::RaggedBatch ragged = core::upload(device.allocator(), batch.host);
  core::KvView kv{.cache = &cache_,
                  .block_tables = core::make_tensor(device.allocator(),
                                                    {batch.host.num_sequences(), static_cast<int64_t>(width)}, tables),
                  .slots = core::make_tensor(device.allocator(), {batch.host.num_tokens()}, batch.slots)};
  ragged.kv = &kv;
  ops::Context context{kernels::kernels_for(store.device), device.stream(), device.allocator(), nullptr};
  const core::Tensor hidden = model_.forward(context, ragged, {}).value;  // (T, C)
  stats_.computed_tokens += batch.host.num_tokens();
  read_scores(batch, hidden, requests, scores);
  for (const Batch::Entry& entry : batch.entries) {
    for (size_t r : entry.input->requests) {
      if (on_score) on_score(r, scores[r]);
    }
  }
  // The last input's blocks stay: the next batch begins where it ended.
  for (int32_t b : batch.owned) {
    if (std::find(last_blocks_.begin(), last_blocks_.end(), b) == last_blocks_.end()) free_blocks_.push_back(b);
  }
  std::vector<int32_t> kept;
  for (int32_t b : batch.owned) {
    if (std::find(last_blocks_.begin(), last_blocks_.end(), b) != last_blocks_.end()) kept.push_back(b);
  }
  batch = {};
  batch.owned = std::move(kept);
}

// Adds every scored token's log-probability to its request.
void Scorer::read_scores(Batch& batch, const core::Tensor& hidden, std::span<const TokenPair> requests,
                         std::vector<Score>& scores) {
  const models::StoreOptions& store = model_.store().options();
  core::DeviceRuntime& device = core::runtime(store.device);
  ops::Context context{kernels::kernels_for(store.device), device.stream(), device.allocator(), nullptr};
  struct Row {
    int32_t token;  // of the batch
    const Batch::Entry* entry;
    int64_t position;
  };
  std::vector<Row> rows;
  for (const Batch::Entry& entry : batch.entries) {
    const auto length = static_cast<int64_t>(entry.input->tokens.size());
    for (int64_t p = entry.input->first_row; p < length; ++p) {
      rows.push_back({static_cast<int32_t>(entry.first_token + p - entry.cached), &entry, p});
    }
  }
  stats_.logit_rows += static_cast<int64_t>(rows.size());
  const int64_t V = model_.spec().vocab_size;
  const auto step = static_cast<size_t>(std::max<int64_t>(1, kMaxLogits / V));
  std::vector<float> scratch;
  std::vector<LogitRow> read(step);
  for (size_t begin = 0; begin < rows.size(); begin += step) {
    const size_t count = std::min(step, rows.size() - begin);
    std::vector<int32_t> places(count);
    for (size_t i = 0; i < count; ++i) places[i] = rows[begin + i].token;
    core::Tensor picked = context.make({static_cast<int64_t>(count), hidden.size(1)}, hidden.dtype());
    context.kernels.embedding_forward(
        context.stream, {.tokens = core::make_tensor(device.allocator(), {static_cast<int64_t>(count)}, places),
                         .table = hidden,
                         .y = picked});
    const core::Tensor logits = model_.logits(context, picked);  // (R, V)
    const std::span<const float> values = core::host_floats(logits, scratch);
    base::parallel_for(static_cast<int64_t>(count), 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        read[static_cast<size_t>(i)] = read_logits(values.data() + i * V, static_cast<size_t>(V));
      }
    });
    for (size_t i = 0; i < count; ++i) {
      const Row& row = rows[begin + i];
      const float* own = values.data() + static_cast<int64_t>(i) * V;
      for (size_t r : row.entry->input->requests) {
        const std::vector<int32_t>& targets = requests[r].continuation;
        const int64_t place = row.position - (static_cast<int64_t>(row.entry->input->tokens.size()) -
                                              static_cast<int64_t>(targets.size()));
        if (place < 0) continue;  // needed by another request with the same input
        const auto target = static_cast<size_t>(targets[static_cast<size_t>(place)]);
        scores[r].log_likelihood += own[target] - read[i].log_sum;
        scores[r].is_greedy = scores[r].is_greedy && own[target] == read[i].max &&
                              find_max(own, static_cast<size_t>(V), read[i].max) == target;
      }
    }
  }
}

std::vector<Score> Scorer::score(std::span<const TokenPair> requests, const OnScore& on_score) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<Score> scores(requests.size(), {0, true});
  if (requests.empty()) return scores;
  make_cache();
  const std::vector<Input> inputs = sort_inputs(requests);
  Batch batch;
  int64_t room = static_cast<int64_t>(free_blocks_.size());
  for (const Input& input : inputs) {
    const auto length = static_cast<int64_t>(input.tokens.size());
    stats_.input_tokens += length * static_cast<int64_t>(input.requests.size());
    room = static_cast<int64_t>(free_blocks_.size());
    const bool is_full = batch.host.num_tokens() >= options_.batch_tokens ||
                         static_cast<int64_t>(batch.entries.size()) >= kMaxSequences ||
                         room * options_.block_size < length + options_.block_size;
    if (is_full) run_batch(batch, requests, scores, on_score);
    add_input(batch, input);
  }
  run_batch(batch, requests, scores, on_score);
  for (int32_t b : batch.owned) free_blocks_.push_back(b);
  last_blocks_.clear();
  last_tokens_.clear();
  for (const Score& s : scores) {
    SINTER_CHECK(std::isfinite(s.log_likelihood),
                 "a log-likelihood is {}: the model's weights are damaged or its training diverged; `sinter inspect "
                 "MODEL --values` counts the weights that are NaN or infinite",
                 s.log_likelihood);
  }
  stats_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return scores;
}

}  // namespace sinter::eval
