#include "quant/importance.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "core/host_batch.h"
#include "kernels/table.h"
#include "models/gguf_export.h"
#include "spec/families.h"

namespace sinter::quant {
namespace {

using core::Tensor;
using models::ParameterStore;

// Kernels are plain functions, so what they call stands here while an ObservedKernels lives.
struct Observation {
  decltype(kernels::KernelTable::matmul) matmul = nullptr;
  std::map<const void*, const ParameterStore::Slot*> slots;  // by the place of the weight
  std::function<void(const ObservedProduct&)> observer;
};
Observation* g_observation = nullptr;

const void* place_of(const core::WeightView& weight) {
  return weight.is_plain() ? weight.data.raw() : static_cast<const void*>(weight.blocks.get());
}

void observed_matmul(core::Stream& stream, const kernels::MatmulArgs& args) {
  if (args.transpose_b) {
    auto found = g_observation->slots.find(place_of(args.b));
    if (found != g_observation->slots.end()) g_observation->observer({found->second, args.a, args.group_offsets});
  }
  g_observation->matmul(stream, args);
}

// Sums of squares by column, of every expert.
struct Sums {
  std::vector<double> squares;
  std::vector<double> counts;  // rows, of each expert
};

void add_rows(const Tensor& rows, int64_t begin, int64_t end, double* squares) {
  const int64_t K = rows.size(-1);
  const float* x = rows.data<float>();
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t c = 0; c < K; ++c) squares[c] += static_cast<double>(x[r * K + c]) * static_cast<double>(x[r * K + c]);
  }
}

}  // namespace

ObservedKernels::ObservedKernels(const kernels::KernelTable& table, ParameterStore& store,
                                 std::function<void(const ObservedProduct&)> observer)
    : table_(std::make_unique<kernels::KernelTable>(table)) {
  SINTER_CHECK(!g_observation, "[quant] two observations at once");
  g_observation = new Observation{table.matmul, {}, std::move(observer)};
  for (const ParameterStore::Slot& slot : store.slots()) {
    if (slot.info.shape.rank() >= 2) g_observation->slots[place_of(slot.parameter.weight)] = &slot;
  }
  table_->matmul = observed_matmul;
  table_->fused_matmul = nullptr;
  table_->rotated_matmul = nullptr;
  table_->linear_cross_entropy = nullptr;
}

ObservedKernels::~ObservedKernels() {
  delete g_observation;
  g_observation = nullptr;
}

Importance measure_importance(const models::OpenModel& model, const std::vector<int32_t>& tokens, int32_t prefix_token,
                              const std::function<void(int64_t, int64_t)>& on_progress) {
  SINTER_CHECK(
      model.store->options().device.kind == core::DeviceKind::cpu && model.store->options().compute == core::DType::f32,
      "[quant] calibration runs on the CPU in fp32");
  constexpr int64_t kLongestWindow = 512;
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t window = std::min({kLongestWindow, model.spec.max_positions - 1, total});
  SINTER_CHECK(window >= 1, "the calibration text has no tokens");
  std::map<const ParameterStore::Slot*, Sums> sums;
  core::DeviceRuntime& device = core::runtime({});
  {
    const ObservedKernels observed(kernels::kernels_for({}), *model.store, [&](const ObservedProduct& product) {
      const int64_t K = product.rows.size(-1),
                    E = product.slot->info.shape.rank() == 3 ? product.slot->info.shape[0] : 1;
      Sums& sum = sums[product.slot];
      sum.squares.resize(static_cast<size_t>(E * K));
      sum.counts.resize(static_cast<size_t>(E));
      for (int64_t e = 0; e < E; ++e) {
        const int32_t* offsets = product.group_offsets ? product.group_offsets.data<int32_t>() : nullptr;
        const int64_t begin = offsets ? offsets[e] : 0, end = offsets ? offsets[e + 1] : product.rows.rows();
        add_rows(product.rows, begin, end, sum.squares.data() + e * K);
        sum.counts[static_cast<size_t>(e)] += static_cast<double>(end - begin);
      }
    });
    ops::Context context{observed.table(), device.stream(), device.allocator(), nullptr};
    for (int64_t begin = 0; begin + window <= total; begin += window) {
      std::vector<int32_t> sequence;
      if (prefix_token >= 0) sequence.push_back(prefix_token);
      sequence.insert(sequence.end(), tokens.begin() + begin, tokens.begin() + begin + window);
      core::HostBatch host;
      host.add_sequence(sequence);
      const core::RaggedBatch batch = core::upload(device.allocator(), host);
      model.transformer->logits(context, model.transformer->forward(context, batch, {}).value);
      if (on_progress) on_progress(begin + window, total);
    }
  }
  Importance importance;
  for (const auto& [slot, sum] : sums) {
    const auto K = static_cast<size_t>(slot->info.shape[-1]);
    std::vector<float> values(sum.squares.size());
    for (size_t e = 0; e < sum.counts.size(); ++e) {
      for (size_t c = 0; c < K; ++c) {
        double squares = sum.squares[e * K + c], count = sum.counts[e];
        if (count == 0) {  // an expert that nothing came to
          for (size_t other = 0; other < sum.counts.size(); ++other)
            squares += sum.squares[other * K + c], count += sum.counts[other];
        }
        values[e * K + c] = static_cast<float>(squares / std::max(1.0, count));
      }
    }
    for (const spec::ParameterPart& part : slot->info.parts) importance[spec::gguf_place(part).name] = values;
  }
  return importance;
}

}  // namespace sinter::quant
