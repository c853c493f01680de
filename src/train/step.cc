#include "train/step.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "base/rng.h"
#include "kernels/trace.h"
#include "train/noise_scale.h"

namespace sinter::train {

using core::DType;
using core::Tensor;

namespace {

// Losses and their scales on a device; the values that no plan counts.
models::LossPlaces make_places(const spec::ModelSpec& spec, core::Allocator& allocator, int64_t num_tokens) {
  auto make = [&](int64_t n, DType dtype) { return Tensor(allocator, {n}, dtype); };
  models::LossPlaces places;
  places.scale = make(1, DType::f32);
  places.losses = make(num_tokens, DType::f32);
  for (int64_t j = 0; j < spec.mtp_heads; ++j) {
    places.mtp_targets.push_back(make(num_tokens, DType::i32));
    places.mtp_losses.push_back(make(num_tokens, DType::f32));
  }
  if (spec.mtp_heads > 0) places.mtp_scale = make(1, DType::f32);
  if (spec.moe.num_experts > 0) places.balance = {make(1, DType::f32), make(1, DType::f32)};
  return places;
}

bool has_dropout(const spec::ModelSpec& spec) {
  return spec.dropout.embedding > 0 || spec.dropout.residual > 0 || spec.dropout.attention > 0;
}

// Null unless asked for. Evaluation does without: it tells the loss of the weights that are exported.
std::unique_ptr<ops::Fp8Layers> make_fp8(const StepShape& shape, models::ParameterStore& store) {
  if (!shape.fp8) return nullptr;
  std::vector<const models::Parameter*> weights;
  for (const auto& slot : store.slots()) {
    if (slot.info.role == spec::ParameterRole::matrix) weights.push_back(&slot.parameter);
  }
  return std::make_unique<ops::Fp8Layers>(store.options().device, weights);
}

double sum_of(const Tensor& values) {
  double sum = 0;
  for (float v : core::to_host<float>(values)) sum += v;
  return sum;
}

}  // namespace

std::string graph_obstacle(const spec::ModelSpec& spec, core::Device device, int ranks) {
  if (has_dropout(spec)) return "dropout gets a new key from the host in every pass";
  if (spec.rope.kind == spec::RopeKind::dynamic) return "dynamic RoPE gets a table from the host in every pass";
  if (ranks > 1) return "several ranks begin to sum their gradients during the last pass of a step";
  if (kernels::is_tracing(device)) return "SINTER_TRACE times every call of a pass";
  return "";
}

StepPlan plan_step(const spec::ModelSpec& spec, const StepShape& shape) {
  const core::Device nowhere{core::DeviceKind::shapes, 0};
  core::DeviceRuntime& device = core::runtime(nowhere);
  models::ParameterStore store(
      spec, {.device = nowhere, .compute = shape.compute, .trains = true, .gradients = shape.gradients});
  models::Transformer transformer(spec, store);
  data::DeviceBatch batch(device.allocator(), shape.num_tokens, shape.num_sequences, shape.window);
  models::LossPlaces places = make_places(spec, device.allocator(), shape.num_tokens);
  std::unique_ptr<ops::Fp8Layers> fp8 = make_fp8(shape, store);
  StepPlan plan;
  if (fp8) plan.fp8_bytes = fp8->bytes();
  {
    core::RecordingAllocator recorder;
    autograd::Tape tape(shape.recompute);
    transformer.loss({*kernels::shapes_table(), device.stream(), recorder, &tape, fp8.get()}, batch.get(),
                     {.is_on = has_dropout(spec)}, places);
    tape.backward();
    plan.train = core::plan_memory(recorder.trace());
    plan.train_peak_bytes = recorder.trace().peak_bytes;
  }
  core::RecordingAllocator recorder;
  transformer.loss({*kernels::shapes_table(), device.stream(), recorder, nullptr}, batch.get(), {}, places);
  plan.evaluate = core::plan_memory(recorder.trace());
  return plan;
}

// Lends the training arena's block to the evaluation plan: the two never run at once.
class StepRunner::BorrowedBlock : public core::Allocator {
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

StepRunner::StepRunner(models::Transformer& transformer, const StepShape& shape, StepPlan plan,
                       const parallel::Mesh& mesh)
    : transformer_(transformer),
      shape_(shape),
      mesh_(mesh),
      device_(core::runtime(transformer.store().options().device)),
      kernels_(kernels::kernels_for(transformer.store().options().device)),
      arena_(device_.allocator(),
             [&] {
               core::MemoryPlan train = plan.train;
               train.total_bytes = plan.arena_bytes();
               return train;
             }()),
      borrowed_(std::make_unique<BorrowedBlock>(arena_.block())),
      evaluate_arena_(std::make_unique<core::PlannedArena>(*borrowed_, plan.evaluate)),
      batch_(device_.allocator(), shape.num_tokens, shape.num_sequences, shape.window),
      places_(make_places(transformer.spec(), device_.allocator(), shape.num_tokens)),
      losses_(device_.allocator(), {shape.max_micro_batches, shape.num_tokens}, DType::f32),
      record_(device_.allocator(), {kernels::kRecordSize}, DType::f32),
      one_(device_.allocator(), {1}, DType::f32),
      reducer_(mesh.gradient(), transformer.store().grad(),
               static_cast<size_t>(mesh.layout().bucket_mib * 1048576)),
      fp8_(make_fp8(shape, transformer.store())),
      uses_graphs_(shape.graphs &&
                   graph_obstacle(transformer.spec(), device_.stream().device, mesh.all().size()).empty()) {
  kernels_.fill(device_.stream(), {record_, 0.0f});
  kernels_.fill(device_.stream(), {one_, 1.0f});
  const int64_t heads = transformer.spec().mtp_heads;
  if (heads > 0)
    mtp_losses_ = Tensor(device_.allocator(), {heads * shape.max_micro_batches, shape.num_tokens}, DType::f32);
  // A tensor's stretch of the flat gradient reaches to the next tensor, so that gaps belong to someone.
  std::vector<LayerRange> ranges;
  for (const auto& slot : transformer.store().slots()) ranges.push_back({slot.info.layer, slot.offset, 0});
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < ranges.size(); ++i) {
    ranges[i].end = i + 1 < ranges.size() ? ranges[i + 1].begin : transformer.store().num_elements();
  }
  layer_ranges_ = std::move(ranges);
  if (mesh.gradient().size() > 1) transformer.hooks.after_backward = [this](int64_t layer) { mark_layer(layer); };
}

StepRunner::~StepRunner() { transformer_.hooks.after_backward = nullptr; }

void StepRunner::mark_layer(int64_t layer) {
  if (!is_last_) return;
  for (const LayerRange& range : layer_ranges_) {
    if (range.layer == layer) reducer_.mark_ready(range.begin, range.end);
  }
}

void StepRunner::set_scale(Tensor& scale, const Tensor& loss_scale, double value) {
  if (scale) kernels_.axpby(device_.stream(), {.x = loss_scale, .y = scale, .alpha = static_cast<float>(value)});
}

void StepRunner::load_batch(const data::MicroBatch& host) {
  batch_.load(host);
  for (size_t j = 0; j < places_.mtp_targets.size(); ++j) {
    const Tensor& to = places_.mtp_targets[j];
    const std::vector<int32_t> targets = host.targets_ahead(static_cast<int64_t>(j));
    device_.copy_to_device(to.raw(), targets.data(), to.bytes(), device_.stream());
  }
}

void StepRunner::run_micro_batch(const data::MicroBatch& host, size_t index, int64_t micro_batches, int64_t step) {
  load_batch(host);
  const auto i = static_cast<int64_t>(index);
  is_last_ = i + 1 == micro_batches;
  if (!replay_pass({i == 0, batch_.get().equal_lengths, batch_.get().filled_sequences})) {
    // Numbered over all data-parallel ranks and micro-batches, so that neither they nor the accumulation change what is dropped.
    const uint64_t place = static_cast<uint64_t>(i * mesh_.data().size() + mesh_.data().rank());
    run_pass({has_dropout(transformer_.spec()), shape_.seed, static_cast<uint64_t>(step),
              place * static_cast<uint64_t>(shape_.num_tokens)});
  }
  keep_losses(i);
}

// Forward and backward of the batch that is loaded, on fixed addresses: the plan's, and those of places_ and batch_.
void StepRunner::run_pass(const models::DropoutKey& dropout) {
  arena_.begin_step();
  autograd::Tape tape(shape_.recompute);
  transformer_.loss({kernels_, device_.stream(), arena_, &tape, fp8_.get()}, batch_.get(), dropout, places_);
  tape.backward();
}

// Runs the pass as one of its kind did before: the first of them as it is, the others as a graph. False: not done.
bool StepRunner::replay_pass(const PassKind& kind) {
  if (!uses_graphs_ || (fp8_ && !fp8_->is_calibrated())) return false;
  models::ParameterStore& store = transformer_.store();
  try {
    passes_[kind].run(device_.stream(), [this] { run_pass({}); });
  } catch (const core::CaptureError& error) {
    base::log_warning("{}; training goes on without", error.what());
    uses_graphs_ = false;
    if (kind.is_first) store.begin_step();  // the attempt has marked gradients that it did not compute
    return false;
  }
  for (auto& slot : store.slots()) slot.parameter.has_gradient = true;
  return true;
}

// Moves the losses from where every pass leaves them to this micro-batch's rows.
void StepRunner::keep_losses(int64_t index) {
  auto keep = [&](const Tensor& from, const Tensor& rows, int64_t row) {
    const Tensor to = rows.slice(row, 1);
    device_.copy_within(to.raw(), from.raw(), from.bytes(), device_.stream());
  };
  keep(places_.losses, losses_, index);
  for (size_t j = 0; j < places_.mtp_losses.size(); ++j) {
    keep(places_.mtp_losses[j], mtp_losses_, static_cast<int64_t>(j) * shape_.max_micro_batches + index);
  }
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
  const spec::ModelSpec& spec = transformer_.spec();
  core::Stream& stream = device_.stream();
  StepCounts counts;
  for (const auto& b : micro_batches) counts.num_supervised += b.num_supervised;
  counts.num_supervised = std::max<int64_t>(mesh_.data().sum(counts.num_supervised), 1);
  counts.micro_batches = static_cast<double>(count * mesh_.data().size());
  counts.small_tokens = static_cast<double>(micro_batches[0].num_supervised);
  counts.has_small = count > 1 && NoiseScale::is_measured(step);
  const auto supervised = static_cast<double>(counts.num_supervised);
  counts.small_factor = supervised / std::max(counts.small_tokens, 1.0);
  set_scale(places_.scale, loss_scale, 1.0 / supervised);
  set_scale(places_.mtp_scale, loss_scale,
            shape_.mtp_weight / (supervised * static_cast<double>(std::max<int64_t>(spec.mtp_heads, 1))));
  set_scale(places_.balance.scale, loss_scale, spec.moe.balance_loss / counts.micro_batches);
  if (places_.balance.loss) kernels_.fill(stream, {places_.balance.loss, 0.0f});
  if (mtp_losses_) kernels_.fill(stream, {mtp_losses_, 0.0f});
  transformer_.store().begin_step();
  if (fp8_) fp8_->begin_step(kernels_, device_.stream());
  reducer_.begin_step();

  for (size_t i = 0; i < micro_batches.size(); ++i) {
    run_micro_batch(micro_batches[i], i, count, step);
    if (i > 0 || !counts.has_small) continue;
    transformer_.store().sum_gradient_squares(kernels_, stream, record_.slice(kSumSmallSquares, 1));
  }
  reducer_.finish();
  if (mesh_.gradient().size() > 1) transformer_.store().forget_squares();
  kernels_.sum(stream, {.x = losses_.slice(0, count), .total = record_.slice(kSumLoss, 1)});
  if (mtp_losses_) kernels_.sum(stream, {.x = mtp_losses_, .total = record_.slice(kSumMtp, 1)});
  if (places_.balance.loss) kernels_.sum(stream, {.x = places_.balance.loss, .total = record_.slice(kSumBalance, 1)});
  if (mesh_.gradient().size() > 1) sum_over_ranks(counts);
  return counts;
}

// The gradients of several ranks meet on the host, so their sums may too.
void StepRunner::sum_over_ranks(StepCounts& counts) {
  std::vector<float> record = core::to_host<float>(record_);
  const double rescale = counts.small_factor * counts.small_factor, ranks = mesh_.gradient().size();
  std::vector<double> sums{record[kSumLoss], record[kSumMtp], record[kSumBalance], record[kSumSmallSquares] * rescale,
                           counts.small_tokens};
  mesh_.gradient().all_reduce(std::span<double>(sums), comm::ReduceOp::sum);
  record[kSumLoss] = static_cast<float>(sums[0]);
  record[kSumMtp] = static_cast<float>(sums[1]);
  record[kSumBalance] = static_cast<float>(sums[2]);
  record[kSumSmallSquares] = static_cast<float>(sums[3] / ranks);
  counts.small_factor = 1;
  counts.small_tokens = sums[4] / ranks;
  device_.copy_to_device(record_.raw(), record.data(), record_.bytes(), device_.stream());
}

StepResult StepRunner::read(const StepCounts& counts, const std::vector<float>& record, double loss_scale) const {
  const auto supervised = static_cast<double>(counts.num_supervised);
  auto sum = [&](StepSums place) { return static_cast<double>(record[static_cast<size_t>(place)]); };
  StepResult result;
  result.num_supervised = counts.num_supervised;
  result.loss = sum(kSumLoss) / supervised;
  const int64_t heads = transformer_.spec().mtp_heads;
  result.mtp_loss = heads > 0 ? sum(kSumMtp) / (supervised * static_cast<double>(heads)) : 0;
  result.balance_loss = places_.balance.loss ? sum(kSumBalance) / counts.micro_batches : 0;
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
  double sum = 0;
  int64_t supervised = 0;
  models::LossPlaces places = places_;
  places.balance = {};
  for (const data::MicroBatch& host : micro_batches) {
    load_batch(host);
    evaluate_arena_->begin_step();
    transformer_.loss({kernels_, device_.stream(), *evaluate_arena_, nullptr}, batch_.get(), {}, places);
    sum += sum_of(places.losses);
    supervised += host.num_supervised;
  }
  sum = mesh_.data().sum(sum);
  supervised = mesh_.data().sum(supervised);
  if (supervised == 0) return std::nullopt;
  return sum / static_cast<double>(supervised);
}

}  // namespace sinter::train
