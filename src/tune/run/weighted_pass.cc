#include "tune/run/weighted_pass.h"

#include "base/error.h"
#include "core/host_copy.h"

namespace sinter::tune {

void weighted_pass(const train::ObjectivePass& pass, const TermsOf& terms_of, const BesideHead& beside) {
  const models::LossPlaces& places = pass.places;
  SINTER_CHECK(static_cast<bool>(places.weights), "[objective] the run's batches have no room for weights");
  const autograd::Variable hidden =
      pass.transformer.forward(pass.context, pass.batch, pass.dropout, nullptr, places.balance);
  if (beside) beside(hidden);
  ops::Context looking = pass.context;
  looking.tape = nullptr;
  const models::LossPlaces plain{.scale = places.scale, .losses = places.losses};
  pass.transformer.head_loss(looking, {hidden.value, nullptr, nullptr}, pass.batch.targets, plain);
  core::DeviceRuntime& device = core::runtime(pass.context.stream.device);
  PassTerms terms;
  if (pass.host) {
    std::vector<float> logprobs = core::to_host<float>(places.losses);
    for (float& value : logprobs) value = -value;
    terms = terms_of(logprobs);
    SINTER_CHECK(terms.losses.size() == logprobs.size() && terms.weights.size() == logprobs.size(),
                 "[objective] {} losses and {} weights for {} tokens", terms.losses.size(), terms.weights.size(),
                 logprobs.size());
    device.copy_to_device(places.weights.raw(), terms.weights.data(), places.weights.bytes(), device.stream());
  }
  if (pass.context.is_recording()) {
    const models::LossPlaces weighted{.scale = places.scale, .losses = places.losses, .weights = places.weights};
    pass.transformer.head_loss(pass.context, hidden, pass.batch.targets, weighted);
  }
  if (pass.host)
    device.copy_to_device(places.losses.raw(), terms.losses.data(), places.losses.bytes(), device.stream());
  // The vectors live until the copies are done.
  if (pass.host) device.synchronize(device.stream());
}

}  // namespace sinter::tune
