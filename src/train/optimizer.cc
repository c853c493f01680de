#include "train/optimizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/table.h"
#include "train/dynamic_map.h"
#include "train/muon.h"

namespace sinter::train {
namespace {

using core::Tensor;
using spec::OptimizerKind;

constexpr uint64_t kRoundingStream = 0x524f554e44;  // apart from dropout's and the shuffle's random numbers

// Of 8-bit codes, each with a scale.
int64_t blocks_of(int64_t elements) {
  return (elements + kernels::Adamw8bitArgs::kBlock - 1) / kernels::Adamw8bitArgs::kBlock;
}

}  // namespace

models::Division division_of(const parallel::Mesh& mesh, const spec::ModelSpec& model) {
  const spec::ParallelSpec& layout = mesh.layout();
  models::Division d;
  d.parts = mesh.shard().size(), d.part = mesh.shard().rank();
  d.expert_parts = d.parts, d.expert_part = d.part;
  if (layout.ep > 1) d.expert_parts = mesh.expert_gradient().size(), d.expert_part = mesh.expert_gradient().rank();
  const bool has_others = d.parts > 1 || d.expert_parts > 1;
  const spec::OffloadSpec& offload = layout.offload;
  d.host_states = offload.optimizer, d.host_gradients = offload.gradients, d.host_weights = offload.parameters;
  d.states = (has_others && layout.zero >= 1) || offload.optimizer || offload.gradients || offload.parameters;
  d.gradients = (has_others && layout.zero >= 2) || offload.gradients;
  d.weights = (has_others && layout.zero >= 3) || offload.parameters;
  d.head_layer = model.num_layers;
  d.keeps_ends = model.tied_head || layout.pp > 1;
  return d;
}

OptimizerShard optimizer_shard(const parallel::Mesh& mesh) {
  auto part = [](comm::Communicator& parts, const comm::Communicator& copies, const comm::Communicator& holders) {
    return OptimizerShard{parts.size() > 1 ? &parts : nullptr, copies.rank(), copies.size(), holders.rank(),
                          holders.size()};
  };
  auto whole = [](const comm::Communicator& holders) {
    return OptimizerShard{nullptr, holders.rank(), holders.size(), holders.rank(), holders.size()};
  };
  const bool is_divided = mesh.layout().zero > 0 || mesh.layout().offload.has_state();
  OptimizerShard shard = is_divided ? part(mesh.shard(), mesh.copies(), mesh.gradient()) : whole(mesh.gradient());
  if (mesh.tensor().size() > 1) shard.tensor = &mesh.tensor();
  if (mesh.layout().ep == 1) return shard;
  comm::Communicator& same = mesh.expert_gradient();
  OptimizerShard experts = whole(same);
  if (is_divided) experts = {same.size() > 1 ? &same : nullptr, 0, 1, same.rank(), same.size()};
  experts.tensor = shard.tensor;
  shard.experts = std::make_shared<const OptimizerShard>(experts);
  return shard;
}

Optimizer::Optimizer(const spec::OptimizerRecipe& recipe, models::ParameterStore& store, uint64_t seed,
                     const OptimizerShard& shard)
    : recipe_(recipe), seed_(seed), store_(store), shard_(shard) {
  if (has_codes()) {
    SINTER_CHECK(!store.options().division.states,
                 "optimizer.states = \"8bit\" is not cut among ranks yet: use parallel.zero = 0");
    core::Allocator& allocator = core::runtime(store.options().device).allocator();
    m_map_ = core::make_tensor<float>(allocator, {256}, dynamic_map(true));
    v_map_ = core::make_tensor<float>(allocator, {256}, dynamic_map(false));
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const models::ParameterStore::Slot& slot = store.slots()[i];
    if (!slot.info.trainable) continue;
    SINTER_CHECK(!has_codes() || slot.info.shape == slot.global_shape,
                 "optimizer.states = \"8bit\" has a scale for every {} elements of a whole tensor; this layout cuts "
                 "'{}' ({} of {} here): use parallel.tp and ep 1, or states \"bf16\"",
                 kernels::Adamw8bitArgs::kBlock, slot.info.name, slot.info.shape.to_string(),
                 slot.global_shape.to_string());
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return store.slots()[a].offset < store.slots()[b].offset; });
  if (recipe.kind == OptimizerKind::muon) muon_ = std::make_unique<Muon>(recipe, store, shard);
  // Neighbours that are treated alike are one range; a block of codes never reaches into the next tensor, so that no
  // layout has other blocks.
  const std::vector<models::ParameterStore::Stretch> owned = store.owned();
  int64_t begin = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const models::ParameterStore::Slot& slot = store.slots()[order[i]];
    const int64_t end = i + 1 < order.size() ? store.slots()[order[i + 1]].offset : store.num_trainable();
    const bool is_muon = muon_ && Muon::takes(slot.info);
    auto is_alike = [&](const models::ParameterStore::Slot& next) {
      return next.info.decays == slot.info.decays && (muon_ && Muon::takes(next.info)) == is_muon &&
             next.parameter.grad.tensor().dtype() == slot.parameter.grad.tensor().dtype() &&
             &shard_.of(next.info) == &shard_.of(slot.info) &&
             (!has_codes() || (end - begin) % kernels::Adamw8bitArgs::kBlock == 0);
    };
    if (i + 1 < order.size() && is_alike(store.slots()[order[i + 1]])) continue;
    for (const auto& own : owned) {
      const int64_t first = std::max(begin, own.begin), last = std::min(end, own.begin + own.count);
      if (!is_muon && first < last) add_range(first, last, slot.info.decays);
    }
    begin = end;
  }
  if (!muon_) return;
  for (const Muon::State& state : muon_->states())
    states_.push_back({"momentum", state.slot, state.momentum, state.first});
}

