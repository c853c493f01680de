#include "models/parameter_store.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"
#include "kernels/random.h"
#include "kernels/table.h"

namespace sinter::models {
namespace {

constexpr int64_t kAlignElements = 64;

int64_t aligned(int64_t n) { return (n + kAlignElements - 1) / kAlignElements * kAlignElements; }

// A product of 16-bit activations makes this gradient in one piece per micro-batch.
bool has_short_gradient(const spec::Parameter& info) {
  return info.decays && (info.role == spec::ParameterRole::matrix || info.role == spec::ParameterRole::expert_matrix);
}

uint64_t name_hash(const std::string& name) {  // FNV-1a: stable across builds and machines
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

}  // namespace

ParameterStore::ParameterStore(const spec::ModelSpec& spec, const StoreOptions& options) : options_(options) {
  for (spec::Parameter& info : spec::make_parameter_table(spec)) slots_.push_back({std::move(info), 0, {}});
  auto is_short = [&](const Slot& slot) { return options.gradients != DType::f32 && has_short_gradient(slot.info); };
  auto lay_out = [&](auto&& is_next) {
    for (Slot& slot : slots_) {
      if (!is_next(slot)) continue;
      slot.offset = num_elements_;
      num_elements_ += aligned(slot.info.num_elements());
    }
    return num_elements_;
  };
  short_end_ = lay_out(is_short);
  decay_end_ = lay_out([&](const Slot& slot) { return slot.info.decays && !is_short(slot); });
  lay_out([](const Slot& slot) { return !slot.info.decays; });
  core::DeviceRuntime& device = core::runtime(options.device);
  auto zeros = [&](int64_t count, DType dtype) {
    Tensor t(device.allocator(), {count}, dtype);
    device.set_zero(t.raw(), t.bytes(), device.stream());
    return t;
  };
  const bool rounds = options.compute != DType::f32;
  const bool has_master = options.trains || !rounds;
  if (has_master) master_ = zeros(num_elements_, DType::f32);
  compute_ = rounds ? zeros(num_elements_, options.compute) : master_;
  if (!has_master) vectors_ = zeros(num_elements_ - decay_end_, DType::f32);
  if (options.trains) grad_ = zeros(num_elements_ - short_end_, DType::f32);
  if (options.trains && short_end_ > 0) short_grad_ = zeros(short_end_, options.gradients);
  if (options.trains && kernels::kernels_for(options.device).writes_square_sums)
    squares_ = zeros(static_cast<int64_t>(slots_.size()), DType::f32);

  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    index_[slot.info.name] = i;
    Parameter& p = slot.parameter;
    const int64_t n = slot.info.num_elements();
    p.name = slot.info.name;
    p.weight.data = compute_.slice(slot.offset, n).reshape(slot.info.shape);
    if (options.keeps_derived) p.weight.derived = &p.derived;
    if (has_master) {
      p.master = master_.slice(slot.offset, n).reshape(slot.info.shape);
    } else if (!slot.info.decays) {
      p.master = vectors_.slice(slot.offset - decay_end_, n).reshape(slot.info.shape);
    }
    if (options.trains) p.grad = gradients_of(slot.offset, n).reshape(slot.info.shape);
    if (squares_ && !is_short(slot)) p.grad_squares = squares_.slice(static_cast<int64_t>(i), 1);
  }
}

std::vector<Tensor> ParameterStore::gradients() const {
  if (short_end_ == 0) return {grad_};
  return {short_grad_, grad_};
}

Tensor ParameterStore::gradients_of(int64_t begin, int64_t count) const {
  if (begin < short_end_) return short_grad_.slice(begin, count);
  return grad_.slice(begin - short_end_, count);
}

Parameter* ParameterStore::find(const std::string& name) {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &slots_[it->second].parameter;
}

Parameter& ParameterStore::get(const std::string& name) {
  if (Parameter* p = find(name)) return *p;
  std::vector<std::string> names;
  for (const Slot& slot : slots_) names.push_back(slot.info.name);
  base::fail("the model has no tensor '{}'{}", name, base::did_you_mean(name, names));
}

void ParameterStore::set(Slot& slot, const std::vector<float>& values) {
  SINTER_CHECK(static_cast<int64_t>(values.size()) == slot.info.num_elements(), "tensor '{}': {} values for {}",
               slot.info.name, values.size(), slot.info.shape.to_string());
  core::DeviceRuntime& device = core::runtime(options_.device);
  Parameter& p = slot.parameter;
  if (p.master) device.copy_to_device(p.master.raw(), values.data(), p.master.bytes(), device.stream());
  std::vector<std::byte> rounded;
  if (options_.compute != DType::f32) {
    rounded.resize(p.weight.data.bytes());
    base::convert_elements(DType::f32, values.data(), options_.compute, rounded.data(), values.size());
    device.copy_to_device(p.weight.data.raw(), rounded.data(), rounded.size(), device.stream());
  }
  device.synchronize(device.stream());
  ++p.weight.version;
}

std::vector<float> ParameterStore::values_of(const Slot& slot) const {
  return core::to_host_floats(slot.parameter.master ? slot.parameter.master : slot.parameter.weight.data);
}

std::vector<float> ParameterStore::gradient_of(const Slot& slot) const {
  return core::to_host_floats(slot.parameter.grad);
}

void ParameterStore::initialize(uint64_t seed) {
  for (Slot& slot : slots_) {
    const spec::Parameter& info = slot.info;
    std::vector<float> values(static_cast<size_t>(info.num_elements()),
                              info.init == spec::InitKind::ones ? 1.0f : 0.0f);
    if (info.init == spec::InitKind::normal) {
      base::CounterRng rng{seed, name_hash(info.name)};
      base::parallel_for(info.num_elements(), 1 << 16, [&](int64_t begin, int64_t end) {
        kernels::draw_normal(rng, static_cast<uint64_t>(begin), info.init_std,
                             std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      });
    }
    set(slot, values);
  }
}

void ParameterStore::bump_versions() {
  for (Slot& slot : slots_) ++slot.parameter.weight.version;
}

void ParameterStore::refresh_compute() {
  if (options_.compute != DType::f32 && master_) {
    core::DeviceRuntime& device = core::runtime(options_.device);
    kernels::kernels_for(options_.device).axpby(device.stream(), {.x = master_, .y = compute_});
  }
  bump_versions();
}

void ParameterStore::begin_step() {
  for (Slot& slot : slots_) slot.parameter.has_gradient = false;
  forget_squares();
}

void ParameterStore::forget_squares() {
  for (Slot& slot : slots_) slot.parameter.has_squares = false;
}

void ParameterStore::sum_gradient_squares(const kernels::KernelTable& kernels, core::Stream& stream,
                                          const Tensor& total) const {
  kernels.fill(stream, {total, 0.0f});
  std::vector<const Slot*> order;
  for (const Slot& slot : slots_) {
    order.push_back(&slot);
    if (squares_ && !slot.parameter.has_squares) kernels.fill(stream, {squares_.slice(&slot - slots_.data(), 1), 0.0f});
  }
  if (squares_) kernels.sum(stream, {.x = squares_, .total = total});
  std::sort(order.begin(), order.end(), [](const Slot* a, const Slot* b) { return a->offset < b->offset; });
  // Stretches of the flat order without sums, each in one buffer.
  int64_t begin = 0;
  auto read_up_to = [&](int64_t end) {
    if (end > begin) kernels.sum_squares(stream, {.x = gradients_of(begin, end - begin), .total = total});
  };
  for (const Slot* slot : order) {
    if (slot->offset == short_end_) read_up_to(short_end_), begin = short_end_;
    if (!slot->parameter.has_squares) continue;
    read_up_to(slot->offset);
    begin = slot->offset + aligned(slot->info.num_elements());
  }
  read_up_to(num_elements_);
}

}  // namespace sinter::models
