#include "train/objective.h"

namespace sinter::train {

void LanguageModeling::forward(const ObjectivePass& pass) {
  pass.transformer.loss(pass.context, pass.batch, pass.dropout, pass.places, pass.input);
}

double LanguageModeling::count(const data::MicroBatch& batch) const {
  if (batch.weights.empty()) return static_cast<double>(batch.num_supervised);
  double sum = 0;
  for (float weight : batch.weights) sum += static_cast<double>(weight);
  return sum;
}

}  // namespace sinter::train
