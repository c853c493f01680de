#include "train/step.h"

#include <algorithm>
#include <numeric>

#include "base/rng.h"

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

StepPlan plan_step(const spec::ModelSpec& spec, const StepShape& shape) {
  const core::Device nowhere{core::DeviceKind::shapes, 0};
  core::DeviceRuntime& device = core::runtime(nowhere);
  models::ParameterStore store(spec, {.device = nowhere, .compute = shape.compute, .trains = true});
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
                       comm::Communicator& comm, size_t bucket_bytes)
    : transformer_(transformer),
      shape_(shape),
      comm_(comm),
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
      squares_(device_.allocator(), {1}, DType::f32),
      reducer_(comm, transformer.store().grad(), bucket_bytes),
      fp8_(make_fp8(shape, transformer.store())) {
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
  if (comm.size() > 1) transformer.on_gradients_ready = [this](int64_t layer) { mark_layer(layer); };
}

StepRunner::~StepRunner() { transformer_.on_gradients_ready = nullptr; }

void StepRunner::mark_layer(int64_t layer) {
  if (!is_last_) return;
  for (const LayerRange& range : layer_ranges_) {
    if (range.layer == layer) reducer_.mark_ready(range.begin, range.end);
  }
}

void StepRunner::set_scale(Tensor& scale, double value) {
  if (scale) kernels_.fill(device_.stream(), scale, static_cast<float>(value));
}

void StepRunner::run_micro_batch(const data::MicroBatch& host, size_t index, int64_t micro_batches, int64_t step) {
  const spec::ModelSpec& spec = transformer_.spec();
  const core::RaggedBatch& batch = batch_.load(host);
  const auto i = static_cast<int64_t>(index);
  models::LossPlaces places = places_;
  places.losses = losses_.slice(i, 1).reshape({shape_.num_tokens});
  for (int64_t j = 0; j < spec.mtp_heads; ++j) {
    const auto head = static_cast<size_t>(j);
    std::vector<int32_t> targets = host.targets_ahead(j);
    device_.copy_to_device(places.mtp_targets[head].raw(), targets.data(), places.mtp_targets[head].bytes(),
                           device_.stream());
    device_.synchronize(device_.stream());
    places.mtp_losses[head] = mtp_losses_.slice(j * shape_.max_micro_batches + i, 1).reshape({shape_.num_tokens});
  }
  // Keyed by the micro-batch's place in the step over all ranks, so that N ranks draw what one would.
  const uint64_t place = static_cast<uint64_t>(i * comm_.size() + comm_.rank());
  models::DropoutKey dropout{has_dropout(spec), shape_.seed, base::mix_bits(static_cast<uint64_t>(step), place), 0};
  is_last_ = i + 1 == micro_batches;
  arena_.begin_step();
  autograd::Tape tape(shape_.recompute);
  transformer_.loss({kernels_, device_.stream(), arena_, &tape, fp8_.get()}, batch, dropout, places);
  tape.backward();
}

StepResult StepRunner::run(const std::vector<data::MicroBatch>& micro_batches, int64_t step) {
  const auto count = static_cast<int64_t>(micro_batches.size());
  SINTER_CHECK(count >= 1 && count <= shape_.max_micro_batches, "[step] {} micro-batches; planned for 1 to {}", count,
               shape_.max_micro_batches);
  const spec::ModelSpec& spec = transformer_.spec();
  StepResult result;
  for (const auto& b : micro_batches) result.num_supervised += b.num_supervised;
  result.num_supervised = comm_.sum(result.num_supervised);
  const double supervised = static_cast<double>(std::max<int64_t>(result.num_supervised, 1));
  const double all_micro_batches = static_cast<double>(count * comm_.size());
  set_scale(places_.scale, 1.0 / supervised);
  set_scale(places_.mtp_scale,
            shape_.mtp_weight / (supervised * static_cast<double>(std::max<int64_t>(spec.mtp_heads, 1))));
  set_scale(places_.balance.scale, spec.moe.balance_loss / all_micro_batches);
  set_scale(places_.balance.loss, 0);
  transformer_.store().begin_step();
  if (fp8_) fp8_->begin_step(kernels_, device_.stream());
  reducer_.begin_step();

  double small_norm_squared = 0;
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    run_micro_batch(micro_batches[i], i, count, step);
    if (i > 0 || count == 1) continue;
    kernels_.fill(device_.stream(), squares_, 0.0f);
    kernels_.sum_squares(device_.stream(), {.x = transformer_.store().grad(), .total = squares_});
    const double rescale = supervised / static_cast<double>(std::max<int64_t>(micro_batches[0].num_supervised, 1));
    small_norm_squared = core::to_host<float>(squares_)[0] * rescale * rescale;
  }
  reducer_.finish();

  std::vector<double> sums(5, 0.0);
  sums[0] = sum_of(losses_.slice(0, count));
  for (int64_t j = 0; j < spec.mtp_heads; ++j)
    sums[1] += sum_of(mtp_losses_.slice(j * shape_.max_micro_batches, count));
  if (places_.balance.loss) sums[2] = sum_of(places_.balance.loss);
  sums[3] = small_norm_squared;
  sums[4] = static_cast<double>(micro_batches[0].num_supervised);
  comm_.all_reduce(sums, comm::ReduceOp::sum);
  result.loss = sums[0] / supervised;
  result.mtp_loss = spec.mtp_heads > 0 ? sums[1] / (supervised * static_cast<double>(spec.mtp_heads)) : 0;
  result.balance_loss = sums[2] / all_micro_batches;
  if (count > 1) result.small_norm_squared = sums[3] / comm_.size();
  result.small_tokens = sums[4] / comm_.size();
  return result;
}

std::optional<double> StepRunner::evaluate(const std::vector<data::MicroBatch>& micro_batches) {
  double sum = 0;
  int64_t supervised = 0;
  models::LossPlaces places = places_;
  places.balance = {};
  for (const data::MicroBatch& host : micro_batches) {
    const core::RaggedBatch& batch = batch_.load(host);
    for (size_t j = 0; j < places.mtp_targets.size(); ++j) {
      std::vector<int32_t> targets = host.targets_ahead(static_cast<int64_t>(j));
      device_.copy_to_device(places.mtp_targets[j].raw(), targets.data(), places.mtp_targets[j].bytes(),
                             device_.stream());
      device_.synchronize(device_.stream());
    }
    evaluate_arena_->begin_step();
    transformer_.loss({kernels_, device_.stream(), *evaluate_arena_, nullptr}, batch, {}, places);
    sum += sum_of(places.losses);
    supervised += host.num_supervised;
  }
  sum = comm_.sum(sum);
  supervised = comm_.sum(supervised);
  if (supervised == 0) return std::nullopt;
  return sum / static_cast<double>(supervised);
}

}  // namespace sinter::train
