#include "train/gradient_sync.h"

#include <algorithm>

#include "ops/norm.h"

namespace sinter::train {

using core::Tensor;

GradientSync::GradientSync(models::ParameterStore& store, const parallel::Mesh& mesh, const parallel::Axes* axes)
    : store_(store),
      mesh_(mesh),
      axes_(axes),
      kernels_(kernels::kernels_for(store.options().device)),
      reducer_(stretches(), store.grad(), static_cast<size_t>(mesh.layout().bucket_mib * 1048576)) {
  // A tensor's stretch of the flat gradient reaches to the next tensor, so that gaps belong to someone.
  for (const auto& slot : store.slots()) {
    if (store.is_trained(slot)) tensors_.push_back({slot.info.layer, slot.offset, 0});
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < tensors_.size(); ++i)
    tensors_[i].end = i + 1 < tensors_.size() ? tensors_[i + 1].begin : store.num_trainable();
  if (!axes_ || axes_->is_whole()) return;
  for (const auto& slot : store.slots()) {
    const comm::Communicator& holders = slot.info.expert_axis >= 0 ? mesh.expert_gradient() : mesh.gradient();
    if (holders.rank() != 0 || !store.is_trained(slot)) continue;
    for (const spec::Box& box : slot.boxes) {
      if (!box.is_owned) continue;
      spec::visit_runs(box, slot.global_shape, slot.info.shape, [&](int64_t, int64_t local, int64_t count) {
        const int64_t begin = slot.offset + local;
        if (!owned_.empty() && owned_.back().first + owned_.back().second == begin) {
          owned_.back().second += count;
        } else {
          owned_.emplace_back(begin, count);
        }
      });
    }
  }
}

std::vector<parallel::GradientReducer::Stretch> GradientSync::stretches() const {
  if (mesh_.layout().ep == 1) return {{0, store_.grad().num_elements(), &mesh_.gradient()}};
  std::vector<parallel::GradientReducer::Stretch> out;
  for (const auto& range : store_.ranges())
    out.push_back({range.begin, range.end, range.has_experts ? &mesh_.expert_gradient() : &mesh_.gradient()});
  return out;
}

ops::Context GradientSync::context() const {
  core::DeviceRuntime& device = core::runtime(store_.options().device);
  return {kernels_, device.stream(), device.allocator()};
}

void GradientSync::begin_step(int64_t passes) {
  reducer_.begin_step();
  for (const Stretch& tensor : tensors_) missing_[tensor.layer] = passes;
}

void GradientSync::after_backward(int64_t layer) {
  auto found = missing_.find(layer);
  if (found == missing_.end() || --found->second > 0) return;
  // A table that both ends of a pipeline hold is complete when both are done.
  if (layer == -1 && mesh_.layout().pp > 1) return;
  mark(layer);
}

// All gradients of a layer are complete on this rank.
void GradientSync::mark(int64_t layer) {
  missing_.erase(layer);
  for (auto& slot : store_.slots()) {
    if (slot.info.layer != layer || !store_.is_trained(slot)) continue;
    if (has_work()) ops::begin_gradient(context(), slot.parameter);  // where this rank added nothing
    if (axes_ && axes_->tensor()) axes_->tensor()->sum_gradient(context(), slot.info, slot.parameter);
  }
  for (const Stretch& tensor : tensors_) {
    if (tensor.layer == layer) reducer_.mark_ready(tensor.begin, tensor.end);
  }
}

void GradientSync::finish(const std::function<void()>& sum_tied) {
  if (sum_tied) sum_tied();
  while (!missing_.empty()) mark(missing_.begin()->first);
  reducer_.finish();
  if (has_work()) store_.forget_squares();
}

void GradientSync::sum_squares(const Tensor& total) const {
  core::DeviceRuntime& device = core::runtime(store_.options().device);
  if (!axes_ || axes_->is_whole()) return store_.sum_gradient_squares(kernels_, device.stream(), total);
  kernels_.fill(device.stream(), {total, 0.0f});
  for (const auto& [begin, count] : owned_)
    kernels_.sum_squares(device.stream(), {.x = store_.gradients_of(begin, count), .total = total});
  const double sum = mesh_.all().sum(static_cast<double>(core::to_host<float>(total)[0]));
  const auto value = static_cast<float>(sum);
  device.copy_to_device(total.raw(), &value, sizeof value, device.stream());
  device.synchronize(device.stream());
}

}  // namespace sinter::train