Optimizer::~Optimizer() = default;

// The new weights of every part to the ranks of the others. Divided weights are fetched when they are used.
void Optimizer::exchange() {
  if (!store_.options().division.states || store_.divides_weights()) return;
  std::vector<comm::Handle> works;
  for (const models::Segment& s : store_.segments()) {
    if (!s.is_divided || s.parts == 1) continue;
    const OptimizerShard& shard = s.has_experts && shard_.experts ? *shard_.experts : shard_;
    const Tensor all = store_.weights_of(s.begin, s.count());
    works.push_back(shard.group->start_all_gather(all.slice(s.part * s.piece(), s.piece()), all));
  }
  for (comm::Handle& work : works) work->wait();
}

void Optimizer::publish() {
  store_.refresh_compute();
  exchange();
}

void Optimizer::add_range(int64_t begin, int64_t end, bool decays) {
  core::DeviceRuntime& device = core::runtime(store_.options().device);
  auto zeros = [&](core::DType dtype) {
    Tensor t(store_.state_memory(), {end - begin}, dtype);
    core::runtime(t.device()).set_zero(t.raw(), t.bytes(), core::runtime(t.device()).stream());
    return t;
  };
  Range range{begin, end - begin, decays, {}, {}};
  if (recipe_.kind == OptimizerKind::sgd) {
    if (recipe_.momentum > 0) range.first = zeros(core::DType::f32);
  } else {
    range.first = zeros(recipe_.states);
    range.second = zeros(recipe_.states);
  }
  if (recipe_.states == core::DType::u8 && range.second) {
    auto scales = [&] {
      Tensor t(device.allocator(), {blocks_of(end - begin)}, core::DType::f32);
      device.set_zero(t.raw(), t.bytes(), device.stream());
      return t;
    };
    range.first_scales = scales();
    range.second_scales = scales();
  }
  add_states(range);
  ranges_.push_back(std::move(range));
}

