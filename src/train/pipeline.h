// Runs a pipeline's action list (spec/schedule.h): the passes of all micro-batches of a step over the stages of a
// model, with activations and their gradients sent between ranks. The simulator times the same lists.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/transformer.h"
#include "spec/schedule.h"

namespace sinter::train {

struct PipelineMicroBatch {
  const core::RaggedBatch& batch;  // the same tokens on all stages: each makes its own positions and rotations
  models::DropoutKey dropout;
  const models::LossPlaces& places;  // written on the last stage; `balance` is read on all
};

class Pipeline {
 public:
  // `group`: the ranks of the pipeline axis. `chunks`: this rank's model chunks, chunk c being virtual stage
  // c * pp + rank (models::TransformerPart says which layers it has). Keeps references to all of them.
  Pipeline(comm::Communicator& group, const spec::PipelineShape& shape, std::vector<models::Transformer*> chunks);

  // All passes of a step. Gradients add up in the chunks' stores, in the order of the list. `context` has no tape.
  void run(const ops::Context& context, autograd::Recompute mode, std::span<const PipelineMicroBatch> micro_batches);
  // Tied embeddings: the table of the first stage and its copy on the last get the sum of their gradients. After run().
  void sum_tied_gradients(const ops::Context& context);

  // Most chunk passes that were kept for their backward at once in the last run: spec::max_in_flight.
  int64_t most_in_flight() const { return most_in_flight_; }

 private:
  struct Pass;  // one micro-batch on one chunk
  void act(const spec::Action& action, const ops::Context& context, const PipelineMicroBatch& micro_batch, Pass& pass);
  bool is_last_stage(int64_t chunk) const;

  comm::Communicator& group_;
  const spec::PipelineShape shape_;
  const std::vector<models::Transformer*> chunks_;
  const std::vector<spec::Action> actions_;
  std::unique_ptr<comm::Communicator> ends_;  // first and last stage; null on the others, or without tied embeddings
  autograd::Recompute mode_ = autograd::Recompute::none;
  struct Sent {
    core::Tensor values;  // alive until they have left
    comm::Handle handle;
  };
  std::vector<Sent> sent_;
  int64_t in_flight_ = 0, most_in_flight_ = 0;
};

}  // namespace sinter::train
