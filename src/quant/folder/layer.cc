#include "quant/folder/layer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/table.h"
#include "quant/importance.h"

namespace sinter::quant {

std::vector<CalibrationBatch> make_calibration(const std::vector<int32_t>& tokens, int64_t window,
                                               int32_t prefix_token) {
  constexpr int64_t kBatchTokens = 2048;
  const auto total = static_cast<int64_t>(tokens.size());
  SINTER_CHECK(total > 0, "the calibration text is empty; give some thousand words of what the model is for");
  SINTER_CHECK(window > 0 && total >= window, "the calibration text has {} tokens; expected {} or more", total, window);
  std::vector<CalibrationBatch> batches;
  for (int64_t begin = 0; begin + window <= total; begin += window) {
    if (batches.empty() || batches.back().host.num_tokens() >= kBatchTokens) batches.emplace_back();
    std::vector<int32_t> sequence;
    if (prefix_token >= 0) sequence.push_back(prefix_token);
    sequence.insert(sequence.end(), tokens.begin() + begin, tokens.begin() + begin + window);
    batches.back().host.add_sequence(sequence);
  }
  return batches;
}

namespace {

// Elements of a part in its tensor's values: first and count.
std::pair<size_t, size_t> place_of(const spec::ParameterSpec& info, const spec::ParameterPart& part) {
  const int64_t columns = info.shape.rank() == 1 ? 1 : info.shape[-1];
  const int64_t rows = info.shape.rank() == 3 ? info.shape[1] : 0;
  const int64_t first_row = std::max<int64_t>(0, part.expert) * rows + part.row_begin;
  return {static_cast<size_t>(first_row * columns), static_cast<size_t>(part.rows * columns)};
}

core::Tensor copy_of(const core::Tensor& rows) {
  core::Tensor copy(core::runtime({}).allocator(), {rows.rows(), rows.size(-1)}, core::DType::f32);
  std::memcpy(copy.raw(), rows.raw(), copy.bytes());
  return copy;
}

// y = or += factor x weight^T
void multiply(const core::Tensor& x, const core::WeightView& weight, float factor, const core::Tensor& y,
              bool accumulates) {
  kernels::MatmulArgs args;
  args.a = x;
  args.b = weight;
  args.c = y;
  args.transpose_b = true;
  args.alpha = factor;
  args.accumulate = accumulates;
  kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
}

// y = or += a - b
void add_difference(const core::Tensor& a, const core::Tensor& b, const core::Tensor& y, bool accumulates) {
  const float *from = a.data<float>(), *less = b.data<float>();
  float* to = y.data<float>();
  for (int64_t i = 0; i < y.num_elements(); ++i) to[i] = (accumulates ? to[i] : 0.0f) + from[i] - less[i];
}

}  // namespace

Layer::Layer(const models::PartReader& reader, const std::vector<spec::ParameterSpec>& table, int64_t layer) {
  std::vector<spec::ParameterSpec> own;
  std::copy_if(table.begin(), table.end(), std::back_inserter(own),
               [&](const spec::ParameterSpec& p) { return p.layer == layer; });
  store_ = std::make_unique<models::ParameterStore>(spec::whole_table(std::move(own)), models::StoreOptions{});
  for (Slot& slot : store_->slots()) {
    std::vector<float> values(static_cast<size_t>(slot.info.num_elements()));
    for (const spec::ParameterPart& part : slot.info.parts) {
      const std::vector<float> piece = reader.read(slot.info, part);
      std::copy(piece.begin(), piece.end(),
                values.begin() + static_cast<std::ptrdiff_t>(place_of(slot.info, part).first));
    }
    store_->set(slot, values);
  }
  models::TransformerPart part{{std::max<int64_t>(0, layer), layer < 0 ? 0 : 1}, layer < 0, false};
  transformer_ = std::make_unique<models::Transformer>(reader.spec(), *store_, part);
}

Layer::Slot* Layer::find(const std::string& ending) {
  auto found =
      std::find_if(slots().begin(), slots().end(), [&](const Slot& s) { return s.info.name.ends_with(ending); });
  return found == slots().end() ? nullptr : &*found;
}

std::vector<float> Layer::read(const Slot& slot, const spec::ParameterPart& part) const {
  const auto [first, count] = place_of(slot.info, part);
  const std::vector<float> all = store_->values_of(slot);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

void Layer::write(Slot& slot, const spec::ParameterPart& part, const std::vector<float>& values) {
  std::vector<float> all = store_->values_of(slot);
  std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(place_of(slot.info, part).first));
  store_->set(slot, all);
}

core::Tensor Layer::run(const kernels::KernelTable& kernels, const core::HostBatch& host,
                        const core::Tensor& stream) const {
  core::DeviceRuntime& device = core::runtime({});
  const ops::Context context{kernels, device.stream(), device.allocator(), nullptr};
  const core::RaggedBatch ragged = core::upload(device.allocator(), host);
  models::Variable input;
  input.value = stream;
  return transformer_->stage(context, ragged, {}, input).value;
}

std::map<const Layer::Slot*, std::vector<Hessian>> Layer::observe(const std::vector<CalibrationBatch>& text,
                                                                  const std::vector<const Slot*>& slots) {
  std::map<const Slot*, std::vector<Hessian>> sums;
  for (const Slot* slot : slots) {
    const int64_t experts = slot->info.shape.rank() == 3 ? slot->info.shape[0] : 1;
    for (int64_t e = 0; e < experts; ++e) sums[slot].emplace_back(slot->info.shape[-1]);
  }
  const ObservedKernels observed(kernels::kernels_for({}), *store_, [&](const ObservedProduct& product) {
    const auto found = sums.find(product.slot);
    if (found == sums.end()) return;
    const int32_t* ends = product.group_offsets ? product.group_offsets.data<int32_t>() : nullptr;
    for (size_t e = 0; e < found->second.size(); ++e) {
      const int64_t begin = ends ? ends[e] : 0, end = ends ? ends[e + 1] : product.rows.rows();
      found->second[e].add(product.rows.slice(begin, end - begin));
    }
  });
  for (const CalibrationBatch& batch : text) run(observed.table(), batch.host, batch.stream);
  return sums;
}

core::Tensor Layer::rows_read(const Slot& slot, const core::HostBatch& host, const core::Tensor& stream,
                              core::Tensor& after) {
  core::Tensor rows;
  const ObservedKernels observed(kernels::kernels_for({}), *store_, [&](const ObservedProduct& product) {
    if (product.slot == &slot) rows = copy_of(product.rows);
  });
  after = run(observed.table(), host, stream);
  SINTER_CHECK(rows, "[quant] no product reads '{}'", slot.info.name);
  return rows;
}

WeightInputs Layer::observe_beside(Layer& original, const std::vector<CalibrationBatch>& text, const Slot& slot) {
  if (slot.info.shape.rank() != 2) return {std::move(observe(text, {&slot}).at(&slot)), {}};
  const auto number = static_cast<size_t>(&slot - slots().data());
  const Slot& exact_slot = original.slots()[number];
  const bool is_out = slot.info.name.ends_with("attention.out.weight");
  const bool is_down = slot.info.name.ends_with("mlp.down.weight");
  WeightInputs inputs;
  const int64_t rows = slot.info.shape[0], columns = slot.info.shape[1];
  Hessian& read = inputs.read.emplace_back(columns);
  core::Allocator& memory = core::runtime({}).allocator();
  inputs.drift = core::Tensor(memory, {rows, columns}, core::DType::f32);
  std::memset(inputs.drift.raw(), 0, inputs.drift.bytes());
  for (const CalibrationBatch& batch : text) {
    core::Tensor after, exact_after;
    const core::Tensor x = rows_read(slot, batch.host, batch.stream, after);
    const core::Tensor exact_x = original.rows_read(exact_slot, batch.host, batch.exact, exact_after);
    read.add(x);
    const core::Tensor missing(memory, {x.rows(), rows}, core::DType::f32);  // results wanted - results
    if (is_down) {
      add_difference(exact_after, after, missing, false);
    } else {
      multiply(exact_x, exact_slot.parameter.weight, 1, missing, false);
      multiply(x, slot.parameter.weight, -1, missing, true);
      if (is_out) add_difference(batch.exact, batch.stream, missing, true);
    }
    kernels::MatmulArgs args;
    args.a = missing;
    args.b = {.data = x};
    args.c = inputs.drift;
    args.transpose_a = true;
    args.accumulate = true;
    kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
  }
  return inputs;
}

void Layer::advance(std::vector<CalibrationBatch>& text, core::Tensor CalibrationBatch::*stream) {
  for (CalibrationBatch& batch : text) batch.*stream = run(kernels::kernels_for({}), batch.host, batch.*stream);
}

}  // namespace sinter::quant
