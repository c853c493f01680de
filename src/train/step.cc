#include "train/step.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "base/rng.h"
#include "train/noise_scale.h"

namespace sinter::train {

using core::DType;
using core::Tensor;

namespace {

double sum_of(const Tensor& values) {
  double sum = 0;
  for (float v : core::to_host<float>(values)) sum += v;
  return sum;
}

std::unique_ptr<Copies> make_copies(const models::ParameterStore& store) {
  const models::StoreOptions& options = store.options();
  const bool is_wanted = options.division.host_weights || options.division.host_gradients;
  return is_wanted ? Copies::make(options.device) : nullptr;
}

// Lends a stretch of a block to a plan: those in one stretch never run at once.
class BorrowedBlock : public core::Allocator {
 public:
  explicit BorrowedBlock(Tensor block) : block_(std::move(block)) {}
  core::Device device() const override { return block_.device(); }
  void* allocate(size_t bytes) override {
    SINTER_CHECK(bytes <= block_.bytes(), "[arena] {} bytes borrowed from a block of {}", bytes, block_.bytes());
    return block_.raw();
  }
  void release(void*, size_t) override {}

 private:
  Tensor block_;
};

}  // namespace

// The planned memory of all passes in one block.
class StepRunner::Memory : public PipelineMemory {
 public:
  Memory(core::Allocator& allocator, const StepPlan& plan)
      : block_(allocator, {static_cast<int64_t>(std::max<size_t>(plan.arena_bytes(), 256))}, DType::u8) {
    auto lend = [&](size_t begin, size_t bytes) -> core::Allocator& {
      lent_.push_back(
          std::make_unique<BorrowedBlock>(block_.slice(static_cast<int64_t>(begin), static_cast<int64_t>(bytes))));
      return *lent_.back();
    };
    if (plan.chunks.empty()) {
      train_ = std::make_unique<core::PlannedArena>(lend(0, block_.bytes()), plan.train);
      evaluate_.push_back(std::make_unique<core::PlannedArena>(lend(0, block_.bytes()), plan.evaluate));
    }
    size_t begin = 0;
    for (const StepPlan::Chunk& chunk : plan.chunks) {
      const size_t bytes = std::max<size_t>((chunk.pass.bytes(chunk.in_flight) + 255) / 256 * 256, 256);
      passes_.push_back(std::make_unique<core::PassArena>(lend(begin, bytes), chunk.pass, chunk.in_flight));
      evaluate_.push_back(std::make_unique<core::PlannedArena>(lend(0, block_.bytes()), chunk.evaluate));
      begin += bytes;
    }
  }
  core::PlannedArena& begin_step() {
    train_->begin_step();
    return *train_;
  }
  core::PlannedArena& begin_evaluate(int64_t chunk) {
    evaluate_[static_cast<size_t>(chunk)]->begin_step();
    return *evaluate_[static_cast<size_t>(chunk)];
  }
  core::Allocator& begin_forward(int64_t chunk, int64_t slot) override {
    passes_[static_cast<size_t>(chunk)]->begin_forward(slot);
    return *passes_[static_cast<size_t>(chunk)];
  }
  void begin_backward(int64_t chunk, int64_t slot) override {
    passes_[static_cast<size_t>(chunk)]->begin_backward(slot);
  }
  void begin_weights(int64_t chunk, int64_t slot) override { passes_[static_cast<size_t>(chunk)]->begin_weights(slot); }
  size_t peak_bytes() const {
    size_t peak = train_ ? train_->stats().peak_bytes : 0;
    for (const auto& pass : passes_) peak += pass->stats().peak_bytes;
    return peak;
  }

