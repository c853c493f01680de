// Values into a store and out of it: set, read back, drawn, rounded.
#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"
#include "kernels/random.h"
#include "kernels/table.h"
#include "models/parameter_store.h"

namespace sinter::models {
namespace {

uint64_t name_hash(const std::string& name) {  // FNV-1a: stable across builds and machines
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

}  // namespace

void ParameterStore::set_blocks(Slot& slot, std::shared_ptr<const core::WeightBlocks> blocks) {
  SINTER_CHECK(slot.is_apart, "[store] '{}' does not stand apart", slot.info.name);
  const int64_t E = slot.info.shape.rank() == 3 ? slot.info.shape[0] : 1;
  int64_t rows = 0;
  for (const core::WeightPart& part : blocks->parts) rows += part.rows;
  SINTER_CHECK(blocks->experts == E && blocks->rows == slot.info.shape[-2] && rows == blocks->rows &&
                   blocks->columns == slot.info.shape[-1],
               "tensor '{}': blocks of {} experts, {} rows ({} in parts) and {} columns for {}", slot.info.name,
               blocks->experts, blocks->rows, rows, blocks->columns, slot.info.shape.to_string());
  slot.parameter.weight.blocks = std::move(blocks);
  ++slot.parameter.weight.version;
}

void ParameterStore::set(Slot& slot, const std::vector<float>& values) {
  SINTER_CHECK(static_cast<int64_t>(values.size()) == slot.info.num_elements(), "tensor '{}': {} values for {}",
               slot.info.name, values.size(), slot.info.shape.to_string());
  SINTER_CHECK(!slot.is_apart, "[store] '{}' stands apart; its weight is set by set_blocks()", slot.info.name);
  core::DeviceRuntime& device = core::runtime(options_.device);
  Parameter& p = slot.parameter;
  const Segment& segment = segment_of(slot);
  const bool rounds = options_.compute != DType::f32;
  if (p.master) {
    device.copy_to_device(p.master.raw(), values.data(), p.master.bytes(), device.stream());
  } else if (segment.is_divided && divides_masters_) {
    const Stretch own = own_part(slot);
    if (own.count > 0)
      device.copy_to_device(masters_of(own.begin, own.count).raw(), values.data() + (own.begin - slot.offset),
                            static_cast<size_t>(own.count) * sizeof(float), device.stream());
  }
  std::vector<std::byte> rounded;
  if (rounds && !(segment.is_divided && divides_weights())) {
    rounded.resize(p.weight.data.bytes());
    base::convert_elements(DType::f32, values.data(), options_.compute, rounded.data(), values.size());
    device.copy_to_device(p.weight.data.raw(), rounded.data(), rounded.size(), device.stream());
  }
  device.synchronize(device.stream());
  ++p.weight.version;
}

ParameterStore::Stretch ParameterStore::own_part(const Slot& slot) const {
  const Segment& s = segment_of(slot);
  const int64_t end = slot.offset + slot.info.num_elements();
  if (!s.is_divided) return {slot.offset, end - slot.offset};
  const int64_t begin = std::max(slot.offset, s.own_begin());
  return {begin, std::max<int64_t>(0, std::min(end, s.own_end()) - begin)};
}

void ParameterStore::set_global(Slot& slot, const std::vector<float>& values) {
  SINTER_CHECK(static_cast<int64_t>(values.size()) == slot.global_shape.num_elements(), "tensor '{}': {} values for {}",
               slot.info.name, values.size(), slot.global_shape.to_string());
  std::vector<float> own(static_cast<size_t>(slot.info.num_elements()), 0.0f);
  for (const spec::Box& box : slot.boxes) {
    spec::visit_runs(box, slot.global_shape, slot.info.shape, [&](int64_t global, int64_t local, int64_t count) {
      std::copy_n(values.begin() + global, count, own.begin() + local);
    });
  }
  set(slot, own);
}

std::vector<float> ParameterStore::values_of(const Slot& slot) const {
  if (const core::WeightView& weight = slot.parameter.weight; slot.is_apart) {
    const int64_t E = weight.experts(), rows = weight.rows(), columns = weight.columns();
    core::DeviceRuntime& device = core::runtime(options_.device);
    Tensor values(device.allocator(), {E * rows, columns}, DType::f32);
    for (int64_t e = 0; e < E; ++e) {
      kernels::kernels_for(options_.device)
          .dequantize(device.stream(), {.weight = weight, .expert = e, .y = values.slice(e * rows, rows)});
    }
    return core::to_host_floats(values);
  }
  return core::to_host_floats(slot.parameter.master ? slot.parameter.master : slot.parameter.weight.data);
}

std::vector<float> ParameterStore::gradient_of(const Slot& slot) const {
  if (!slot.parameter.grad) return {};
  return core::to_host_floats(slot.parameter.grad.tensor());
}

void ParameterStore::initialize(uint64_t seed) {
  for (Slot& slot : slots_) draw(slot, seed);
}

void ParameterStore::draw(Slot& slot, uint64_t seed) {
  const spec::ParameterSpec& info = slot.info;
  std::vector<float> values(static_cast<size_t>(info.num_elements()), 0.0f);
  const base::CounterRng rng{seed, name_hash(info.name)};
  auto fill = [&](int64_t global, int64_t local, int64_t count) {
    std::span<float> to = std::span(values).subspan(static_cast<size_t>(local), static_cast<size_t>(count));
    if (info.init == spec::InitKind::ones) std::fill(to.begin(), to.end(), 1.0f);
    if (info.init != spec::InitKind::normal) return;
    base::parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
      kernels::draw_normal(rng, static_cast<uint64_t>(global + begin), info.init_std,
                           to.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    });
  };
  for (const spec::Box& box : slot.boxes) spec::visit_runs(box, slot.global_shape, info.shape, fill);
  set(slot, values);
}

void ParameterStore::bump_versions() {
  for (Slot& slot : slots_) ++slot.parameter.weight.version;
}

void ParameterStore::refresh_compute() {
  if (options_.compute != DType::f32 && divides_masters_) {
    core::DeviceRuntime& device = core::runtime(options_.device);
    for (const Stretch& own : owned()) {
      if (const Tensor weights = weights_of(own.begin, own.count))
        kernels::kernels_for(options_.device)
            .axpby(device.stream(), {.x = masters_of(own.begin, own.count), .y = weights});
    }
  } else if (options_.compute != DType::f32 && master_) {
    core::DeviceRuntime& device = core::runtime(options_.device);
    kernels::kernels_for(options_.device)
        .axpby(device.stream(), {.x = master_, .y = compute_.slice(0, master_.num_elements())});
  }
  bump_versions();
}

}  // namespace sinter::models
