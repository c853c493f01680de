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

// What a pass ends with.
ActionKind last_of_pass(const spec::PipelineShape& shape) {
  return spec::splits_backward(shape) ? ActionKind::backward_weights : ActionKind::backward;
}

}  // namespace

int64_t stream_rows(const models::Transformer& chunk, const core::RaggedBatch& batch) {
  const parallel::TensorAxis* tensor = chunk.part().tensor;
  return tensor && tensor->splits_rows() ? batch.num_tokens / tensor->size() : batch.num_tokens;
}

std::vector<int64_t> chunks_in_flight(const spec::PipelineShape& shape, int64_t rank) {
  std::vector<int64_t> now(static_cast<size_t>(shape.interleave)), most(now);
  for (const spec::Action& action : spec::make_schedule(shape, rank)) {
    const auto c = static_cast<size_t>(action.chunk);
    if (action.kind == ActionKind::forward) most[c] = std::max(most[c], ++now[c]);
    if (action.kind == last_of_pass(shape)) --now[c];
  }
  return most;
}

struct Pipeline::Pass {
  std::unique_ptr<Tape> tape;
  Variable input, output;  // the stream at the chunk's borders; empty at the ends of the model
  core::Allocator* memory = nullptr;
  int64_t slot = -1;  // of the chunk's memory
};

struct Pipeline::Step {
  const ops::Context& context;
  autograd::Recompute mode;
  std::span<const PipelineMicroBatch> micro_batches;
  Objective* objective;
  PipelineMemory* memory;
  core::Allocator* host;
  std::vector<Pass> passes;
  std::vector<std::vector<int64_t>> free_slots;  // of each chunk's memory, the least last

