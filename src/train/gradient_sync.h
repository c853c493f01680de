// Gradients over the ranks of a mesh: parts of one sum on the tensor axis, then sums over the ranks that saw other
// tokens, in buckets behind the backward pass. Their norm counts every element of the model once.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/table.h"
#include "models/parameter_store.h"
#include "parallel/axes.h"
#include "parallel/data.h"

namespace sinter::train {

class GradientSync {
 public:
  // Keeps references. `axes` null: every rank has the whole model.
  GradientSync(models::ParameterStore& store, const parallel::Mesh& mesh, const parallel::Axes* axes);

  // `passes`: how often the backward pass of every layer will run.
  void begin_step(int64_t passes);
  // One backward pass of a layer is done (models::BlockHooks).
  void after_backward(int64_t layer);
  // What is left. sum_tied: adds up a tied table's gradients of both ends of a pipeline; may be empty.
  void finish(const std::function<void()>& sum_tied = {});
  // total (1) f32 = the sum of the squares of all gradients of the model, the same bits on every rank.
  void sum_squares(const core::Tensor& total) const;

  const parallel::GradientReducer& reducer() const { return reducer_; }
  bool has_work() const { return mesh_.gradient().size() > 1 || (axes_ && !axes_->is_whole()); }

 private:
  void mark(int64_t layer);
  ops::Context context() const;
  std::vector<parallel::GradientReducer::Stretch> stretches() const;

  models::ParameterStore& store_;
  const parallel::Mesh& mesh_;
  const parallel::Axes* axes_;
  const kernels::KernelTable& kernels_;
  parallel::GradientReducer reducer_;
  struct Stretch {
    int64_t layer, begin, end;
  };
  std::vector<Stretch> tensors_;                    // of each, to the next one
  std::vector<std::pair<int64_t, int64_t>> owned_;  // (begin, count) of what this rank counts in the norm
  std::map<int64_t, int64_t> missing_;              // passes of a layer until its gradients are complete
};

}  // namespace sinter::train
