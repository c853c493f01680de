// Expert parallelism: the ranks of a group hold other experts of every layer, and rows travel to them and back.
//
//   rows sorted by expert ──all-to-all──> rows of my experts, from everyone ──MLP──> ──all-to-all──> where they came
//   from
//
// Nothing is dropped and memory is bounded: in one round a rank takes at most `capacity` times the rows that an even
// spread would give it from each other rank; what is left goes in further rounds through the same memory. The backward
// pass sends the rows again and runs the experts forward again, so between the passes only the sender's rows are kept.
#pragma once
#include "comm/communicator.h"
#include "ops/moe.h"

namespace sinter::parallel {

using autograd::Parameter;
using autograd::Variable;
using core::Tensor;
using ops::Context;

class ExpertAxis {
 public:
  // Keeps the reference. Talks to no one yet.
  ExpertAxis(comm::Communicator& group, int64_t num_experts, double capacity)
      : group_(group), num_experts_(num_experts), capacity_(capacity) {}
  int64_t size() const { return group_.size(); }

  // ops::expert_mlp with the experts of all ranks: up and down hold this rank's.
  Variable mlp(const Context& context, const Variable& rows, const Tensor& group_offsets, Parameter& up,
               Parameter& down, const spec::ModelSpec& spec) const;
  // Most rounds that a call has needed so far.
  int64_t most_rounds() const { return most_rounds_; }

 private:
  struct Exchange;
  comm::Communicator& group_;
  const int64_t num_experts_;
  const double capacity_;
  mutable int64_t most_rounds_ = 0;
};

}  // namespace sinter::parallel