  void begin_forward(Pass& pass, int64_t chunk) {
    if (pass.memory) return;
    pass.memory = &context.memory;
    if (!memory) return;
    std::vector<int64_t>& free = free_slots[static_cast<size_t>(chunk)];
    SINTER_CHECK(!free.empty(), "[pipeline] more passes of chunk {} at once than its memory was planned for", chunk);
    pass.slot = free.back();
    free.pop_back();
    pass.memory = &memory->begin_forward(chunk, pass.slot);
  }
  ops::Context of(const Pass& pass) const {
    return {context.kernels, context.stream, *pass.memory, pass.tape.get(), context.fp8, context.compute};
  }
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

// Messages of one kind between two ranks are told apart by micro-batch and receiving chunk.
int Pipeline::tag_of(bool is_gradient, int64_t micro_batch, int64_t chunk) const {
  constexpr int64_t kHalf = 16384;
  return static_cast<int>((is_gradient ? kHalf : 0) + (micro_batch * shape_.interleave + chunk) % kHalf);
}

// Chunks count up where the next stage is on the first rank again, and down on the way back.
int64_t Pipeline::receiver_of(bool is_gradient, int64_t chunk) const {
  const bool wraps = is_gradient ? group_.rank() == 0 : group_.rank() == group_.size() - 1;
  return chunk + (wraps ? (is_gradient ? -1 : 1) : 0);
}

void Pipeline::send(const Tensor& values, int to, int tag) {
  Message* message = nullptr;
  for (Message& m : messages_) {
    if (m.handle && m.handle->advance()) m.handle.reset();
    if (!m.handle && m.values.shape() == values.shape() && m.values.dtype() == values.dtype()) message = &m;
  }
  core::DeviceRuntime& device = core::runtime(values.device());
  if (!message) {
    messages_.push_back({Tensor(device.allocator(), values.shape(), values.dtype()), nullptr});
    message = &messages_.back();
  }
  device.copy_within(message->values.raw(), values.raw(), values.bytes(), device.stream());
  message->handle = group_.start_send(message->values, to, tag);
}

void Pipeline::finish_sends() {
  for (Message& m : messages_) {
    if (m.handle) m.handle->wait();
    m.handle.reset();
  }
}

void Pipeline::run(const ops::Context& context, autograd::Recompute mode,
                   std::span<const PipelineMicroBatch> micro_batches, Objective* objective, PipelineMemory* memory,
                   core::Allocator* host) {
  SINTER_CHECK(static_cast<int64_t>(micro_batches.size()) == shape_.micro_batches,
               "[pipeline] {} micro-batches; the schedule has {}", micro_batches.size(), shape_.micro_batches);
  in_flight_ = most_in_flight_ = 0;
  Step step{context, mode, micro_batches, objective, memory, host, {}, {}};
  step.passes.resize(micro_batches.size() * chunks_.size());
  for (int64_t most : chunks_in_flight(shape_, group_.rank())) {
    step.free_slots.emplace_back();
    for (int64_t slot = most; slot > 0; --slot) step.free_slots.back().push_back(slot - 1);
  }
  for (const spec::Action& action : actions_) act(action, step);
  finish_sends();
}

void Pipeline::act(const spec::Action& action, Step& step) {
  const models::Transformer& chunk = *chunks_[static_cast<size_t>(action.chunk)];
  const auto index = static_cast<size_t>(action.micro_batch);
  const PipelineMicroBatch& micro_batch = step.micro_batches[index];
  Pass& pass = step.passes[index * chunks_.size() + static_cast<size_t>(action.chunk)];
  auto receive = [&](bool is_gradient) {
    Tensor values = step.of(pass).make({stream_rows(chunk, micro_batch.batch), chunk.spec().hidden},
                                       chunk.store().options().compute);
    group_.receive(values, action.peer, tag_of(is_gradient, action.micro_batch, action.chunk));
    return values;
  };
  auto send_on = [&](bool is_gradient, const Tensor& values) {
    send(values, action.peer, tag_of(is_gradient, action.micro_batch, receiver_of(is_gradient, action.chunk)));
  };
  auto begin_backward = [&] {
    if (step.memory && pass.slot >= 0) step.memory->begin_backward(action.chunk, pass.slot);
  };
  switch (action.kind) {
    case ActionKind::receive_activation:
      step.begin_forward(pass, action.chunk);
      pass.input = Tape::make_variable(receive(false));
      return;
    case ActionKind::forward: {
      step.begin_forward(pass, action.chunk);
      pass.tape = std::make_unique<Tape>(step.mode, step.host);
      if (spec::splits_backward(shape_)) pass.tape->split_weights();
      most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
      const ops::Context recording = step.of(pass);
      if (!is_last_stage(action.chunk)) {
        pass.output =
            chunk.stage(recording, micro_batch.batch, micro_batch.dropout, pass.input, micro_batch.places.balance);
      } else if (step.objective) {
        step.objective->forward({recording, chunk, micro_batch.batch, micro_batch.host, micro_batch.dropout,
                                 micro_batch.places, pass.input});
      } else {
        chunk.loss(recording, micro_batch.batch, micro_batch.dropout, micro_batch.places, pass.input);
      }
      return;
    }
    case ActionKind::send_activation:
      send_on(false, pass.output.value);
      pass.output.value = {};
      return;
    case ActionKind::receive_gradient:
      begin_backward();
      pass.output.slot->grad = receive(true);
      return;
    case ActionKind::backward:
      if (is_last_stage(action.chunk)) begin_backward();
      pass.tape->backward();
      pass.output = {};
      if (last_of_pass(shape_) == ActionKind::backward) end_pass(action, step, pass);
      return;
    case ActionKind::backward_weights:
      if (step.memory && pass.slot >= 0) step.memory->begin_weights(action.chunk, pass.slot);
      pass.tape->backward_weights();
      end_pass(action, step, pass);
      return;
    case ActionKind::send_gradient:
      send_on(true, pass.input.slot->grad);
      pass.input = {};
      return;
  }
}

void Pipeline::end_pass(const spec::Action& action, Step& step, Pass& pass) {
  pass.tape.reset();
  --in_flight_;
  if (step.memory && pass.slot >= 0) step.free_slots[static_cast<size_t>(action.chunk)].push_back(pass.slot);
}

void Pipeline::evaluate(const ops::Context& context, const PipelineMicroBatch& micro_batch, Objective* objective,
                        const std::function<core::Allocator&(int64_t chunk)>& memory) {
  const int64_t pp = group_.size(), rank = group_.rank();
  for (int64_t c = 0; c < shape_.interleave; ++c) {
    const models::Transformer& chunk = *chunks_[static_cast<size_t>(c)];
    const ops::Context own{context.kernels, context.stream, memory(c), nullptr, nullptr, context.compute};
    Variable input;
    if (c * pp + rank > 0) {
      Tensor values =
          own.make({stream_rows(chunk, micro_batch.batch), chunk.spec().hidden}, chunk.store().options().compute);
      group_.receive(values, static_cast<int>((rank - 1 + pp) % pp), tag_of(false, 0, c));
      input = Tape::make_variable(values);
    }
    if (is_last_stage(c)) {
      objective->forward(
          {own, chunk, micro_batch.batch, micro_batch.host, micro_batch.dropout, micro_batch.places, input});
    } else {
      const Variable output = chunk.stage(own, micro_batch.batch, micro_batch.dropout, input, {});
      send(output.value, static_cast<int>((rank + 1) % pp), tag_of(false, 0, receiver_of(false, c)));
    }
  }
  finish_sends();
}

void Pipeline::sum_tied_gradients(const ops::Context& context) {
  if (!ends_) return;
  autograd::Parameter& table = chunks_[0]->store().get("embedding.weight");
  ops::begin_gradient(context, table);
  ends_->all_reduce(table.grad);
}

}  // namespace sinter::train
