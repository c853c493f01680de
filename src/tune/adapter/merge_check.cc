#include "tune/adapter/merge_check.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "core/host_batch.h"
#include "core/host_copy.h"
#include "models/open_model.h"
#include "models/weights.h"
#include "tune/adapter/merge.h"

namespace sinter::tune {
namespace {

constexpr int64_t kTokens = 32;
constexpr uint64_t kStream = 0x6d65726765;  // "merge"

std::vector<float> logits_of(const models::Transformer& transformer) {
  const int64_t vocab = transformer.spec().vocab_size;
  const base::CounterRng random{0, kStream};
  std::vector<int32_t> ids;
  for (uint64_t i = 0; i < kTokens; ++i)
    ids.push_back(static_cast<int32_t>(random.uniform(i) * static_cast<float>(vocab)) % static_cast<int32_t>(vocab));
  core::HostBatch host;
  host.add_sequence(ids);
  core::DeviceRuntime& device = core::runtime({});
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  const ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator()};
  return core::to_host<float>(transformer.logits(context, transformer.forward(context, batch, {}).value));
}

}  // namespace

MergeCheck check_merge(const std::string& base, const std::string& adapter, const std::string& merged) {
  std::vector<float> expected;
  {
    const spec::ModelSpec model = models::load_model_spec(base);
    models::ParameterStore store(
        spec::whole_table(spec::make_adapter_table(model, resolve_targets(read_peft_config(adapter), model))), {});
    models::load_weights(store, model, io::TensorFolder(base));
    load_adapter(store, adapter);
    expected = logits_of(models::Transformer(model, store));
  }
  const models::OpenModel written = models::open_model(merged, {});
  const std::vector<float> found = logits_of(*written.transformer);
  MergeCheck check{.tokens = kTokens};
  float largest = 1e-6f, difference = 0;
  const size_t vocab = expected.size() / kTokens;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    const float one = std::abs(expected[i] - found[i]);
    if (!(one <= difference)) difference = one;
  }
  for (size_t t = 0; t < kTokens; ++t) {
    auto top = [&](const std::vector<float>& all) {
      const auto begin = all.begin() + static_cast<ptrdiff_t>(t * vocab);
      return std::max_element(begin, begin + static_cast<ptrdiff_t>(vocab)) - begin;
    };
    check.same_top += top(expected) == top(found) ? 1 : 0;
  }
  check.error = static_cast<double>(difference) / static_cast<double>(largest);
  return check;
}

}  // namespace sinter::tune
