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

}  // namespace

OptimizerShard optimizer_shard(const parallel::Mesh& mesh) {
  auto part = [](comm::Communicator& parts, comm::Communicator& copies, const comm::Communicator& holders) {
    return OptimizerShard{
        parts.rank(),   parts.size(),   copies.rank(), copies.size(), parts.size() > 1 ? &parts : nullptr,
        holders.rank(), holders.size(), nullptr};
  };
  auto whole = [](const comm::Communicator& holders) {
    return OptimizerShard{0, 1, holders.rank(), holders.size(), nullptr, holders.rank(), holders.size(), nullptr};
  };
  const bool is_divided = mesh.layout().zero > 0;
  OptimizerShard shard = is_divided ? part(mesh.shard(), mesh.copies(), mesh.gradient()) : whole(mesh.gradient());
  if (mesh.layout().ep == 1) return shard;
  comm::Communicator& same = mesh.expert_gradient();
  OptimizerShard experts = whole(same);
  if (is_divided)
    experts = {same.rank(), same.size(), 0, 1, same.size() > 1 ? &same : nullptr, same.rank(), same.size(), nullptr};
  shard.experts = std::make_shared<const OptimizerShard>(experts);
  return shard;
}

Optimizer::Optimizer(const spec::OptimizerRecipe& recipe, models::ParameterStore& store, uint64_t seed,
                     const OptimizerShard& shard)
    : recipe_(recipe), seed_(seed), store_(store), shard_(shard) {
  if (recipe.states == core::DType::u8) {
    SINTER_CHECK(shard.count == 1, "optimizer.states = \"8bit\" is not cut among ranks yet: use parallel.zero = 0");
    core::Allocator& allocator = core::runtime(store.options().device).allocator();
    m_map_ = core::make_tensor<float>(allocator, {256}, dynamic_map(true));
    v_map_ = core::make_tensor<float>(allocator, {256}, dynamic_map(false));
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < store.slots().size(); ++i) {
    if (store.slots()[i].info.trainable) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return store.slots()[a].offset < store.slots()[b].offset; });
  if (recipe.kind == OptimizerKind::muon) muon_ = std::make_unique<Muon>(recipe, store, shard);
  // Neighbours that are treated alike are one range.
  int64_t begin = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const models::ParameterStore::Slot& slot = store.slots()[order[i]];
    const int64_t end = i + 1 < order.size() ? store.slots()[order[i + 1]].offset : store.num_trainable();
    const bool is_muon = muon_ && Muon::takes(slot.info);
    auto is_alike = [&](const models::ParameterStore::Slot& next) {
      return next.info.decays == slot.info.decays && (muon_ && Muon::takes(next.info)) == is_muon &&
             next.parameter.grad.tensor().dtype() == slot.parameter.grad.tensor().dtype() &&
             &shard_.of(next.info) == &shard_.of(slot.info);
    };
    if (i + 1 < order.size() && is_alike(store.slots()[order[i + 1]])) continue;
    const OptimizerShard& own = shard_.of(slot.info);
    if (!is_muon) plan_exchange(begin, end, own);
    for (const Owned& part : is_muon ? std::vector<Owned>() : std::vector<Owned>(owned_)) {
      const int64_t first = std::max(begin, part.begin), last = std::min(end, part.begin + part.count);
      if (part.owner == own.index && first < last) add_range(first, last, slot.info.decays);
    }
    begin = end;
  }
  if (muon_) {
    for (const Muon::State& state : muon_->states()) states_.push_back({"momentum", state.slot, state.momentum});
    for (const auto& [slot, owner] : muon_->owners())
      owned_.push_back({store.slots()[slot].offset, store.slots()[slot].info.num_elements(), owner,
                        shard_.of(store.slots()[slot].info).group});
  }
}

Optimizer::~Optimizer() = default;

// Cuts a stretch of the flat order at the borders of the shards: those of all that trains, and of each stretch of
// experts that are shared otherwise.
void Optimizer::plan_exchange(int64_t begin, int64_t end, const OptimizerShard& shard) {
  constexpr int64_t kAlign = 64;
  const int64_t base = &shard == &shard_ ? 0 : begin, all = &shard == &shard_ ? store_.num_trainable() : end - begin;
  const int64_t part = (all / kAlign + shard.count - 1) / shard.count * kAlign;
  while (begin < end) {
    const int64_t owner = (begin - base) / part, next = std::min(end, base + (owner + 1) * part);
    Owned* last = owned_.empty() ? nullptr : &owned_.back();
    if (last && last->owner == owner && last->group == shard.group && last->begin + last->count == begin) {
      last->count += next - begin;
    } else {
      owned_.push_back({begin, next - begin, owner, shard.group});
    }
    begin = next;
  }
}

// Every owner's new masters to the ranks of the other shards.
void Optimizer::exchange() {
  std::vector<comm::Handle> works;
  for (const Owned& part : owned_) {
    if (!part.group) continue;
    works.push_back(
        part.group->start_broadcast(store_.master().slice(part.begin, part.count), static_cast<int>(part.owner)));
  }
  for (comm::Handle& work : works) work->wait();
}

void Optimizer::add_range(int64_t begin, int64_t end, bool decays) {
  core::DeviceRuntime& device = core::runtime(store_.options().device);
  auto zeros = [&](core::DType dtype) {
    Tensor t(device.allocator(), {end - begin}, dtype);
    device.set_zero(t.raw(), t.bytes(), device.stream());
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
    const int64_t blocks = (end - begin + kernels::Adamw8bitArgs::kBlock - 1) / kernels::Adamw8bitArgs::kBlock;
    auto scales = [&](const char* kind) {
      Tensor t(device.allocator(), {blocks}, core::DType::f32);
      device.set_zero(t.raw(), t.bytes(), device.stream());
      flat_states_.push_back({kind, "elements." + std::to_string(begin), t});
      return t;
    };
    range.first_scales = scales("m_scales");
    range.second_scales = scales("v_scales");
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
  }
}

size_t Optimizer::state_bytes() const {
  size_t bytes = muon_ ? muon_->bytes() : 0;
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
    Tensor master = store_.master().slice(range.begin, range.count),
           grad = store_.gradients_of(range.begin, range.count);
    Tensor copy = rounds ? store_.compute().slice(range.begin, range.count) : Tensor();
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
  if (rounds && std::any_of(owned_.begin(), owned_.end(), [](const Owned& part) { return part.group != nullptr; })) {
    store_.refresh_compute();
  } else {
    store_.bump_versions();
  }
}

}  // namespace sinter::train