 private:
  Tensor block_;
  std::vector<std::unique_ptr<BorrowedBlock>> lent_;
  std::unique_ptr<core::PlannedArena> train_;
  std::vector<std::unique_ptr<core::PlannedArena>> evaluate_;
  std::vector<std::unique_ptr<core::PassArena>> passes_;
};

StepRunner::StepRunner(models::Transformer& transformer, const StepShape& shape, StepPlan plan,
                       const parallel::Mesh& mesh, Objective* objective)
    : StepRunner({&transformer}, nullptr, shape, std::move(plan), mesh, objective) {}

StepRunner::StepRunner(std::vector<models::Transformer*> chunks, const parallel::Axes* axes, const StepShape& shape,
                       StepPlan plan, const parallel::Mesh& mesh, Objective* objective)
    : chunks_(std::move(chunks)),
      transformer_(*chunks_.front()),
      axes_(axes),
      shape_(shape),
      mesh_(mesh),
      objective_(objective ? *objective : modeling_),
      device_(core::runtime(transformer_.store().options().device)),
      kernels_(kernels::kernels_for(transformer_.store().options().device)),
      memory_(std::make_unique<Memory>(device_.allocator(), plan)),
      record_(device_.allocator(), {kernels::kRecordSize}, DType::f32),
      one_(device_.allocator(), {1}, DType::f32),
      copies_(make_copies(transformer_.store())),
      gradients_(transformer_.store(), mesh, axes, shape.max_micro_batches, copies_.get()),
      weights_(transformer_.store(), mesh, copies_.get()),
      trace_(mesh, transformer_.store().options().device),
      fp8_(make_fp8(shape, transformer_.store())),
      uses_graphs_(
          shape.graphs && !transformer_.store().options().division.is_on() && !objective_.reads_values() &&
          !has_dropout(transformer_.spec(), transformer_.store()) &&
          graph_obstacle(transformer_.spec(), device_.stream().device, mesh.all().is_trivial() ? 1 : 2).empty()) {
  const spec::ModelSpec& spec = transformer_.spec();
  const parallel::ContextAxis* context = axes ? axes->context() : nullptr;
  const int64_t T = local_tokens(shape_, context), A = shape_.max_micro_batches, heads = spec.mtp_heads;
  for (int64_t i = 0; i < (shape_.pipeline.pp > 1 ? A : 1); ++i)
    batches_.push_back(std::make_unique<PassBatch>(spec, shape_, device_.allocator(), context));
  // The scales and the balance loss are the step's.
  for (auto& batch : batches_) {
    const models::LossPlaces& first = batches_[0]->places();
    batch->places().scale = first.scale;
    batch->places().mtp_scale = first.mtp_scale;
    batch->places().balance = first.balance;
  }
  losses_ = Tensor(device_.allocator(), {A, T}, DType::f32);
  if (heads > 0) mtp_losses_ = Tensor(device_.allocator(), {heads * A, T}, DType::f32);
  for (const Tensor& t : {record_, losses_}) kernels_.fill(device_.stream(), {t, 0.0f});
  kernels_.fill(device_.stream(), {one_, 1.0f});
  set_hooks();
}

void StepRunner::set_hooks() {
  const models::ParameterStore& store = transformer_.store();
  for (models::Transformer* chunk : chunks_) {
    models::BlockHooks& hooks = chunk->hooks;
    const int64_t head = chunk->spec().num_layers;
    if (gradients_.has_work()) hooks.after_backward = [this](int64_t layer) { gradients_.after_backward(layer); };
    if (store.divides_gradients() || store.divides_weights()) {
      hooks.before_forward = [this, head](int64_t layer) {
        weights_.before_forward(layer);
        if (layer >= head) gradients_.begin_gradients(layer);  // the loss makes the head's at once
      };
      hooks.before_backward = [this, head](int64_t layer) {
        weights_.before_backward(layer);
        // The ends have places of their own in a pipeline, so theirs may gather over several passes.
        if (layer < 0 || layer >= head) gradients_.begin_gradients(layer);
      };
      hooks.before_gradients = [this](int64_t layer) { gradients_.begin_gradients(layer); };
    }
  }
}

StepRunner::~StepRunner() {
  for (models::Transformer* chunk : chunks_) chunk->hooks = {};
}

size_t StepRunner::arena_peak_bytes() const { return memory_->peak_bytes(); }

bool StepRunner::tells_losses() const { return mesh_.at().tensor == 0 && mesh_.at().pipeline == mesh_.layout().pp - 1; }

void StepRunner::set_scale(Tensor& scale, const Tensor& loss_scale, double value) {
  if (scale) kernels_.axpby(device_.stream(), {.x = loss_scale, .y = scale, .alpha = static_cast<float>(value)});
}

void StepRunner::set_scales(const StepCounts& counts, const Tensor& loss_scale) {
  const spec::ModelSpec& spec = transformer_.spec();
  models::LossPlaces& places = batches_[0]->places();
  set_scale(places.scale, loss_scale, 1.0 / counts.count);
  set_scale(places.mtp_scale, loss_scale,
            shape_.mtp_weight / (counts.count * static_cast<double>(std::max<int64_t>(spec.mtp_heads, 1))));
  set_scale(places.balance.scale, loss_scale, spec.moe.balance_loss / counts.micro_batches);
  if (places.balance.loss) kernels_.fill(device_.stream(), {places.balance.loss, 0.0f});
  if (mtp_losses_) kernels_.fill(device_.stream(), {mtp_losses_, 0.0f});
}

// Micro-batches are numbered over all data-parallel ranks and passes, so that neither they nor the accumulation change
// what is dropped.
models::DropoutKey StepRunner::dropout_of(size_t index, int64_t step) const {
  const auto place = static_cast<uint64_t>(static_cast<int64_t>(index) * mesh_.data().size() + mesh_.data().rank());
  return {has_dropout(transformer_.spec(), transformer_.store()), shape_.seed, static_cast<uint64_t>(step),
          place * static_cast<uint64_t>(shape_.num_tokens)};
}

void StepRunner::run_micro_batch(const data::MicroBatch& host, size_t index, int64_t step) {
  const models::DropoutKey dropout = dropout_of(index, step);
  batches_[0]->load(host, dropout.first_token);
  const core::RaggedBatch& batch = batches_[0]->get();
  if (!replay_pass(host, {index == 0, batch.equal_lengths, batch.filled_sequences}, index))
    run_pass(host, dropout, index);
  keep_losses(index);
}

// Forward and backward of the batch that is loaded, on fixed addresses: the plan's, and those of the batch.
void StepRunner::run_pass(const data::MicroBatch& host, const models::DropoutKey& dropout, size_t index) {
  const double begin = clock_seconds();
  autograd::Tape tape(shape_.recompute, shape_.host);
  const ops::Context context{kernels_, device_.stream(), memory_->begin_step(), &tape, fp8_.get()};
  objective_.forward({context, transformer_, batches_[0]->get(), &host, dropout, batches_[0]->places()});
  const double turned = clock_seconds();
  tape.backward();
  trace_.add(spec::ActionKind::forward, index, begin, turned);
  trace_.add(spec::ActionKind::backward, index, turned, clock_seconds());
}

// Runs the pass as one of its kind did before: the first of them as it is, the others as a graph. False: not done.
bool StepRunner::replay_pass(const data::MicroBatch& host, const PassKind& kind, size_t index) {
  if (!uses_graphs_ || (fp8_ && !fp8_->is_calibrated())) return false;
  models::ParameterStore& store = transformer_.store();
  try {
    passes_[kind].run(device_.stream(), [&] { run_pass(host, {}, index); });
  } catch (const core::CaptureError& error) {
    base::log_warning("{}; training goes on without", error.what());
    uses_graphs_ = false;
    if (kind.is_first) store.begin_step();  // the attempt has marked gradients that it did not compute
    return false;
  }
  for (auto& slot : store.slots()) slot.parameter.grad.was_replayed();
  return true;
}

Pipeline& StepRunner::pipeline_of(int64_t micro_batches) {
  std::unique_ptr<Pipeline>& pipeline = pipelines_[micro_batches];
  if (!pipeline) {
    spec::PipelineShape shape = shape_.pipeline;
    shape.micro_batches = micro_batches;
    pipeline = std::make_unique<Pipeline>(mesh_.pipeline(), shape, chunks_);
  }
  return *pipeline;
}

void StepRunner::run_pipeline(const std::vector<data::MicroBatch>& micro_batches, int64_t step) {
  std::vector<PipelineMicroBatch> passes;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    const models::DropoutKey dropout = dropout_of(i, step);
    batches_[i]->load(micro_batches[i], dropout.first_token);
    passes.push_back({batches_[i]->get(), dropout, batches_[i]->places(), &micro_batches[i]});
  }
  const ops::Context context{kernels_, device_.stream(), device_.allocator(), nullptr, fp8_.get()};
  Pipeline& pipeline = pipeline_of(static_cast<int64_t>(micro_batches.size()));
  pipeline.trace_into(trace_.actions());
  pipeline.run(context, shape_.recompute, passes, &objective_, memory_.get(), shape_.host);
  for (size_t i = 0; tells_losses() && i < micro_batches.size(); ++i) keep_losses(i);
}

