#include "train/pass_batch.h"

#include "base/error.h"

namespace sinter::train {
namespace {

using core::DType;
using core::Tensor;

// Losses and their scales on a device; the values that no plan counts.
models::LossPlaces make_places(const spec::ModelSpec& spec, core::Allocator& allocator, const StepShape& shape,
                               int64_t num_tokens) {
  auto make = [&](int64_t n, DType dtype) { return Tensor(allocator, {n}, dtype); };
  models::LossPlaces places;
  places.scale = make(1, DType::f32);
  places.losses = make(num_tokens, DType::f32);
  if (shape.has_weights) places.weights = make(num_tokens, DType::f32);
  for (int64_t j = 0; j < spec.mtp_heads; ++j) {
    places.mtp_targets.push_back(make(num_tokens, DType::i32));
    places.mtp_losses.push_back(make(num_tokens, DType::f32));
  }
  if (spec.mtp_heads > 0) places.mtp_scale = make(1, DType::f32);
  if (spec.moe.num_experts > 0) places.balance = {make(1, DType::f32), make(1, DType::f32)};
  return places;
}

// A value of each of these rows; all of them without rows.
template <class T>
std::vector<T> take(const std::vector<T>& all, const std::vector<int32_t>& rows) {
  if (rows.empty()) return all;
  std::vector<T> own;
  for (const int32_t row : rows) own.push_back(all[static_cast<size_t>(row)]);
  return own;
}

}  // namespace

int64_t local_tokens(const StepShape& shape, const parallel::ContextAxis* context) {
  return shape.num_tokens / (context ? context->size() : 1);
}

PassBatch::PassBatch(const spec::ModelSpec& spec, const StepShape& shape, core::Allocator& allocator,
                     const parallel::ContextAxis* context)
    : shape_(shape),
      context_(context),
      windows_(parallel::windows_of(spec)),
      device_(allocator, local_tokens(shape, context), shape.num_sequences, shape.window),
      places_(make_places(spec, allocator, shape, local_tokens(shape, context))) {
  if (context_) view_.emplace(allocator, local_tokens(shape, context), windows_, context_->size());
  if (shape.has_noise) {
    noise_ = {core::Tensor(allocator, {local_tokens(shape, context), 2}, DType::i32),
              core::Tensor(allocator, {local_tokens(shape, context)}, DType::f32)};
  }
  batch_ = device_.get();
  batch_.noise = noise_;
  if (view_) batch_.context = &view_->get();
}

void PassBatch::load(const data::MicroBatch& host, uint64_t first_token) {
  std::vector<int32_t> rows;
  if (context_) {
    const parallel::ContextRows part =
        parallel::context_rows(host, shape_.window, windows_, context_->size(), context_->rank());
    data::MicroBatch own;
    static_cast<core::HostBatch&>(own) = parallel::take_rows(host, part.rows);
    batch_ = device_.load(own);
    batch_.equal_lengths = false;
    batch_.context = &view_->load(part, first_token);
    rows = part.rows;
  } else {
    batch_ = device_.load(host);
  }
  batch_.noise = noise_;
  core::DeviceRuntime& device = core::runtime(places_.losses.device());
  auto copy = [&](const Tensor& to, const auto& all, const char* what) {
    SINTER_CHECK(all.size() == static_cast<size_t>(shape_.num_tokens), "[step] {} {} for {} tokens", all.size(), what,
                 shape_.num_tokens);
    const auto own = take(all, rows);
    device.copy_to_device(to.raw(), own.data(), to.bytes(), device.stream());
  };
  if (places_.weights) copy(places_.weights, host.weights, "weights");
  if (noise_.scales && !host.noise_scales.empty()) {  // evaluation has none and reads none
    copy(noise_.streams, host.noise_streams, "streams of noise");
    copy(noise_.scales, host.noise_scales, "scales of noise");
  }
  for (size_t j = 0; j < places_.mtp_targets.size(); ++j) {
    const Tensor& to = places_.mtp_targets[j];
    const std::vector<int32_t> targets = take(host.targets_ahead(static_cast<int64_t>(j)), rows);
    device.copy_to_device(to.raw(), targets.data(), to.bytes(), device.stream());
  }
}

}  // namespace sinter::train
