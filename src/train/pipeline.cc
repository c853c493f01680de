#include "train/pipeline.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "ops/norm.h"

namespace sinter::train {
namespace {

using autograd::Tape;
using autograd::Variable;
using core::Tensor;
using spec::ActionKind;

// Messages of one kind between two ranks are told apart by micro-batch and receiving chunk.
int tag_of(bool is_gradient, int64_t micro_batch, int64_t receiving_chunk, int64_t num_chunks) {
  constexpr int64_t kHalf = 16384;
  return static_cast<int>((is_gradient ? kHalf : 0) + (micro_batch * num_chunks + receiving_chunk) % kHalf);
}

}  // namespace

struct Pipeline::Pass {
  std::unique_ptr<Tape> tape;
  Variable input, output;  // the stream at the chunk's borders; empty at the ends of the model
};

Pipeline::Pipeline(comm::Communicator& group, const spec::PipelineShape& shape,
                   std::vector<models::Transformer*> chunks)
    : group_(group), shape_(shape), chunks_(std::move(chunks)), actions_(spec::make_schedule(shape, group.rank())) {
  SINTER_CHECK(group.size() == shape.pp && static_cast<int64_t>(chunks_.size()) == shape.interleave,
               "[pipeline] {} ranks with {} chunks each; the schedule has {} and {}", group.size(), chunks_.size(),
               shape.pp, shape.interleave);
  if (chunks_[0]->spec().tied_head && shape.pp > 1) {
    const bool is_end = group.rank() == 0 || group.rank() == group.size() - 1;
    ends_ = group.split(is_end ? 0 : 1, group.rank(), "pipeline ends");
    if (!is_end) ends_.reset();
  }
}

bool Pipeline::is_last_stage(int64_t chunk) const {
  return chunk * shape_.pp + group_.rank() == shape_.pp * shape_.interleave - 1;
}

void Pipeline::run(const ops::Context& context, autograd::Recompute mode,
                   std::span<const PipelineMicroBatch> micro_batches) {
  SINTER_CHECK(static_cast<int64_t>(micro_batches.size()) == shape_.micro_batches,
               "[pipeline] {} micro-batches; the schedule has {}", micro_batches.size(), shape_.micro_batches);
  mode_ = mode;
  in_flight_ = most_in_flight_ = 0;
  std::vector<Pass> passes(micro_batches.size() * chunks_.size());
  for (const spec::Action& action : actions_) {
    const auto index = static_cast<size_t>(action.micro_batch);
    act(action, context, micro_batches[index], passes[index * chunks_.size() + static_cast<size_t>(action.chunk)]);
    std::erase_if(sent_, [](const Sent& sent) { return sent.handle->advance(); });
  }
  for (Sent& sent : sent_) sent.handle->wait();
  sent_.clear();
}

void Pipeline::act(const spec::Action& action, const ops::Context& context, const PipelineMicroBatch& micro_batch,
                   Pass& pass) {
  const models::Transformer& chunk = *chunks_[static_cast<size_t>(action.chunk)];
  const core::Shape stream_shape{micro_batch.batch.num_tokens, chunk.spec().hidden};
  auto tag = [&](bool is_gradient, int64_t receiving_chunk) {
    return tag_of(is_gradient, action.micro_batch, receiving_chunk, shape_.interleave);
  };
  auto receive = [&](bool is_gradient) {
    Tensor values = context.make(stream_shape, chunk.store().options().compute);
    group_.receive(values, action.peer, tag(is_gradient, action.chunk));
    return values;
  };
  // Chunks count up where the next stage is on the first rank again, and down on the way back.
  auto send = [&](bool is_gradient, const Tensor& values) {
    const bool wraps = is_gradient ? group_.rank() == 0 : group_.rank() == group_.size() - 1;
    const int64_t receiver = action.chunk + (wraps ? (is_gradient ? -1 : 1) : 0);
    sent_.push_back({values, group_.start_send(values, action.peer, tag(is_gradient, receiver))});
  };
  switch (action.kind) {
    case ActionKind::receive_activation:
      pass.input = Tape::make_variable(receive(false));
      return;
    case ActionKind::forward: {
      pass.tape = std::make_unique<Tape>(mode_);
      most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
      ops::Context recording = context;
      recording.tape = pass.tape.get();
      if (is_last_stage(action.chunk)) {
        chunk.loss(recording, micro_batch.batch, micro_batch.dropout, micro_batch.places, pass.input);
      } else {
        pass.output =
            chunk.stage(recording, micro_batch.batch, micro_batch.dropout, pass.input, micro_batch.places.balance);
      }
      return;
    }
    case ActionKind::send_activation:
      send(false, pass.output.value);
      pass.output.value = {};
      return;
    case ActionKind::receive_gradient:
      pass.output.slot->grad = receive(true);
      return;
    case ActionKind::backward:
      pass.tape->backward();
      pass.tape.reset();
      pass.output = {};
      --in_flight_;
      return;
    case ActionKind::send_gradient:
      send(true, pass.input.slot->grad);
      pass.input = {};
      return;
  }
}

void Pipeline::sum_tied_gradients(const ops::Context& context) {
  if (!ends_) return;
  autograd::Parameter& table = chunks_[0]->store().get("embedding.weight");
  ops::begin_gradient(context, table);
  ends_->all_reduce(table.grad);
}

}  // namespace sinter::train