void Optimizer::add_states(const Range& range) {
  for (size_t i = 0; i < store_.slots().size(); ++i) {
    const models::ParameterStore::Slot& slot = store_.slots()[i];
    const int64_t begin = std::max(slot.offset, range.begin);
    const int64_t n = std::min(slot.offset + slot.info.num_elements(), range.begin + range.count) - begin;
    if (n <= 0) continue;
    const int64_t at = begin - range.begin, first = begin - slot.offset;
    if (range.first) states_.push_back({range.second ? "m" : "velocity", i, range.first.slice(at, n), first});
    if (range.second) states_.push_back({"v", i, range.second.slice(at, n), first});
    if (!range.first_scales) continue;
    const int64_t block = at / kernels::Adamw8bitArgs::kBlock;
    scales_.push_back({"m_scales", i, range.first_scales.slice(block, blocks_of(n))});
    scales_.push_back({"v_scales", i, range.second_scales.slice(block, blocks_of(n))});
  }
}

size_t Optimizer::state_bytes() const {
  size_t bytes = muon_ ? muon_->bytes() : 0;
  if (store_.options().division.host_states) return bytes;  // the rest is not on the device
  for (const Range& range : ranges_)
    bytes += range.first.bytes() + range.second.bytes() + range.first_scales.bytes() + range.second_scales.bytes();
  return bytes;
}

void Optimizer::update(const Tensor& control, double lr_factor, int64_t step) {
  ++num_calls_;
  const kernels::RandomKey key{seed_, base::mix_bits(kRoundingStream, static_cast<uint64_t>(step))};
  core::Stream& stream = core::runtime(store_.options().device).stream();
  const kernels::KernelTable& kernels = kernels::kernels_for(store_.options().device);
  const bool rounds = store_.options().compute != core::DType::f32;
  const auto lr = static_cast<float>(recipe_.lr * lr_factor);
  for (const Range& range : ranges_) {
    Tensor master = store_.masters_of(range.begin, range.count), grad = store_.gradients_of(range.begin, range.count);
    Tensor copy = rounds ? store_.weights_of(range.begin, range.count) : Tensor();
    const auto decay =
        static_cast<float>(range.decays && recipe_.kind != OptimizerKind::adam ? recipe_.weight_decay : 0);
    if (recipe_.kind == OptimizerKind::sgd) {
      kernels.sgd(stream, {.master = master,
                           .grad = grad,
                           .velocity = range.first,
                           .copy = copy,
                           .control = control,
                           .lr = lr,
                           .momentum = static_cast<float>(recipe_.momentum),
                           .weight_decay = decay});
    } else if (range.first_scales) {
      kernels.adamw_8bit(stream, {.master = master,
                                  .grad = grad,
                                  .m = range.first,
                                  .v = range.second,
                                  .m_scales = range.first_scales,
                                  .v_scales = range.second_scales,
                                  .m_map = m_map_,
                                  .v_map = v_map_,
                                  .copy = copy,
                                  .control = control,
                                  .lr = lr,
                                  .beta1 = static_cast<float>(recipe_.beta1),
                                  .beta2 = static_cast<float>(recipe_.beta2),
                                  .eps = static_cast<float>(recipe_.eps),
                                  .weight_decay = decay,
                                  .step = num_calls_});
    } else {
      kernels.adamw(stream, {.master = master,
                             .grad = grad,
                             .m = range.first,
                             .v = range.second,
                             .copy = copy,
                             .control = control,
                             .lr = lr,
                             .beta1 = static_cast<float>(recipe_.beta1),
                             .beta2 = static_cast<float>(recipe_.beta2),
                             .eps = static_cast<float>(recipe_.eps),
                             .weight_decay = decay,
                             .step = num_calls_,
                             .key = {key.seed, base::mix_bits(key.stream, static_cast<uint64_t>(range.begin))}});
    }
  }
  if (muon_) muon_->update(control, static_cast<float>(recipe_.muon_lr * lr_factor), key);
  exchange();
  store_.bump_versions();
}

}  // namespace sinter::train
