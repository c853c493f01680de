// Gradients over the ranks of a mesh: parts of one sum on the tensor axis, then sums over the ranks that saw other
// tokens, behind the backward pass. Whole gradients are summed in buckets after the last pass of a step; divided ones
// (ZeRO-2) after every pass, a block at a time, each rank keeping its piece. Their norm counts every element of the
// model once.
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
#include "train/copies.h"

namespace sinter::train {

class GradientSync {
 public:
  // Keeps references. `axes` null: every rank has the whole model. `max_passes`: most micro-batches of a step.
  // `copies` takes gradients that no other rank adds to into the host's memory; null: that is done here.
  GradientSync(models::ParameterStore& store, const parallel::Mesh& mesh, const parallel::Axes* axes,
               int64_t max_passes = 1, Copies* copies = nullptr);
  // Bytes of its own buffers, and of a communicator's that takes sums in the order of ranks.
  static size_t buffer_bytes(const models::ParameterStore& store, int64_t max_passes);
  size_t communicator_bytes() const;

  // `passes`: how often the backward pass of every layer will run.
  void begin_step(int64_t passes);
  // A layer is about to make gradients: its place is free after this.
  void begin_gradients(int64_t layer);
  // One backward pass of a layer is done (models::BlockHooks).
  void after_backward(int64_t layer);
  // What is left. sum_tied: adds up a tied table's gradients of both ends of a pipeline; may be empty.
  void finish(const std::function<void()>& sum_tied = {});
  // total (1) f32 = the sum of the squares of all gradients of the model, the same bits on every rank.
  void sum_squares(const core::Tensor& total) const;

  // Buckets that were on their way before finish(), of all; pieces of divided gradients count as buckets.
  int64_t num_buckets() const;
  int64_t num_overlapped() const;
  double copy_seconds() const { return copy_seconds_; }  // spent here on copies to the host's memory
  bool has_work() const {
    return !mesh_.gradient().is_trivial() || (axes_ && !axes_->is_whole()) || store_.divides_gradients();
  }
  // squares (1) f32 = the sum of the squares of this rank's gradients of the first pass, before they are summed over
  // ranks: begins before that pass, is there after it.
  void begin_first_pass(const core::Tensor& squares);
  void finish_first_pass(const core::Tensor& squares);

 private:
  struct Unit {
    std::vector<size_t> slots, segments;  // divided ones of the store
    bool is_open = false;                 // its place holds gradients that are not reduced yet
    int64_t reduced = 0;                  // times in this step
  };
  struct UnderWay {
    size_t segment = 0;
    comm::Handle work;
    int64_t buffer = -1;  // -1: the sum goes straight to its piece
  };
  void list_tensors();
  void list_owned();
  void mark(int64_t layer);
  void open(int64_t unit);
  void reduce(int64_t unit);
  void complete(size_t index);
  int64_t take_buffer();
  comm::Communicator& parts_of(const models::Segment& segment) const;
  void complete_sums(models::ParameterStore::Slot& slot);
  ops::Context context() const;

  models::ParameterStore& store_;
  const parallel::Mesh& mesh_;
  const parallel::Axes* axes_;
  const kernels::KernelTable& kernels_;
  Copies* copies_;
  struct Stretch {
    size_t reducer;
    int64_t layer, begin, end;  // in the reducer's buffer
    comm::Communicator* comm;
  };
  std::vector<Stretch> tensors_;  // whole gradients of each tensor, to the next one
  std::vector<parallel::GradientReducer> reducers_;
  std::vector<std::pair<int64_t, int64_t>> owned_;  // (begin, count) of what this rank counts in the norm
  std::map<int64_t, int64_t> missing_;              // passes of a layer until its whole gradients are complete
  std::map<int64_t, Unit> units_;                   // of divided gradients
  std::vector<UnderWay> under_way_;                 // oldest first
  std::vector<core::Tensor> buffers_;               // (largest piece) f32, for passes after the first
  std::vector<bool> is_taken_;
  core::Tensor first_squares_;
  double copy_seconds_ = 0;
  int64_t pieces_ = 0, pieces_overlapped_ = 0;
};

}  // namespace sinter::train
