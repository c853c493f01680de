#include "models/replace_weights.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "spec/hf_config.h"

namespace sinter::models {
namespace {

void check_same_model(const OpenModel& model, const OpenModel& fresh, const std::string& origin) {
  const nlohmann::json was = spec::make_hf_config(model.spec, ""), is = spec::make_hf_config(fresh.spec, "");
  const nlohmann::json difference = nlohmann::json::diff(was, is);
  SINTER_CHECK(difference.empty(),
               "'{}' is another model than the one in use: its config.json differs in '{}'; only weights can be "
               "replaced, so start again with that folder",
               origin, difference[0].value("path", "").substr(1));
}

void check_same_formats(const ParameterStore& store, const ParameterStore& fresh, const std::string& origin) {
  SINTER_CHECK(store.slots().size() == fresh.slots().size(), "'{}' has {} tensors; expected {}", origin,
               fresh.slots().size(), store.slots().size());
  for (size_t i = 0; i < store.slots().size(); ++i) {
    const ParameterStore::Slot &old = store.slots()[i], &slot = fresh.slots()[i];
    const bool is_same = old.info.name == slot.info.name && old.info.shape == slot.info.shape &&
                         old.is_apart == slot.is_apart &&
                         old.parameter.weight.format_name() == slot.parameter.weight.format_name();
    SINTER_CHECK(is_same,
                 "'{}': tensor '{}' is {} there, but {} in the model in use; write the folder in the same format, or "
                 "start again with it",
                 origin, old.info.name, slot.parameter.weight.format_name(), old.parameter.weight.format_name());
    SINTER_CHECK(!slot.is_apart || store.options().device.kind == core::DeviceKind::cpu,
                 "'{}': quantized weights cannot be replaced on a GPU; start again with that folder", origin);
  }
}

}  // namespace

void replace_weights(OpenModel& model, const OpenModel& fresh, const std::string& origin) {
  check_same_model(model, fresh, origin);
  check_same_formats(*model.store, *fresh.store, origin);
  core::DeviceRuntime& device = core::runtime(model.store->options().device);
  auto copy = [&](const Tensor& to, const Tensor& from) {
    if (to && from) device.copy_within(to.raw(), from.raw(), to.bytes(), device.stream());
  };
  for (size_t i = 0; i < model.store->slots().size(); ++i) {
    ParameterStore::Slot& slot = model.store->slots()[i];
    const Parameter& from = fresh.store->slots()[i].parameter;
    if (slot.is_apart) {
      model.store->set_blocks(slot, from.weight.blocks);
      continue;
    }
    copy(slot.parameter.weight.data, from.weight.data);
    copy(slot.parameter.master, from.master);
    ++slot.parameter.weight.version;
  }
  device.synchronize(device.stream());
}

}  // namespace sinter::models