// Moves the losses from where every pass leaves them to this micro-batch's rows.
void StepRunner::keep_losses(size_t index) {
  const models::LossPlaces& places = batches_[std::min(index, batches_.size() - 1)]->places();
  const auto row = static_cast<int64_t>(index);
  auto keep = [&](const Tensor& from, const Tensor& rows, int64_t at) {
    const Tensor to = rows.slice(at, 1);
    device_.copy_within(to.raw(), from.raw(), from.bytes(), device_.stream());
  };
  keep(places.losses, losses_, row);
  for (size_t j = 0; j < places.mtp_losses.size(); ++j)
    keep(places.mtp_losses[j], mtp_losses_, static_cast<int64_t>(j) * shape_.max_micro_batches + row);
}

int64_t StepRunner::num_replays() const {
  int64_t count = 0;
  for (const auto& [kind, pass] : passes_) count += pass.num_replays();
  return count;
}

StepCounts StepRunner::start(const std::vector<data::MicroBatch>& micro_batches, int64_t step,
                             const Tensor& loss_scale) {
  const auto count = static_cast<int64_t>(micro_batches.size());
  SINTER_CHECK(count >= 1 && count <= shape_.max_micro_batches, "[step] {} micro-batches; planned for 1 to {}", count,
               shape_.max_micro_batches);
  core::Stream& stream = device_.stream();
  const bool is_whole = !axes_ || axes_->is_whole();
  StepCounts counts;
  for (const auto& b : micro_batches) {
    counts.num_supervised += b.num_supervised;
    counts.count += objective_.count(b);
  }
  counts.num_supervised = std::max<int64_t>(mesh_.data().sum(counts.num_supervised), 1);
  counts.count = mesh_.data().sum(counts.count);
  if (counts.count <= 0) counts.count = 1;
  counts.micro_batches = static_cast<double>(count * mesh_.data().size());
  counts.small_tokens = objective_.count(micro_batches[0]);
  // The gradient of one micro-batch stands nowhere when ranks share it or stages overlap.
  counts.has_small = count > 1 && is_whole && NoiseScale::is_measured(step);
  counts.small_factor = counts.count / std::max(counts.small_tokens, 1.0);
  set_scales(counts, loss_scale);
  transformer_.store().begin_step();
  if (fp8_) {
    parallel::share_fp8_ranges(mesh_.gradient(), fp8_->scalings());
    fp8_->begin_step(kernels_, device_.stream());
  }
  gradients_.begin_step(count);
  trace_.begin(step);
  if (counts.has_small) gradients_.begin_first_pass(record_.slice(kSumSmallSquares, 1));

  if (shape_.pipeline.pp > 1) {
    run_pipeline(micro_batches, step);
    const ops::Context context{kernels_, stream, device_.allocator()};
    gradients_.finish([&] { pipeline_of(count).sum_tied_gradients(context); });
  } else {
    for (size_t i = 0; i < micro_batches.size(); ++i) {
      run_micro_batch(micro_batches[i], i, step);
      if (i > 0 || !counts.has_small) continue;
      gradients_.finish_first_pass(record_.slice(kSumSmallSquares, 1));
    }
    gradients_.finish();
  }
  spec::PipelineShape drawn = shape_.pipeline;
  drawn.micro_batches = count;
  trace_.end(drawn);
  const Tensor& balance = batches_[0]->places().balance.loss;
  kernels_.sum(stream, {.x = losses_.slice(0, count), .total = record_.slice(kSumLoss, 1)});
  if (mtp_losses_) kernels_.sum(stream, {.x = mtp_losses_, .total = record_.slice(kSumMtp, 1)});
  if (balance) kernels_.sum(stream, {.x = balance, .total = record_.slice(kSumBalance, 1)});
  if (!is_alone()) sum_over_ranks(counts);
  return counts;
}

