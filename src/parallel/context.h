// Context parallelism: the ranks of a group hold pieces of every sequence, and attention is theirs together.
//
//   a window of W tokens, P = 2:   | 0 | 1 | 2 | 3 |   pieces of W / 2P     rank 0: 0, 3    rank 1: 1, 2   (zigzag)
//
// Zigzag pieces give every rank as many (query, key) pairs under a causal mask. A rank's rows stay in the order of the
// sequence, so of any rank's keys a query sees a range of rows, whatever the documents and the layer's window
// (core::ContextView). Keys and values travel around a ring while those at hand are used, or are gathered at once.
#pragma once
#include "comm/communicator.h"
#include "core/host_batch.h"
#include "ops/context.h"
#include "spec/model_spec.h"

namespace sinter::parallel {

using autograd::Variable;
using core::Tensor;
using ops::Context;

// The rows of one rank of `ranks` of a batch of whole windows of `window` tokens each.
struct ContextRows {
  std::vector<int32_t> rows;                    // (T / P): row of the whole batch
  std::vector<int64_t> windows;                 // of the model's layers, each once
  std::vector<std::vector<int32_t>> key_begin;  // for each of these (P * T / P)
  std::vector<int32_t> key_end, key_positions;  // (P * T / P)
};
std::vector<int64_t> windows_of(const spec::ModelSpec& spec);
ContextRows context_rows(const core::HostBatch& whole, int64_t window, const std::vector<int64_t>& windows,
                         int64_t ranks, int64_t rank);

// Those rows of a batch: its sequences keep their numbers and lengths.
core::HostBatch take_rows(const core::HostBatch& whole, const std::vector<int32_t>& rows);

// Device memory for the view of one micro-batch, filled again and again.
class DeviceContextView {
 public:
  DeviceContextView(core::Allocator& allocator, int64_t num_tokens, const std::vector<int64_t>& windows, int64_t ranks);
  // first_token: number of the whole batch's first token in the step. Valid until the next call.
  const core::ContextView& load(const ContextRows& rows, uint64_t first_token);
  const core::ContextView& get() const { return view_; }

 private:
  core::ContextView view_;
};

class ContextAxis {
 public:
  // Keeps the reference. Talks to no one yet.
  ContextAxis(comm::Communicator& group, spec::ContextKind kind) : group_(group), kind_(kind) {}
  int64_t size() const { return group_.size(); }
  int64_t rank() const { return group_.rank(); }
  comm::Communicator& group() const { return group_; }

  // ops::attention over the sequences of all ranks: qkv (T, W) of this rank -> (T, H D).
  Variable attention(const Context& context, const Variable& qkv, const Tensor& cos_sin, const core::RaggedBatch& batch,
                     const kernels::AttentionShape& shape) const;

 private:
  struct Pass;
  comm::Communicator& group_;
  const spec::ContextKind kind_;
};

}  // namespace sinter::parallel
