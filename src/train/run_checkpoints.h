// A run's checkpoints: which one it goes on from, and when and with what one is written.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "parallel/mesh.h"
#include "train/checkpoint.h"
#include "train/checkpoint_writer.h"
#include "train/reporter.h"
#include "train/run_lock.h"
#include "train/run_plan.h"
#include "train/step_loop.h"

namespace sinter::train {

class RunCheckpoints {
 public:
  // Takes the folder's lock (first rank). Keeps references to plan and mesh.
  RunCheckpoints(RunPlan& plan, const parallel::Mesh& mesh);
  // What is saved and loaded; before any of the calls below. Takes the memory for copies. Keeps references.
  void attach(models::ParameterStore& store, StepLoop& loop, Reporter& reporter);

  // Collective, all of them.
  // The checkpoint to go on from; "" when there is none.
  std::string find_resume() const;
  // Puts weights, optimizer, guard and the rest as they stood there; the plan goes on after it.
  void load(const std::string& from);
  // Moves on what is being written; told at the border of every step, when `is_working` holds on no rank.
  bool is_working() const { return writer_->is_working(); }
  void advance() { writer_->advance(); }
  // A checkpoint of the state as it is; with `waits` it is complete on return, or has failed. Nothing where it is there
  // already. is_end: of the run.
  void save(bool is_end, bool waits);
  // The last checkpoint is what the run was for: throws base::Error when it cannot be written.
  void save_last();
  // By this rank's clock, which the ranks must agree on: time since the last one as the recipe says.
  bool is_due_by_time() const;
  int64_t unsaved_steps() const { return state_.step - std::max<int64_t>(saved_step_, 0); }
  // Until what was begun is complete or has failed.
  void finish();
  // A checkpoint that could not be written does not end a run: the older ones are there, and the next may succeed.
  void tell_failure();
  // Where the run's result is: latest, or the folder of its last step when `latest` leads elsewhere.
  std::string last_saved() const;
  // The newest that is whole; "" when there is none.
  std::string newest() const { return folder_.find_latest().value_or(""); }

  // Waits for this rank's thread, which may read the store: before that goes.
  void close() { writer_.reset(); }

  RunState& state() { return state_; }  // after the last step whose record was read
  const RunState& state() const { return state_; }

 private:
  std::string find_own_resume() const;
  std::vector<StateTensor> all_state() const;
  // "; 'run/step-00000004' is an older one: ..." where there is one to fall back to.
  std::string older_hint(const std::string& from) const;
  void write_model(const std::string& folder, const std::vector<core::Tensor>& masters) const;
  std::string write_model_alone() const;
  core::DType export_dtype() const;
  void warn_of_other_data(const std::string& before) const;
  void note_what_is_there(const std::string& from);

  RunPlan& plan_;
  const spec::Recipe& recipe_;
  const parallel::Mesh& mesh_;
  CheckpointFolder folder_;
  std::unique_ptr<RunLock> lock_;  // of the first rank
  models::ParameterStore* store_ = nullptr;
  StepLoop* loop_ = nullptr;
  Reporter* reporter_ = nullptr;
  RunState state_;
  int64_t saved_step_ = -1;                   // of the newest checkpoint begun and not known to have failed
  bool saved_model_ = false;                  // with a model folder
  std::string data_;                          // what the sources hold (agreement.h); "" = not known
  double saved_at_ = 0;                       // when it was begun, or the run
  std::unique_ptr<CheckpointWriter> writer_;  // last: its thread reads what stands above, and the store
};

}  // namespace sinter::train
