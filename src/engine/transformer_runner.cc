#include "engine/transformer_runner.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "core/kv_format.h"
#include "kernels/choices.h"
#include "kernels/trace.h"

namespace sinter::engine {
namespace {

// Logits of one call take at most about this much.
constexpr int64_t kLogitBytes = int64_t{64} << 20;

constexpr int64_t kMostDecodeQueries = 8, kPieceTokens = 256;  // as GPUs' attention of few queries has them
constexpr int64_t kMostGraphTokens = 1024;                     // of a step that is worth a graph
constexpr std::chrono::seconds kSavePause{30};
constexpr int64_t kWordsPerChoice = sizeof(kernels::SampleRow) / sizeof(int32_t);

// The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not below n.
int64_t small_bound(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power > 2 && power / 4 * 3 >= n ? power / 4 * 3 : power;
}

// Losses of targets by training's kernel, which reads logits in the compute format: rounded like them, these give the
// same bits.
core::Tensor losses_of(const ops::Context& context, const core::Tensor& logits, core::DType compute,
                       const core::Tensor& targets) {
  core::Tensor rounded = logits;
  if (compute != logits.dtype()) {
    rounded = context.make(logits.shape(), compute);
    context.kernels.axpby(context.stream, {.x = logits, .y = rounded});
  }
  core::Tensor losses = context.make({logits.rows()}, core::DType::f32);
  context.kernels.cross_entropy(context.stream, {.logits = rounded, .targets = targets, .losses = losses});
  return losses;
}

double bytes_of(const core::WeightView& weight) {
  if (weight.is_plain()) return static_cast<double>(weight.data.bytes());
  double bytes = 0;
  for (const core::WeightPart& part : weight.blocks->parts)
    bytes += static_cast<double>(part.data.bytes() + (part.scales ? part.scales.bytes() : 0));
  return bytes;
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
  choices.clear();
  edits.clear();
  masks.clear();
  wants_logprobs = false;
  table_width = 0;
}

// Work of one kind of step: its place in memory and its graph.
struct TransformerRunner::Step {
  Kind kind{};
  core::PlannedArena* arena = nullptr;
  core::RepeatedWork work;
  core::Tensor hidden;           // (rows, C)
  core::Tensor ranks, logprobs;  // (rows) i32, f32: of the choices; their tokens are in fed_
};

TransformerRunner::TransformerRunner(const models::Transformer& transformer, const RunnerOptions& options)
    : transformer_(transformer),
      device_(core::runtime(transformer.store().options().device)),
      options_(options),
      is_gpu_(device_.allocator().device().kind == core::DeviceKind::cuda),
      memory_(device_.allocator()) {
  const spec::ModelSpec& spec = transformer.spec();
  for (int64_t layer : options.kv_plain_layers) {
    if (layer < 0 || layer >= spec.num_layers)
      base::fail_usage("keys and values of layer {} are to keep their format; the model has layers 0 to {}", layer,
                       spec.num_layers - 1);
  }
  limits_.vocab_size = spec.vocab_size;
  limits_.max_positions = spec.learned_positions ? spec.max_positions : 0;
  limits_.context_hint = spec.max_positions;
  limits_.window = spec.num_layers > 0 ? spec.window_of(0) : 0;
  for (int64_t l = 1; l < spec.num_layers; ++l) {
    const int64_t window = spec.window_of(l);
    limits_.window = window == 0 || limits_.window == 0 ? 0 : std::max(limits_.window, window);
  }
  if (spec.rope.kind == spec::RopeKind::dynamic) limits_.whole_beyond = spec.rope.original_max_positions;
  if (options.keeps_choices) kept_choices_.emplace(device_.allocator().device());
  count_weights();
  max_rows_ = std::clamp<int64_t>(kLogitBytes / (4 * spec.vocab_size), 16, 1024);
}

void TransformerRunner::count_weights() {
  const spec::ModelSpec& spec = transformer_.spec();
  for (const models::ParameterStore::Slot& slot : transformer_.store().slots()) {
    const double bytes = bytes_of(slot.parameter.weight);
    switch (slot.info.role) {
      case spec::ParameterRole::embedding:
        row_bytes_ += bytes / static_cast<double>(slot.info.shape[0]);
        if (spec.tied_head) head_bytes_ += bytes;
        break;
      case spec::ParameterRole::position:
        row_bytes_ += bytes / static_cast<double>(slot.info.shape[0]);
        break;
      case spec::ParameterRole::head:
        head_bytes_ += bytes;
        break;
      case spec::ParameterRole::expert_matrix:
        expert_bytes_ += bytes;
        break;
      default:
        dense_bytes_ += bytes;
    }
  }
}

double TransformerRunner::weight_bytes(int64_t tokens, int64_t rows) const {
  const spec::MoeSpec& moe = transformer_.spec().moe;
  double bytes = dense_bytes_ + row_bytes_ * static_cast<double>(tokens) + (rows > 0 ? head_bytes_ : 0);
  if (moe.num_experts > 0) {
    const double share = static_cast<double>(moe.experts_per_token) / static_cast<double>(moe.num_experts);
    bytes += expert_bytes_ * (1 - std::pow(1 - share, static_cast<double>(tokens)));
  }
  return bytes;
}

core::Allocator& TransformerRunner::scratch() {
  if (is_gpu_) return device_.allocator();
  return memory_;
}

ops::Context TransformerRunner::context() {
  return {kernels::kernels_for(scratch().device()), device_.stream(), scratch(), nullptr};
}

TransformerRunner::~TransformerRunner() {
  if (is_gpu_) device_.synchronize(device_.stream());
}

core::KvCacheShape TransformerRunner::cache_shape(int64_t num_blocks, int64_t block_size) const {
  const spec::ModelSpec& spec = transformer_.spec();
  const core::DType plain = transformer_.store().options().compute;
  const core::DType format = options_.kv_format == core::DType::f32 ? plain : options_.kv_format;
  SINTER_CHECK(!is_gpu_ || format != core::DType::u8,
               "a KV cache in {} is for the CPU; on a GPU take int8, fp8 or the compute format",
               core::kv_format_name(format));
  std::vector formats(static_cast<size_t>(spec.num_layers), format);
  for (int64_t layer : options_.kv_plain_layers) formats[static_cast<size_t>(layer)] = plain;
  return {.num_blocks = num_blocks,
          .block_size = block_size,
          .num_kv_heads = spec.num_kv_heads,
          .head_dim = spec.head_dim,
          .formats = std::move(formats),
          .layer_places = {},
          .heads_first = is_gpu_};
}

int64_t TransformerRunner::bytes_per_block(int64_t block_size) const {
  return cache_shape(1, block_size).block_bytes();
}

int64_t TransformerRunner::free_bytes() const { return static_cast<int64_t>(device_.free_memory_bytes()); }

void TransformerRunner::take_cache(int64_t num_blocks, int64_t block_size) {
  forget_steps();
  cache_ = core::KvCache(device_.allocator(), cache_shape(num_blocks, block_size));
}

void TransformerRunner::release_cache() {
  forget_steps();
  memory_.trim();
  cache_ = {};
}

// Graphs hold addresses: where these change all are made anew.
void TransformerRunner::forget_steps() {
  if (steps_.empty()) return;
  device_.synchronize(device_.stream());
  steps_.clear();
  last_ = nullptr;
  arenas_.reset();
}

TransformerRunner::Kind TransformerRunner::kind_of(const StepBatch& batch) const {
  const core::HostBatch& host = batch.tokens;
  Kind kind{.tokens = host.num_tokens(),
            .sequences = host.num_sequences(),
            .table_width = batch.table_width,
            .rows = static_cast<int64_t>(batch.rows.size()),
            .max_query = 0,
            .vocab_limit = batch.vocab_limit,
            .chooses = chooses() && !batch.choices.empty(),
            .has_masks = !batch.masks.empty(),
            .has_edits = !batch.edits.empty(),
            .wants_logprobs = batch.wants_logprobs};
  if (!is_gpu_ && !options_.fixed_shapes) return kind;
  int64_t longest = 1;
  for (size_t s = 0; s + 1 < host.offsets.size(); ++s)
    longest = std::max<int64_t>(longest, host.offsets[s + 1] - host.offsets[s]);
  const bool is_decode = longest == 1;
  kind.max_query = longest <= kMostDecodeQueries ? (is_decode ? 1 : kMostDecodeQueries) : 0;
  kind.sequences = small_bound(kind.sequences);
  if (kind.rows > 0) kind.rows = small_bound(kind.rows);
  // Padding tokens are real work in a long prefill: finer steps there.
  kind.tokens = kind.tokens > 256 ? (kind.tokens + 127) / 128 * 128 : small_bound(kind.tokens);
  if (is_decode) kind.tokens = kind.rows = kind.sequences;
  if (kind.max_query == 0) kind.max_query = kind.tokens;
  // Contexts in steps of the pieces that decoding cuts them into.
  const int64_t per_piece = std::max<int64_t>(1, kPieceTokens / cache_.block_size());
  kind.table_width = small_bound((kind.table_width + per_piece - 1) / per_piece) * per_piece;
  return kind;
}

core::BatchShape TransformerRunner::shape_of(const Kind& kind) const {
  return {.tokens = kind.tokens,
          .sequences = kind.sequences,
          .table_width = kind.table_width,
          .rows = kind.rows,
          .extra_words = kind.chooses ? kind.rows * kWordsPerChoice : 0};
}

// Room on the device for a batch and for what its choices need beside it.
void TransformerRunner::make_room(const core::BatchShape& shape, const StepBatch& batch) {
  if (!batch_ || batch_->most().num_words() < shape.num_words()) {
    core::BatchShape most = shape;  // room to grow, so that it seldom happens
    most.tokens *= 2, most.sequences *= 2, most.table_width *= 2, most.rows *= 2, most.extra_words *= 2;
    forget_steps();
    device_.synchronize(device_.stream());
    batch_ = std::make_unique<core::DeviceBatch>(device_.allocator(), most);
  }
  auto grow = [&](core::Tensor& room, size_t needed_bytes) {
    if (room && room.bytes() >= needed_bytes) return;
    forget_steps();
    device_.synchronize(device_.stream());
    room = {};
    room = core::Tensor(device_.allocator(), {static_cast<int64_t>(std::max<size_t>(2 * needed_bytes, 65536))},
                        core::DType::u8);
  };
  if (!batch.edits.empty()) grow(edits_, batch.edits.size() * sizeof(kernels::LogitEdit));
  if (!batch.masks.empty()) grow(masks_, batch.masks.size() * sizeof(uint32_t));
}

void TransformerRunner::make_room_for_chosen(int64_t rows) {
  rows = std::max<int64_t>(rows, 1024);  // growing costs all graphs
  if (!fed_ || fed_.size(0) < rows) {
    forget_steps();
    core::Tensor more(device_.allocator(), {2 * rows}, core::DType::i32);
    if (fed_) device_.copy_within(more.raw(), fed_.raw(), fed_.bytes(), device_.stream());
    device_.synchronize(device_.stream());
    fed_ = std::move(more);
  }
  Arrival& arrival = arrivals_[(first_awaited_ + num_awaited_) % 2];
  if (!arrival.event) arrival.event = device_.make_event();
  if (arrival.room >= rows) return;
  arrival.room = 2 * rows;
  arrival.staging = device_.allocate_staging(static_cast<size_t>(arrival.room) * 3 * sizeof(int32_t));
}

// All a step does on the device, its results in step's tensors.
void TransformerRunner::compute(Step& step, const ops::Context& context, const core::RaggedBatch& batch) const {
  const Kind& kind = step.kind;
  const core::Tensor all = transformer_.forward(context, batch, {}).value;  // (T, C)
  step.hidden = {};
  if (kind.rows == 0) return;
  step.hidden = context.make({kind.rows, all.size(1)}, all.dtype());
  // Picking rows is an embedding lookup with the hidden states as the table.
  context.kernels.embedding_forward(context.stream, {.tokens = batch_->rows(), .table = all, .y = step.hidden});
  if (!kind.chooses) return;
  const core::Tensor logits = transformer_.logits(context, step.hidden);  // (rows, V) f32
  const core::Tensor tokens = fed_.slice(0, kind.rows);
  step.ranks = kind.wants_logprobs ? context.make({kind.rows}, core::DType::i32) : core::Tensor();
  const int64_t mask_words = (logits.size(1) + 31) / 32;
  const auto num_masks = kind.has_masks ? static_cast<int64_t>(masks_.bytes()) / 4 / mask_words : 0;
  context.kernels.sample(context.stream,
                         {.logits = logits,
                          .vocab = kind.vocab_limit,
                          .rows = batch_->extra(),
                          .edits = kind.has_edits ? edits_ : core::Tensor(),
                          .masks = kind.has_masks ? core::Tensor::view_of(masks_.raw(), {num_masks, mask_words},
                                                                          core::DType::i32, masks_.device())
                                                  : core::Tensor(),
                          .tokens = tokens,
                          .ranks = step.ranks});
  if (kind.wants_logprobs) step.logprobs = losses_of(context, logits, step.hidden.dtype(), tokens);
}

TransformerRunner::Step& TransformerRunner::step_for(const Kind& kind, const core::RaggedBatch& batch) {
  if (auto found = steps_.find(kind); found != steps_.end()) return *found->second;
  if (const auto now = std::chrono::steady_clock::now(); kept_choices_ && now - last_save_ > kSavePause) {
    kept_choices_->save();  // what the last new kinds measured; the rest at the end
    last_save_ = now;
  }
  core::RecordingAllocator recorder;
  core::DeviceRuntime& nowhere = core::runtime({core::DeviceKind::shapes, 0});
  auto step = std::make_unique<Step>();
  step->kind = kind;
  compute(*step, {*kernels::shapes_table(), nowhere.stream(), recorder, nullptr}, batch);
  step->hidden = step->ranks = step->logprobs = {};
  const core::MemoryPlan plan = core::plan_memory(recorder.trace());
  if (!arenas_ || arenas_->bytes() < plan.total_bytes) {
    forget_steps();
    arenas_.reset();
    arenas_ = std::make_unique<core::ArenaSet>(device_.allocator(), plan.total_bytes + plan.total_bytes / 4);
  }
  step->arena = &arenas_->get({static_cast<int64_t>(steps_.size()), 0}, [&] { return plan; });
  return *(steps_[kind] = std::move(step));
}

void TransformerRunner::send_choices(const StepBatch& batch) {
  auto send = [&](const core::Tensor& to, const void* from, size_t bytes) {
    if (bytes > 0) device_.copy_to_device(to.raw(), from, bytes, device_.stream());
  };
  send(edits_, batch.edits.data(), batch.edits.size() * sizeof(kernels::LogitEdit));
  send(masks_, batch.masks.data(), batch.masks.size() * sizeof(uint32_t));
}

// Puts what the last step chose where the batch asks for it. Those that go on stand in the same order in both, so there
// are few ranges.
void TransformerRunner::feed(const StepBatch& batch) {
  const std::vector<int32_t>& tokens = batch.tokens.tokens;
  auto* to = batch_->get().tokens.data<int32_t>();
  for (size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    end = begin + 1;
    if (tokens[begin] >= 0) continue;
    const auto row = static_cast<size_t>(-tokens[begin]) - 1;
    while (end < tokens.size() && tokens[end] == tokens[end - 1] - 1) ++end;
    device_.copy_within(to + begin, fed_.data<int32_t>() + row, (end - begin) * sizeof(int32_t), device_.stream());
    // A row without a token: its sequence has ended. The GPU's kernels read no row outside the table.
    for (size_t t = begin; t < end && !is_gpu_; ++t) to[t] = std::max(to[t], 0);
  }
}

// Enqueues the copies of what was chosen, if anything was, and marks when they have come.
void TransformerRunner::fetch_chosen(const Step& step, int64_t rows) {
  SINTER_CHECK(num_awaited_ < 2, "[transformer_runner] a third step before the tokens of the first were asked for");
  Arrival& arrival = arrivals_[(first_awaited_ + num_awaited_++) % 2];
  auto* to = reinterpret_cast<int32_t*>(arrival.staging.get());
  const size_t bytes = static_cast<size_t>(rows) * sizeof(int32_t);
  arrival.rows = rows;
  arrival.has_logprobs = rows > 0 && step.kind.wants_logprobs;
  if (rows > 0) device_.copy_to_host(to, fed_.raw(), bytes, device_.stream());
  if (arrival.has_logprobs) {
    device_.copy_to_host(to + arrival.room, step.ranks.raw(), bytes, device_.stream());
    device_.copy_to_host(to + 2 * arrival.room, step.logprobs.raw(), bytes, device_.stream());
  }
  arrival.event->record(device_.stream());
}

void TransformerRunner::forward(const StepBatch& batch) {
  const Kind kind = kind_of(batch);
  const core::BatchShape shape = shape_of(kind);
  make_room(shape, batch);
  const bool is_awaited = chooses() && (kind.chooses || batch.rows.empty());
  if (is_awaited) make_room_for_chosen(kind.rows);
  // A fixed shape has fixed bounds, whatever the sequences' lengths.
  const core::DeviceBatch::Lengths lengths = {
      .max_query = kind.max_query, .max_context = kind.max_query > 0 ? shape.table_width * cache_.block_size() : 0};
  const std::span<const int32_t> choices{reinterpret_cast<const int32_t*>(batch.choices.data()),
                                         kind.chooses ? batch.choices.size() * kWordsPerChoice : 0};
  const core::RaggedBatch& ragged = batch_->load(batch.tokens, shape, lengths,
                                                 {.slots = batch.slots,
                                                  .tables = batch.tables,
                                                  .table_width = batch.table_width,
                                                  .rows = batch.rows,
                                                  .extra = choices});
  batch_->kv().cache = &cache_;
  feed(batch);
  if (kind.chooses) send_choices(batch);
  if (!is_gpu_) {
    const kernels::WithoutMeasuring without_measuring;  // hardly two steps have as many rows
    Step& step = *(steps_[Kind{}] = std::make_unique<Step>());
    step.kind = kind;
    last_ = &step;
    compute(step, context(), ragged);
    if (is_awaited) fetch_chosen(step, static_cast<int64_t>(batch.rows.size()));
    return device_.synchronize(device_.stream());
  }
  Step& step = step_for(kind, ragged);
  last_ = &step;
  auto work = [&] {
    step.arena->begin_step();
    const kernels::KernelTable& table = kernels::kernels_for(device_.allocator().device());
    compute(step, {table, device_.stream(), *step.arena, nullptr}, ragged);
  };
  const bool is_small = kind.max_query <= kMostDecodeQueries && kind.tokens <= kMostGraphTokens;
  const bool may_capture =
      options_.graphs && limits_.whole_beyond == 0 && !kernels::is_tracing(device_.allocator().device());
  if (is_small && may_capture) {
    const kernels::BriefMeasuring brief;  // of the first step of this kind
    try {
      step.work.run(device_.stream(), work);
    } catch (const core::CaptureError& error) {
      base::log_warning("{}; steps go on without graphs", error.what());
      options_.graphs = false;
      work();
    }
  } else {
    const kernels::WithoutMeasuring without_measuring;
    work();
  }
  if (is_awaited) fetch_chosen(step, static_cast<int64_t>(batch.rows.size()));
}

StepModel::Chosen TransformerRunner::chosen() {
  SINTER_CHECK(num_awaited_ > 0, "[transformer_runner] no step is awaited");
  Arrival& arrival = arrivals_[first_awaited_];
  first_awaited_ ^= 1;
  --num_awaited_;
  arrival.event->wait();
  const auto* from = reinterpret_cast<const int32_t*>(arrival.staging.get());
  const auto rows = static_cast<size_t>(arrival.rows), apart = static_cast<size_t>(arrival.room);
  if (!arrival.has_logprobs) return {.tokens = {from, rows}, .logprobs = {}, .ranks = {}};
  auto* logprobs = reinterpret_cast<float*>(arrival.staging.get()) + 2 * apart;
  for (size_t i = 0; i < rows; ++i) logprobs[i] = -logprobs[i];  // what came are losses
  return {.tokens = {from, rows}, .logprobs = {logprobs, rows}, .ranks = {from + apart, rows}};
}

std::span<const float> TransformerRunner::logits(int64_t first, int64_t count) {
  const kernels::WithoutMeasuring without_measuring;
  logits_ = {};
  logits_ = transformer_.logits(context(), last_->hidden.slice(first, count));
  return core::host_floats(logits_, host_logits_);
}

std::vector<float> StepModel::hidden_state(int64_t) { base::fail("this model gives no hidden states"); }

std::vector<float> TransformerRunner::hidden_state(int64_t row) {
  return core::to_host_floats(last_->hidden.slice(row, 1));
}

void TransformerRunner::logprobs(std::span<const int32_t> targets, std::span<float> out) {
  const ops::Context own = context();
  const auto count = static_cast<int64_t>(targets.size());
  const core::Tensor losses =
      losses_of(own, logits_, last_->hidden.dtype(),
                core::make_tensor(scratch(), {count}, std::vector<int32_t>(targets.begin(), targets.end())));
  const std::vector<float> values = core::to_host<float>(losses);
  std::transform(values.begin(), values.end(), out.begin(), [](float loss) { return -loss; });
}

}  // namespace sinter::engine
