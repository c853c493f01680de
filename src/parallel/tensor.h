// Tensor parallelism: the ranks of a group hold slices of every layer (spec/local_table.h) and sum their parts.
//
//        h --enter--> column-cut product --> heads or MLP columns of this rank --> row-cut product --leave--> +
//        residual
//
//   enter   forward: nothing, or rows of all ranks gathered      backward: sum over ranks, or reduce-scatter of rows
//   leave   forward: sum over ranks, or reduce-scatter of rows   backward: nothing, or rows of all ranks gathered
//
// With sequence parallelism (splits_rows) what lies between leave and enter (norms, dropout, residual) exists only for
// T / P rows of this rank. A block moves the same bytes either way: a sum is a reduce-scatter and a gather.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "ops/context.h"
#include "spec/local_table.h"

namespace sinter::parallel {

using autograd::Parameter;
using autograd::Variable;
using core::Tensor;
using ops::Context;

class TensorAxis {
 public:
  // Keeps the reference. Talks to no one yet.
  TensorAxis(comm::Communicator& group, const spec::ModelSpec& spec, bool splits_rows);

  int64_t size() const { return group_.size(); }
  int64_t rank() const { return group_.rank(); }
  bool splits_rows() const { return splits_rows_; }
  const spec::LocalHeads& heads() const { return heads_; }
  const spec::VocabRange& vocabulary() const { return vocabulary_; }
  // Biases of row-cut products and what else is added to a sum are added by one rank only.
  bool adds_bias() const { return rank() == 0; }
  // The first of the rows that this rank holds between leave and enter.
  int64_t first_row(int64_t num_tokens) const { return splits_rows_ ? rank() * (num_tokens / size()) : 0; }

  Variable enter(const Context& context, const Variable& x) const;  // (T or T / P, C) -> (T, C)
  Variable leave(const Context& context, const Variable& x) const;  // (T, C) in parts -> (T or T / P, C)
  // Rows of all ranks, without a gradient: (T / P, C) -> (T, C). x itself without splits_rows.
  Tensor gather_rows(const Context& context, const Tensor& x) const;

  // Rows of a table that is cut by rows; positions (may be null) are whole. -> (T or T / P, C)
  Variable embedding(const Context& context, const core::RaggedBatch& batch, Parameter& tokens,
                     Parameter* positions) const;
  // ops::linear_cross_entropy (weights too) with a head that is cut by rows: no rank ever has the logits of all
  // columns. x (T, C) has entered; losses come out the same on all ranks.
  void linear_cross_entropy(const Context& context, const Variable& x, Parameter& weight, const Tensor& targets,
                            const Tensor& scale, const Tensor& losses, const Tensor& weights = {}) const;

  // Whether ranks that hold the same elements of this tensor have parts of their gradient.
  bool has_partial_gradient(const spec::ParameterSpec& info) const;
  // Sums them: after the last backward of a step, before gradients are summed over other axes.
  void sum_gradient(const Context& context, const spec::ParameterSpec& info, Parameter& parameter) const;

 private:
  comm::Communicator& group_;
  const bool splits_rows_;
  const spec::LocalHeads heads_;
  const spec::VocabRange vocabulary_;
  const bool shares_kv_heads_;
  // Ranks that hold one KV head; made at the first sum.
  mutable std::unique_ptr<comm::Communicator> same_kv_head_;
};

}  // namespace sinter::parallel
