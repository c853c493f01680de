#include "train/pipeline.h"

#include <algorithm>
#include <chrono>
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

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

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
  if (shape.pp > 1) make_lines();
  if (chunks_[0]->spec().tied_head && shape.pp > 1) {
    const bool is_end = group.rank() == 0 || group.rank() == group.size() - 1;
    ends_ = group.split(is_end ? 0 : 1, group.rank(), "pipeline ends");
    if (!is_end) ends_.reset();
  }
}

bool Pipeline::is_last_stage(int64_t chunk) const {
  return chunk * shape_.pp + group_.rank() == shape_.pp * shape_.interleave - 1;
}

// Neighbours meet in pairs: those that begin at an even rank, those that begin at an odd one, and the last with the
// first, whose chunks follow each other.
void Pipeline::make_lines() {
  const int pp = group_.size(), rank = group_.rank();
  enum class Pairs { even, odd, around };
  for (const Pairs pairs : {Pairs::even, Pairs::odd, Pairs::around}) {
    if (pairs == Pairs::around && shape_.interleave == 1) continue;
    auto begins_pair = [&](int a) {
      return pairs == Pairs::around ? a == pp - 1 : a % 2 == (pairs == Pairs::odd) && a + 1 < pp;
    };
    const int previous = (rank + pp - 1) % pp;
    const int color = begins_pair(rank) ? rank : begins_pair(previous) ? previous : pp + rank;
    for (const bool is_gradient : {false, true}) {
      auto line = group_.split(color, rank, is_gradient ? "pipeline gradients" : "pipeline activations");
      if (color >= pp) continue;
      Lines& lines = color == rank ? after_ : before_;
      (is_gradient ? lines.gradient : lines.activation) = std::move(line);
    }
  }
}

void Pipeline::send(bool is_gradient, const Tensor& values) {
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
  comm::Communicator& line = is_gradient ? *before_.gradient : *after_.activation;
  message->handle = line.start_send(message->values, 1 - line.rank());
}

void Pipeline::receive(bool is_gradient, const Tensor& values) {
  comm::Communicator& line = is_gradient ? *after_.gradient : *before_.activation;
  line.receive(values, 1 - line.rank());
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
  for (const spec::Action& action : actions_) {
    const double begin = trace_ ? clock_seconds() : 0;
    act(action, step);
    if (trace_) trace_->push_back({action, begin, clock_seconds()});
  }
  finish_sends();
}

void Pipeline::act(const spec::Action& action, Step& step) {
  const models::Transformer& chunk = *chunks_[static_cast<size_t>(action.chunk)];
  const auto index = static_cast<size_t>(action.micro_batch);
  const PipelineMicroBatch& micro_batch = step.micro_batches[index];
  Pass& pass = step.passes[index * chunks_.size() + static_cast<size_t>(action.chunk)];
  auto received = [&](bool is_gradient) {
    Tensor values = step.of(pass).make({stream_rows(chunk, micro_batch.batch), chunk.spec().hidden},
                                       chunk.store().options().compute);
    receive(is_gradient, values);
    return values;
  };
  auto begin_backward = [&] {
    if (step.memory && pass.slot >= 0) step.memory->begin_backward(action.chunk, pass.slot);
  };
  switch (action.kind) {
    case ActionKind::receive_activation:
      step.begin_forward(pass, action.chunk);
      pass.input = Tape::make_variable(received(false));
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
      send(false, pass.output.value);
      pass.output.value = {};
      return;
    case ActionKind::receive_gradient:
      begin_backward();
      pass.output.slot->grad = received(true);
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
      send(true, pass.input.slot->grad);
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
      receive(false, values);
      input = Tape::make_variable(values);
    }
    if (is_last_stage(c)) {
      objective->forward(
          {own, chunk, micro_batch.batch, micro_batch.host, micro_batch.dropout, micro_batch.places, input});
    } else {
      const Variable output = chunk.stage(own, micro_batch.batch, micro_batch.dropout, input, {});
      send(false, output.value);
    }
  }
  finish_sends();
}

void Pipeline::sum_tied_gradients(const ops::Context& context) {
  if (!ends_) return;
  autograd::Parameter& table = chunks_[0]->store().get("embedding.weight");
  if (!table.grad) return;  // frozen
  ops::begin_gradient(context, table);
  ends_->all_reduce(table.grad.tensor());
}

}  // namespace sinter::train
