// Runs a pipeline's action list (spec/schedule.h): the passes of all micro-batches of a step over the stages of a
// model, with activations and their gradients sent between ranks. The simulator times the same lists.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/transformer.h"
#include "plan/simulate.h"
#include "spec/schedule.h"
#include "train/objective.h"

namespace sinter::train {

struct PipelineMicroBatch {
  const core::RaggedBatch& batch;  // the same tokens on all stages: each makes its own positions and rotations
  models::DropoutKey dropout;
  const models::LossPlaces& places;  // written on the last stage; `balance` is read on all
  const data::MicroBatch* host = nullptr;
};

// Of the steady clock, which the ranks of one machine share.
double clock_seconds();

// Rows of the residual stream that a rank of this chunk holds between sublayers.
int64_t stream_rows(const models::Transformer& chunk, const core::RaggedBatch& batch);
// Passes of each of a rank's chunks that wait for their backward at once.
std::vector<int64_t> chunks_in_flight(const spec::PipelineShape& shape, int64_t rank);

// Where the passes of a chunk allocate; null: from the context's memory.
class PipelineMemory {
 public:
  virtual ~PipelineMemory() = default;
  virtual core::Allocator& begin_forward(int64_t chunk, int64_t slot) = 0;
  virtual void begin_backward(int64_t chunk, int64_t slot) = 0;
  virtual void begin_weights(int64_t chunk, int64_t slot) = 0;
};

class Pipeline {
 public:
  // `group`: the ranks of the pipeline axis. `chunks`: this rank's model chunks, chunk c being virtual stage
  // c * pp + rank (models::TransformerPart says which layers it has). Keeps references to all of them.
  Pipeline(comm::Communicator& group, const spec::PipelineShape& shape, std::vector<models::Transformer*> chunks);

  // All passes of a step. Gradients add up in the chunks' stores, in the order of the list. `context` has no tape.
  // objective null: the transformer's own loss. host: as in autograd::Tape.
  void run(const ops::Context& context, autograd::Recompute mode, std::span<const PipelineMicroBatch> micro_batches,
           Objective* objective = nullptr, PipelineMemory* memory = nullptr, core::Allocator* host = nullptr);
  // The forward of one micro-batch through all stages, for its losses. memory(chunk): what that chunk allocates from.
  void evaluate(const ops::Context& context, const PipelineMicroBatch& micro_batch, Objective* objective,
                const std::function<core::Allocator&(int64_t chunk)>& memory);
  // Tied embeddings: the table of the first stage and its copy on the last get the sum of their gradients. After run().
  void sum_tied_gradients(const ops::Context& context);

  // What every action of the following runs took, in seconds of the steady clock; null: nothing is noted.
  void trace_into(std::vector<plan::TimedAction>* trace) { trace_ = trace; }

  // Most chunk passes that were kept for their backward at once in the last run: spec::max_in_flight.
  int64_t most_in_flight() const { return most_in_flight_; }

 private:
  struct Pass;  // one micro-batch on one chunk
  struct Step;  // what all actions of a run share
  void act(const spec::Action& action, Step& step);
  void end_pass(const spec::Action& action, Step& step, Pass& pass);
  bool is_last_stage(int64_t chunk) const;
  void make_lines();
  void send(bool is_gradient, const core::Tensor& values);
  void receive(bool is_gradient, const core::Tensor& values);
  void finish_sends();

  comm::Communicator& group_;
  const spec::PipelineShape shape_;
  const std::vector<models::Transformer*> chunks_;
  const std::vector<spec::Action> actions_;
  // Between two neighbours, one for each way, so that a transport that takes its messages in turn (NCCL) never has a
  // gradient wait behind an activation. Both sides come to a line's messages in the same order. Null at an end.
  struct Lines {
    std::unique_ptr<comm::Communicator> activation, gradient;
  };
  Lines before_, after_;
  std::unique_ptr<comm::Communicator> ends_;  // first and last stage; null on the others, or without tied embeddings
  // Copies of what is on its way, so that no pass waits for the other side; used again when they have left.
  struct Message {
    core::Tensor values;
    comm::Handle handle;  // null: free
  };
  std::vector<Message> messages_;
  int64_t in_flight_ = 0, most_in_flight_ = 0;
  std::vector<plan::TimedAction>* trace_ = nullptr;
};

}  // namespace sinter::train