// The gradients of several ranks meet on the host, so their sums may too.
void StepRunner::sum_over_ranks(StepCounts& counts) {
  std::vector<float> record = core::to_host<float>(record_);
  const double rescale = counts.small_factor * counts.small_factor, ranks = mesh_.data().size();
  const double losses = tells_losses() ? 1 : 0, balance = mesh_.at().tensor == 0 ? 1 : 0;
  // Where noise is measured all ranks but the data axis's are one.
  std::array<double, 5> sums{losses * record[kSumLoss], losses * record[kSumMtp], balance * record[kSumBalance],
                             counts.has_small ? record[kSumSmallSquares] * rescale : 0, counts.small_tokens};
  mesh_.all().all_reduce(std::span<double>(sums), comm::ReduceOp::sum);
  record[kSumLoss] = static_cast<float>(sums[0]);
  record[kSumMtp] = static_cast<float>(sums[1]);
  record[kSumBalance] = static_cast<float>(sums[2]);
  record[kSumSmallSquares] = static_cast<float>(sums[3] / ranks);
  counts.small_factor = 1;
  counts.small_tokens = sums[4] / ranks;
  device_.copy_to_device(record_.raw(), record.data(), record_.bytes(), device_.stream());
}

StepResult StepRunner::read(const StepCounts& counts, const std::vector<float>& record, double loss_scale) const {
  const double supervised = counts.count;
  auto sum = [&](StepSums place) { return static_cast<double>(record[static_cast<size_t>(place)]); };
  StepResult result;
  result.num_supervised = counts.num_supervised;
  result.loss = sum(kSumLoss) / supervised;
  const int64_t heads = transformer_.spec().mtp_heads;
  result.mtp_loss = heads > 0 ? sum(kSumMtp) / (supervised * static_cast<double>(heads)) : 0;
  result.balance_loss = batches_[0]->places().balance.loss ? sum(kSumBalance) / counts.micro_batches : 0;
  const double factor = counts.small_factor / loss_scale;
  if (counts.has_small) result.small_norm_squared = sum(kSumSmallSquares) * factor * factor;
  result.small_tokens = counts.small_tokens;
  return result;
}

