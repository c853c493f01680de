// What a run makes small: turns a micro-batch into losses and begins the backward pass.
//
// One loss rule for all: a step's loss is the sum over its micro-batches and ranks of what forward() leaves in
// `places.losses`, divided by the sum of count() over them. forward() therefore takes gradients of
// places.scale times that sum; places.scale holds the loss scale divided by the count.
#pragma once
#include <string>
#include <vector>

#include "data/batch.h"
#include "models/transformer.h"

namespace sinter::train {

struct ObjectivePass {
  const ops::Context& context;  // without a tape: losses only
  const models::Transformer& transformer;
  const core::RaggedBatch& batch;  // on the device; lives until the backward pass has run
  const data::MicroBatch* host;    // the same on the host; null when a run is planned (shapes only)
  const models::DropoutKey& dropout;
  const models::LossPlaces& places;
  autograd::Variable input = {};  // of a pipeline stage that does not begin with tokens
};

class Objective {
 public:
  virtual ~Objective() = default;

  // Forward, and with a tape the head's gradients; the caller runs the tape. Every loss of places.losses (T) is
  // written.
  virtual void forward(const ObjectivePass& pass) = 0;
  // What the losses of a micro-batch are divided by, summed over the step.
  virtual double count(const data::MicroBatch& batch) const { return static_cast<double>(batch.num_supervised); }
  // Whether forward() looks at values on the host, so that it cannot be captured once and replayed.
  virtual bool reads_values() const { return false; }
  // Of the passes since the last call that had a tape: (name, sum, count), to be summed over ranks. The same names in
  // the same order on every rank.
  struct Metric {
    std::string name;
    double sum = 0, count = 0;
  };
  virtual std::vector<Metric> take_metrics() { return {}; }
};

// The cross entropy of every supervised token, times its weight where the batch has weights.
class LanguageModeling : public Objective {
 public:
  void forward(const ObjectivePass& pass) override;
  double count(const data::MicroBatch& batch) const override;  // the sum of the weights
};

}  // namespace sinter::train
