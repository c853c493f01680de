#include "engine/transformer_runner.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/choices.h"

namespace sinter::engine {
namespace {

// Logits of one call take at most about this much.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

ops::Context make_context(core::DeviceRuntime& device) {
  return {kernels::kernels_for(device.allocator().device()), device.stream(), device.allocator(), nullptr};
}

}  // namespace

void StepBatch::clear() {
  tokens.tokens.clear();
  tokens.positions.clear();
  tokens.sequence_of.clear();
  tokens.offsets.assign(1, 0);
  tokens.contexts.clear();
  slots.clear();
  tables.clear();
  rows.clear();
  table_width = 0;
}

TransformerRunner::TransformerRunner(const models::Transformer& transformer, bool fixed_shapes)
    : transformer_(transformer),
      device_(core::runtime(transformer.store().options().device)),
      fixed_shapes_(fixed_shapes) {
  const spec::ModelSpec& spec = transformer.spec();
  limits_.vocab_size = spec.vocab_size;
  limits_.max_positions = spec.learned_positions ? spec.max_positions : 0;
  limits_.context_hint = spec.max_positions;
  limits_.window = spec.num_layers > 0 ? spec.window_of(0) : 0;
  for (int64_t l = 1; l < spec.num_layers; ++l) {
    const int64_t window = spec.window_of(l);
    limits_.window = window == 0 || limits_.window == 0 ? 0 : std::max(limits_.window, window);
  }
  if (spec.rope.kind == spec::RopeKind::dynamic) limits_.whole_beyond = spec.rope.original_max_positions;
  max_rows_ = std::clamp<int64_t>(kLogitBytes / (4 * spec.vocab_size), 16, 1024);
}

int64_t TransformerRunner::bytes_per_block(int64_t block_size) const {
  const spec::ModelSpec& spec = transformer_.spec();
  const auto element = static_cast<int64_t>(base::dtype_bytes(transformer_.store().options().compute));
  return 2 * spec.num_layers * block_size * spec.num_kv_heads * spec.head_dim * element;
}

int64_t TransformerRunner::free_bytes() const { return static_cast<int64_t>(device_.free_memory_bytes()); }

void TransformerRunner::take_cache(int64_t num_blocks, int64_t block_size) {
  const spec::ModelSpec& spec = transformer_.spec();
  const core::DType dtype = transformer_.store().options().compute;
  cache_ = {.block_size = block_size, .num_blocks = num_blocks, .keys = {}, .values = {}};
  for (int64_t l = 0; l < spec.num_layers; ++l) {
    core::Shape shape{num_blocks, block_size, spec.num_kv_heads, spec.head_dim};
    cache_.keys.emplace_back(device_.allocator(), shape, dtype);
    cache_.values.emplace_back(device_.allocator(), shape, dtype);
  }
}

void TransformerRunner::release_cache() { cache_ = {}; }

core::BatchShape TransformerRunner::shape_for(const StepBatch& batch) const {
  core::BatchShape shape{.tokens = batch.tokens.num_tokens(),
                         .sequences = batch.tokens.num_sequences(),
                         .table_width = batch.table_width,
                         .rows = static_cast<int64_t>(batch.rows.size())};
  if (!fixed_shapes_) return shape;
  // Padding tokens are real work in a long prefill: finer steps there.
  shape.tokens = shape.tokens > 256 ? (shape.tokens + 127) / 128 * 128 : core::coarse_bound(shape.tokens);
  shape.sequences = core::coarse_bound(shape.sequences);
  shape.table_width = core::coarse_bound(shape.table_width);
  if (shape.rows > 0) shape.rows = core::coarse_bound(shape.rows);
  return shape;
}

void TransformerRunner::forward(const StepBatch& batch) {
  const kernels::WithoutMeasuring without_measuring;  // hardly two steps have as many rows
  const core::BatchShape shape = shape_for(batch);
  if (!batch_ || batch_->most().num_words() < shape.num_words()) {
    core::BatchShape most = shape;  // room to grow, so that it seldom happens
    most.tokens *= 2, most.sequences *= 2, most.table_width *= 2, most.rows *= 2;
    device_.synchronize(device_.stream());
    batch_ = std::make_unique<core::DeviceBatch>(device_.allocator(), most);
  }
  // A fixed shape has fixed bounds, whatever the sequences' lengths.
  const core::DeviceBatch::Lengths lengths = {.max_query = fixed_shapes_ ? shape.tokens : 0,
                                              .max_context = fixed_shapes_ ? shape.table_width * cache_.block_size : 0};
  const core::RaggedBatch& ragged = batch_->load(
      batch.tokens, shape, lengths,
      {.slots = batch.slots, .tables = batch.tables, .table_width = batch.table_width, .rows = batch.rows});
  batch_->kv().cache = &cache_;
  const ops::Context context = make_context(device_);
  hidden_ = {};
  const core::Tensor hidden = transformer_.forward(context, ragged, {}).value;  // (T, C)
  if (shape.rows > 0) {
    hidden_ = context.make({shape.rows, hidden.size(1)}, hidden.dtype());
    // Picking rows is an embedding lookup with the hidden states as the table.
    context.kernels.embedding_forward(context.stream, {.tokens = batch_->rows(), .table = hidden, .y = hidden_});
  }
  device_.synchronize(device_.stream());
}

std::span<const float> TransformerRunner::logits(int64_t first, int64_t count) {
  const kernels::WithoutMeasuring without_measuring;
  logits_ = {};
  logits_ = transformer_.logits(make_context(device_), hidden_.slice(first, count));
  return core::host_floats(logits_, host_logits_);
}

void TransformerRunner::logprobs(std::span<const int32_t> targets, std::span<float> out) {
  const ops::Context context = make_context(device_);
  const auto count = static_cast<int64_t>(targets.size());
  const core::Tensor losses = context.make({count}, core::DType::f32);
  // Training's loss reads logits in the compute format: rounded like them, these give the same bits.
  core::Tensor rounded = logits_;
  if (hidden_.dtype() != logits_.dtype()) {
    rounded = context.make(logits_.shape(), hidden_.dtype());
    context.kernels.axpby(context.stream, {.x = logits_, .y = rounded});
  }
  context.kernels.cross_entropy(
      context.stream,
      {.logits = rounded,
       .targets = core::make_tensor(device_.allocator(), {count}, std::vector<int32_t>(targets.begin(), targets.end())),
       .losses = losses});
  const std::vector<float> values = core::to_host<float>(losses);
  std::transform(values.begin(), values.end(), out.begin(), [](float loss) { return -loss; });
}

}  // namespace sinter::engine