StepResult StepRunner::run(const std::vector<data::MicroBatch>& micro_batches, int64_t step) {
  const StepCounts counts = start(micro_batches, step, one_);
  return read(counts, core::to_host<float>(record_), 1.0);
}

std::optional<double> StepRunner::evaluate(const std::vector<data::MicroBatch>& micro_batches) {
  double sum = 0, supervised = 0;
  models::LossPlaces places = batches_[0]->places();
  places.balance = {};
  const core::RaggedBatch& batch = batches_[0]->get();
  const auto own = static_cast<int64_t>(micro_batches.size());
  // Ranks that hold experts or weights for each other run equally often; what is run once more is not counted.
  const bool run_together = (axes_ && axes_->expert()) || transformer_.store().divides_weights();
  const int64_t passes = run_together ? mesh_.all().max(own) : own;
  for (int64_t i = 0; i < passes; ++i) {
    const data::MicroBatch* given = i < own ? &micro_batches[static_cast<size_t>(i)] : nullptr;
    if (given) batches_[0]->load(*given, 0);
    if (shape_.pipeline.pp > 1) {
      const ops::Context context{kernels_, device_.stream(), device_.allocator()};
      pipeline_of(shape_.max_micro_batches)
          .evaluate(context, {batch, {}, places, given}, &objective_,
                    [this](int64_t chunk) -> core::Allocator& { return memory_->begin_evaluate(chunk); });
    } else {
      const ops::Context context{kernels_, device_.stream(), memory_->begin_evaluate(0), nullptr};
      objective_.forward({context, transformer_, batch, given, {}, places});
    }
    if (!given) continue;
    if (tells_losses()) sum += sum_of(places.losses);
    supervised += objective_.count(*given);
  }
  sum = mesh_.all().sum(sum);
  supervised = mesh_.data().sum(supervised);
  if (supervised == 0) return std::nullopt;
  return sum / supervised;
}

}  // namespace sinter::train
