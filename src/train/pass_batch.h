// A micro-batch on the device with everything its passes read and leave: of the context axis, this rank's tokens.
#pragma once
#include <optional>
#include <vector>

#include "data/batch.h"
#include "models/transformer.h"
#include "parallel/context.h"
#include "train/step_plan.h"

namespace sinter::train {

class PassBatch {
 public:
  // `context` null: whole sequences. The places that no plan counts come from `allocator`.
  PassBatch(const spec::ModelSpec& spec, const StepShape& shape, core::Allocator& allocator,
            const parallel::ContextAxis* context);
  // first_token: number of the micro-batch's first token in the step.
  void load(const data::MicroBatch& host, uint64_t first_token);
  const core::RaggedBatch& get() const { return batch_; }
  models::LossPlaces& places() { return places_; }
  const models::LossPlaces& places() const { return places_; }

 private:
  const StepShape& shape_;
  const parallel::ContextAxis* context_;
  const std::vector<int64_t> windows_;
  data::TrainingBatch device_;
  std::optional<parallel::DeviceContextView> view_;
  core::RaggedBatch batch_;
  core::RowNoise noise_;
  models::LossPlaces places_;
};

// Tokens of a micro-batch on one rank.
int64_t local_tokens(const StepShape& shape, const parallel::ContextAxis* context);

}  // namespace sinter::train
