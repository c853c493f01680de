#include "tune/run/log_probs.h"

#include "base/error.h"
#include "base/log.h"
#include "core/host_copy.h"
#include "kernels/table.h"

namespace sinter::tune {

using core::Tensor;

std::vector<float> token_logprobs(const models::Transformer& transformer, const data::MicroBatch& host) {
  core::DeviceRuntime& device = core::runtime(transformer.store().options().device);
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  const ops::Context context{kernels::kernels_for(device.stream().device), device.stream(), device.allocator()};
  const autograd::Variable hidden = transformer.forward(context, batch, {});
  const Tensor losses(device.allocator(), {host.num_tokens()}, core::DType::f32);
  transformer.head_loss(context, hidden, batch.targets, {.losses = losses});
  std::vector<float> logprobs = core::to_host<float>(losses);
  for (float& value : logprobs) value = -value;
  return logprobs;
}

std::vector<float> reference_logprobs(const models::Transformer& transformer, const data::MicroBatch& batch) {
  transformer.store().use_adapters(false);
  try {
    std::vector<float> logprobs = token_logprobs(transformer, batch);
    transformer.store().use_adapters(true);
    return logprobs;
  } catch (...) {
    transformer.store().use_adapters(true);
    throw;
  }
}

bool has_adapter_reference(const spec::TuneRecipe& recipe) {
  return recipe.has_adapter() && recipe.adapter_from.empty() && recipe.tune.reference.empty() &&
         recipe.adapter.modules_to_save.empty();
}

models::OpenModel open_reference(const spec::TuneRecipe& recipe, const models::Transformer& model) {
  // The model before tuning, whatever a resumed run's weights are now.
  const std::string& path = recipe.tune.reference.empty() ? recipe.base.model.path : recipe.tune.reference;
  base::log_info("reference log-probabilities by '{}'", path);
  models::OpenModel reference =
      models::open_model(path, {model.store().options().device, model.store().options().compute});
  SINTER_CHECK(reference.spec.vocab_size == model.spec().vocab_size,
               "tune.reference '{}' has {} tokens; the model has {}", path, reference.spec.vocab_size,
               model.spec().vocab_size);
  return reference;
}

}  // namespace sinter::tune
