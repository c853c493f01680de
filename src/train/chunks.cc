#include "train/chunks.h"

namespace sinter::train {

Chunks::Chunks(const spec::ModelSpec& spec, models::ParameterStore& store, const parallel::Axes* axes) : axes_(axes) {
  const spec::TensorLayout layout = axes ? axes->layout() : spec::TensorLayout{};
  const int64_t stages = layout.pp * layout.interleave;
  for (int64_t stage = axes ? axes->place().pp : 0; stage < stages; stage += layout.pp) {
    models::TransformerPart part{
        layout.layers_of(spec.num_layers, stage), stage == 0, stage == stages - 1, nullptr, nullptr, nullptr};
    if (axes) part.tensor = axes->tensor(), part.context = axes->context(), part.expert = axes->expert();
    chunks_.push_back(std::make_unique<models::Transformer>(spec, store, part));
  }
}

std::vector<models::Transformer*> Chunks::all() const {
  std::vector<models::Transformer*> out;
  for (const auto& chunk : chunks_) out.push_back(chunk.get());
  return out;
}

}  // namespace sinter::train
