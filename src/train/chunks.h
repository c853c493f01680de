// The transformers of a rank: one, or one for each of its pipeline chunks.
#pragma once
#include <memory>
#include <vector>

#include "models/transformer.h"
#include "parallel/axes.h"

namespace sinter::train {

class Chunks {
 public:
  // Keeps references. `axes` null: all of the model.
  Chunks(const spec::ModelSpec& spec, models::ParameterStore& store, const parallel::Axes* axes);
  std::vector<models::Transformer*> all() const;
  models::Transformer& first() const { return *chunks_.front(); }
  const parallel::Axes* axes() const { return axes_; }

 private:
  const parallel::Axes* axes_;
  std::vector<std::unique_ptr<models::Transformer>> chunks_;
};

}  // namespace sinter::train
