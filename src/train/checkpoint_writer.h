// Writes checkpoints behind the training.
//
// At the border of a step every rank copies its share of the state into host memory kept for that, and a thread of its
// own writes the files from the copy while steps go on. Only the main threads talk between ranks: at a later border,
// when all files are there, they exchange the hashes, and the first rank's thread gives the folder its name. What
// cannot be written is removed and told of (take_failure); the run decides what follows from it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/background.h"
#include "comm/communicator.h"
#include "core/tensor.h"
#include "models/parameter_store.h"
#include "train/checkpoint.h"
#include "train/optimizer.h"

namespace sinter::train {

// The tensors a run goes on from: masters, then the optimizer's states.
// is_whole: every rank has all of the model, and each writes its share of the masters.
std::vector<StateTensor> state_tensors(const models::ParameterStore& store, const Optimizer& optimizer,
                                       bool is_whole = true);

// One rank's share of a state, in host memory that is kept from one checkpoint to the next. On the CPU it comes from
// the device's allocator and counts there; for a GPU it is memory that the GPU copies to directly.
class StateCopy {
 public:
  // `with_masters`: the first rank keeps the masters whole, for a model folder. Takes the tensors' shapes only.
  StateCopy(const std::vector<StateTensor>& tensors, core::Device device, int rank, int ranks, bool with_masters);
  static size_t bytes(const std::vector<StateTensor>& tensors, int rank, int ranks, bool with_masters);

  // Has the system find the pages, which takes longer than copying to them.
  void touch() const;
  // Copies the tensors' values; returns when they are there. They must be those of the constructor.
  void take(const std::vector<StateTensor>& tensors);
  std::vector<core::Tensor> pieces() const { return pieces_; }    // this rank's share of each tensor, flat
  std::vector<core::Tensor> masters() const { return masters_; }  // flat; empty where they are not kept whole

 private:
  core::Tensor memory_;                   // on the CPU
  std::shared_ptr<std::byte[]> staging_;  // for a GPU
  std::vector<int64_t> begins_;           // of what is copied of each tensor
  std::vector<core::Tensor> copies_, pieces_, masters_;
};

class CheckpointWriter {
 public:
  // Writes the files of a model folder. Called on the first rank, in the background: may only use its arguments and
  // what does not change. `masters` are the state's tensors of that kind, in order, on any device and of any shape.
  using Exporter = std::function<void(const std::string& folder, const std::vector<core::Tensor>& masters)>;

  // Keeps references to both.
  CheckpointWriter(const CheckpointFolder& folder, comm::Communicator& comm);
  ~CheckpointWriter();  // waits for this rank's thread

  // Takes the memory for copies; without it every checkpoint is written at once. `exports`: model folders may be due.
  // To be called once.
  void reserve(const std::vector<StateTensor>& tensors, core::Device device, bool exports);

  // Collective, like all that follow but is_working(). Begins the checkpoint run.step; its values are those of now.
  // Waits for the one before. With `waits`, or without memory for a copy, it is complete (or has failed) on return.
  // `reads_files`: no rank has the masters whole, so the exporter gets none and reads the state's files, which are all
  // there when it is called.
  void start(const RunState& run, const std::vector<StateTensor>& tensors, const Exporter& exporter, bool waits,
             bool reads_files = false);
  // Whether this rank's thread has something to do. When that is so on no rank any more, advance() moves on.
  bool is_working() const { return task_.is_running(); }
  void advance();
  // Until what was begun is complete or has failed.
  void finish();

  struct Failure {
    int64_t step = 0;
    std::string reason;   // names the file, on the rank that could not write it
    bool is_own = false;  // this rank's doing
  };
  // A checkpoint that failed since the last call: the same on all ranks but for the reason.
  std::optional<Failure> take_failure();

 private:
  struct Job;
  enum class Stage { writing, committing };
  void write(Job& job) const;
  void exchange(bool in_background);
  void end(bool is_written);
  bool agree(bool is_good) { return comm_.max(is_good ? int64_t{0} : int64_t{1}) == 0; }

  const CheckpointFolder& folder_;
  comm::Communicator& comm_;
  std::unique_ptr<StateCopy> copy_;
  std::unique_ptr<Job> job_;  // under way on all ranks
  Stage stage_ = Stage::writing;
  std::optional<Failure> failure_;
  base::BackgroundTask task_;  // last: it reads the job and the copy
};

}  // namespace sinter::train
