#include "engine/generator.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>

#include "base/error.h"
#include "core/host_batch.h"
#include "kernels/choices.h"

namespace sinter::engine {
namespace {

int64_t blocks_for(int64_t tokens, int64_t block_size) { return (tokens + block_size - 1) / block_size; }

int64_t longest_of(const Request& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
}

}  // namespace

struct Generator::Sequence {
  size_t index = 0;
  const Request* request = nullptr;
  std::vector<int32_t> tokens;  // prompt and what was generated
  int64_t num_cached = 0;       // tokens whose keys are in the cache
  std::vector<int32_t> blocks;
  Result result;
  bool is_done = false;
  int64_t num_new() const { return static_cast<int64_t>(result.tokens.size()); }
};

Generator::Generator(const models::Transformer& transformer, const GeneratorOptions& options)
    : transformer_(transformer), options_(options) {
  SINTER_CHECK(options.block_size > 0 && options.step_tokens > 0 && options.max_sequences > 0,
               "[generator] block size, step tokens and sequences must be positive");
}

void Generator::check(const Request& request, const std::string& name) const {
  const spec::ModelSpec& spec = transformer_.spec();
  SINTER_CHECK(!request.prompt.empty(), "{}: the prompt has no tokens", name);
  for (int32_t token : request.prompt) {
    SINTER_CHECK(token >= 0 && token < spec.vocab_size, "{}: token {} is outside the model's vocabulary of {}", name,
                 token, spec.vocab_size);
  }
  SINTER_CHECK(request.max_new_tokens >= 0, "{}: {} new tokens asked for", name, request.max_new_tokens);
  // A position table has an end; rotary positions go on, though not as trained.
  SINTER_CHECK(!spec.learned_positions || longest_of(request) <= spec.max_positions + 1,
               "{}: {} prompt and {} new tokens, but the model has {} positions", name, request.prompt.size(),
               request.max_new_tokens, spec.max_positions);
  check_sampling(request.sampling);
}

void Generator::make_cache(const std::vector<Request>& requests) {
  int64_t longest = 1, total = 0;
  for (const Request& r : requests) {
    longest = std::max(longest, longest_of(r));
    total += blocks_for(longest_of(r), options_.block_size) * options_.block_size;
  }
  int64_t wanted =
      options_.cache_tokens > 0 ? options_.cache_tokens : std::min(total, std::max<int64_t>(2 * longest, 1 << 16));
  int64_t num_blocks = blocks_for(wanted, options_.block_size);
  SINTER_CHECK(num_blocks * options_.block_size >= longest, "the cache has room for {} tokens, but a request needs {}",
               num_blocks * options_.block_size, longest);
  if (cache_.num_blocks >= num_blocks) return;
  const spec::ModelSpec& spec = transformer_.spec();
  const models::StoreOptions& store = transformer_.store().options();
  core::Allocator& memory = core::runtime(store.device).allocator();
  cache_ = {.block_size = options_.block_size, .num_blocks = num_blocks, .keys = {}, .values = {}};
  for (int64_t l = 0; l < spec.num_layers; ++l) {
    core::Shape shape{num_blocks, options_.block_size, spec.num_kv_heads, spec.head_dim};
    cache_.keys.emplace_back(memory, shape, store.compute);
    cache_.values.emplace_back(memory, shape, store.compute);
  }
}

// With dynamic RoPE every token past the trained length changes all rotations, so the cached keys are of no use there.
int64_t Generator::share_of(const Sequence& s, int64_t budget) const {
  const spec::ModelSpec& spec = transformer_.spec();
  const auto length = static_cast<int64_t>(s.tokens.size());
  if (spec.rope.kind == spec::RopeKind::dynamic && length > spec.rope.original_max_positions) return length;
  return std::min(length - s.num_cached, budget);
}

std::vector<Result> Generator::run(const std::vector<Request>& requests, const OnToken& on_token,
                                   const OnResult& on_result) {
  if (requests.empty()) return {};
  for (size_t i = 0; i < requests.size(); ++i) check(requests[i], fmt::format("request {}", i));
  make_cache(requests);
  auto start = std::chrono::steady_clock::now();
  BlockPool pool(cache_.num_blocks);
  std::deque<size_t> waiting;
  for (size_t i = 0; i < requests.size(); ++i) waiting.push_back(i);
  std::vector<Result> results(requests.size());
  std::vector<Sequence> running;
  while (!waiting.empty() || !running.empty()) {
    while (!waiting.empty() && static_cast<int64_t>(running.size()) < options_.max_sequences) {
      const Request& request = requests[waiting.front()];
      int64_t needed = blocks_for(longest_of(request), options_.block_size);
      if (needed > pool.num_free()) break;
      Sequence sequence{.index = waiting.front(), .request = &request, .tokens = request.prompt};
      for (int64_t b = 0; b < needed; ++b) sequence.blocks.push_back(pool.allocate());
      sequence.is_done = request.max_new_tokens == 0;
      running.push_back(std::move(sequence));
      waiting.pop_front();
      stats_.prompt_tokens += static_cast<int64_t>(request.prompt.size());
    }
    run_step(running, on_token);
    for (Sequence& s : running) {
      if (!s.is_done) continue;
      for (int32_t block : s.blocks) pool.release(block);
      results[s.index] = std::move(s.result);
      if (on_result) on_result(s.index, results[s.index]);
    }
    std::erase_if(running, [](const Sequence& s) { return s.is_done; });
  }
  stats_.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return results;
}

// One forward over every running sequence's share; returns logits (sequences that reached their end, V) as floats.
core::Tensor Generator::forward(std::vector<Sequence>& running, const std::vector<int64_t>& shares) {
  const models::StoreOptions& store = transformer_.store().options();
  core::DeviceRuntime& device = core::runtime(store.device);
  const kernels::WithoutMeasuring without_measuring;  // hardly two steps have as many rows
  core::HostBatch host;
  std::vector<int32_t> slots, last_rows, tables;
  size_t max_blocks = 1;
  for (const Sequence& s : running) max_blocks = std::max(max_blocks, s.blocks.size());
  for (size_t i = 0; i < running.size(); ++i) {
    Sequence& s = running[i];
    if (shares[i] == 0) continue;
    if (shares[i] == static_cast<int64_t>(s.tokens.size())) s.num_cached = 0;
    auto begin = s.tokens.begin() + s.num_cached;
    host.add_sequence(std::vector<int32_t>(begin, begin + shares[i]), static_cast<int32_t>(s.num_cached));
    for (int64_t p = s.num_cached; p < s.num_cached + shares[i]; ++p) {
      slots.push_back(s.blocks[static_cast<size_t>(p / options_.block_size)] *
                          static_cast<int32_t>(options_.block_size) +
                      static_cast<int32_t>(p % options_.block_size));
    }
    std::vector<int32_t> row = s.blocks;
    row.resize(max_blocks, 0);
    tables.insert(tables.end(), row.begin(), row.end());
    s.num_cached += shares[i];
    if (s.num_cached == static_cast<int64_t>(s.tokens.size()))
      last_rows.push_back(static_cast<int32_t>(slots.size()) - 1);
  }
  if (last_rows.empty() && host.num_tokens() == 0) return {};
  core::RaggedBatch batch = core::upload(device.allocator(), host);
  core::KvView kv{.cache = &cache_,
                  .block_tables = core::make_tensor(device.allocator(),
                                                    {host.num_sequences(), static_cast<int64_t>(max_blocks)}, tables),
                  .slots = core::make_tensor(device.allocator(), {host.num_tokens()}, slots)};
  batch.kv = &kv;
  ops::Context context{kernels::kernels_for(store.device), device.stream(), device.allocator(), nullptr};
  core::Tensor hidden = transformer_.forward(context, batch, {}).value;  // (T, C)
  if (last_rows.empty()) {
    device.synchronize(device.stream());
    return {};
  }
  const auto count = static_cast<int64_t>(last_rows.size());
  core::Tensor rows = context.make({count, hidden.size(1)}, hidden.dtype());
  // Picking rows is an embedding lookup with the hidden states as the table.
  context.kernels.embedding_forward(
      context.stream,
      {.tokens = core::make_tensor(device.allocator(), {count}, last_rows), .table = hidden, .y = rows});
  return transformer_.logits(context, rows);
}

void Generator::run_step(std::vector<Sequence>& running, const OnToken& on_token) {
  int64_t budget = options_.step_tokens;
  std::vector<int64_t> shares;
  for (const Sequence& s : running) {
    shares.push_back(s.is_done ? 0 : share_of(s, std::max<int64_t>(budget, 0)));
    budget -= shares.back();
  }
  core::Tensor logits = forward(running, shares);
  ++stats_.num_steps;
  if (!logits) return;
  std::vector<float> values = core::to_host_floats(logits);
  const auto V = static_cast<size_t>(transformer_.spec().vocab_size);
  size_t row = 0;
  for (size_t i = 0; i < running.size(); ++i) {
    Sequence& s = running[i];
    if (shares[i] == 0 || s.num_cached != static_cast<int64_t>(s.tokens.size())) continue;
    const int64_t limit = s.request->vocab_limit;
    std::span<const float> own(values.data() + V * row++, limit > 0 ? std::min(V, static_cast<size_t>(limit)) : V);
    const int32_t token = sample_token(own, s.request->sampling, s.tokens.size());
    ++stats_.new_tokens;
    const auto& stops = s.request->stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      s.result.reason = FinishReason::stop;
      s.is_done = true;
      continue;
    }
    s.tokens.push_back(token);
    s.result.tokens.push_back(token);
    const bool goes_on = !on_token || on_token(s.index, token);
    if (!goes_on) s.result.reason = FinishReason::stop;
    s.is_done = !goes_on || s.num_new() >= s.request->max_new_tokens;
  }
}

}  // namespace sinter::engine
