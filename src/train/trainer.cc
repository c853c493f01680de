#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "comm/launch.h"
#include "comm/together.h"
#include "core/host_copy.h"
#include "io/tensor_folder.h"
#include "kernels/choices.h"
#include "models/weights.h"
#include "train/agreement.h"
#include "train/checkpoint.h"
#include "train/checkpoint_writer.h"
#include "train/export.h"
#include "train/guard.h"
#include "train/metrics.h"
#include "train/noise_scale.h"
#include "train/optimizer.h"
#include "train/peak.h"
#include "train/resume.h"
#include "train/run_lock.h"
#include "train/run_plan.h"
#include "train/schedule.h"
#include "train/stop_request.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The threads of a rank: the recipe's, SINTER_THREADS, or this machine's cores shared among its ranks.
void set_threads(int64_t wanted) {
  if (wanted > 0) {
    base::set_num_threads(static_cast<int>(wanted));
  } else if (!std::getenv("SINTER_THREADS") && comm::launch().local_ranks > 1) {
    base::set_num_threads(std::max(1, base::num_threads() / comm::launch().local_ranks));
  }
}

// One run: everything that lives while steps are made.
class Run {
 public:
  // began: when the program began to work on this run, for its time limit (stop_request.h).
  Run(RunPlan& plan, const parallel::Mesh& mesh, const TrainHooks& hooks, double began)
      : plan_(plan),
        recipe_(plan.recipe),
        mesh_(mesh),
        comm_(mesh.all()),
        hooks_(hooks),
        began_(began),
        device_(core::runtime(plan.device)),
        kernels_(kernels::kernels_for(plan.device)),
        folder_(recipe_.checkpoint.dir, recipe_.checkpoint.keep, mesh.all()),
        lock_(mesh.is_first() ? std::make_unique<RunLock>(folder_.dir()) : nullptr),
        bytes_before_(device_.allocator().stats().current_bytes),
        store_(plan.model, plan.store_options(plan.device)),
        transformer_(plan.model, store_),
        optimizer_(recipe_.optimizer, store_, static_cast<uint64_t>(recipe_.train.seed), optimizer_shard(mesh)),
        runner_(transformer_, plan.shape, plan.memory, mesh),
        guard_(recipe_, plan.device),
        squares_(device_.allocator(), {1}, core::DType::f32),
        checkpoints_(folder_, mesh.all()) {
    if (is_first_rank()) folder_.remove_leftovers();
    for (int64_t i = 0; i <= steps_ahead(); ++i) records_.emplace_back(plan.device, kernels::kRecordSize);
    if (plan.checkpoint_copy_bytes > 0)
      checkpoints_.reserve(all_state(), plan.device, plan.copies_masters(mesh.all().size()));
  }

  TrainResult run() {
    start();
    StopRequest stop(recipe_.checkpoint, began_);
    result_.steps = begun_ = state_.step;
    if (recipe_.checkpoint.initial && state_.step == 0) save(false);
    if (begun_ < plan_.steps) batches_ = plan_.loader->step(begun_);
    while (begun_ < plan_.steps && result_.stopped.empty()) {
      begin_step();
      read_ahead();
      if (begun_ - state_.step > steps_ahead()) end_step();
      if (needs_all_done(begun_)) end_all_steps();
      const std::string reason = agree_at_border(stop);
      if (!reason.empty()) end_all_steps();
      if (!result_.stopped.empty()) break;
      if (!reason.empty() && state_.step < plan_.steps) {
        result_.stopped = reason;  // finish() saves
      } else if (recipe_.checkpoint.every > 0 && begun_ % recipe_.checkpoint.every == 0 && begun_ < plan_.steps) {
        save_if_sound();
      }
    }
    end_all_steps();
    finish();
    if (!data_error_.empty()) base::fail("stopped after {} steps, {}: {}", state_.step, what_is_saved(), data_error_);
    return result_;
  }

 private:
  bool is_first_rank() const { return mesh_.is_first(); }
  // Steps that may be enqueued while the record of the one before is still on its way.
  int64_t steps_ahead() const { return plan_.device.kind == core::DeviceKind::cpu ? 0 : 1; }

  void start() {
    // One rank looks and tells the others: a shared folder may look different from another machine for a while.
    const std::string from = comm_.broadcast_text(is_first_rank() ? find_resume() : "");
    if (!from.empty()) {
      load(from);
    } else if (!recipe_.model.path.empty() && !recipe_.model.random) {
      models::load_weights(store_, plan_.model, io::TensorFolder(recipe_.model.path));
    } else {
      store_.initialize(static_cast<uint64_t>(recipe_.train.seed));
    }
    if (!is_first_rank()) return;
    const std::string path =
        recipe_.log.metrics.empty() ? recipe_.checkpoint.dir + "/metrics.jsonl" : recipe_.log.metrics;
    metrics_ = std::make_unique<MetricsFile>(path, state_.step);
    if (!metrics_->losses().empty()) result_.loss = metrics_->losses().back();
    peak_flops_ = measure_matmul_flops(plan_.device, plan_.shape.compute) * comm_.size();
    base::log_info("peak {} in {} matrix products, measured", format_flops(peak_flops_),
                   base::dtype_name(plan_.shape.compute));
    device_.allocator().reset_peak();
  }

  // The checkpoint to go on from; "" when there is none.
  std::string find_resume() const {
    const std::string& resume = recipe_.checkpoint.resume;
    if (resume == "auto") return folder_.find_latest().value_or("");
    if (resume != "never") return resume;
    SINTER_CHECK(!folder_.find_latest(),
                 "checkpoint.dir '{}' already holds checkpoints; use resume = \"auto\" to go on, or another folder",
                 recipe_.checkpoint.dir);
    return "";
  }

  void load(const std::string& from) {
    // What does not fit is told by its key, before a tensor is found to have another shape.
    const RunState before = load_run_state(from);
    const std::string changes = check_resume(from, before.recipe, recipe_, plan_.model);
    const std::string tokenizer = plan_.tokenizer_hash();
    SINTER_CHECK(before.tokenizer.empty() || tokenizer.empty() || before.tokenizer == tokenizer,
                 "checkpoint '{}' was made with another tokenizer than {} now is: its ids mean something else; give it "
                 "that one (a copy is beside the model), or this one another checkpoint.dir",
                 from, plan_.tokenizer ? "'" + plan_.tokenizer_path + "'" : "that of the data");
    std::vector<StateTensor> tensors = all_state();
    if (runner_.fp8() && !has_state_tensor(from, "fp8", "scalings")) {  // a run that was not in fp8 so far
      std::erase_if(tensors, [](const StateTensor& t) { return t.kind == "fp8"; });
      base::log_info("'{}' holds no fp8 scales: the first step finds them anew", from);
    }
    state_ = load_checkpoint(from, tensors);
    std::array<int64_t, 4> ends{state_.step, state_.tokens, -state_.step, -state_.tokens};
    comm_.all_reduce(std::span<int64_t>(ends), comm::ReduceOp::max);
    SINTER_CHECK(ends[0] == -ends[2] && ends[1] == -ends[3],
                 "rank {} finds '{}' after {} steps, another rank after {}: the folder is not the same on all machines "
                 "(yet); start again, or name the checkpoint by its step (checkpoint.resume)",
                 comm_.rank(), from, state_.step, ends[0] == state_.step ? -ends[2] : ends[0]);
    if (!changes.empty()) base::log_info("the recipe has changed since this checkpoint was written:\n{}", changes);
    if (runner_.fp8()) runner_.fp8()->resume();
    if (recipe_.train.precision == core::DType::f16 && !was_in_f16(state_.recipe))
      state_.loss_scale = {recipe_.train.loss_scale, 0.0};
    try {
      guard_.set_state({state_.guard, state_.loss_scale, state_.updates});
      noise_scale_.set_state(state_.noise_scale);
    } catch (const base::Error& e) {
      base::fail("checkpoint '{}', state/index.json: {}", from, e.what());
    }
    kernels::restore_kernel_choices(plan_.device, state_.kernel_choices);
    store_.refresh_compute();
    // What stands there already, as the first rank sees it.
    std::error_code absent;
    std::array<int64_t, 2> saved{-1, 0};
    if (is_first_rank() && fs::equivalent(fs::path(from).parent_path(), recipe_.checkpoint.dir, absent))
      saved = {state_.step, fs::exists(from + "/config.json") ? 1 : 0};
    comm_.broadcast(std::as_writable_bytes(std::span(saved)), 0);
    saved_step_ = saved[0];
    saved_model_ = saved[1] != 0;
    base::log_info("resumed from {} after {} steps", from, base::format_grouped(state_.step));
    plan_.continue_after(state_.step, state_.tokens);
    if (state_.step >= plan_.steps) base::log_info("all {} steps are done already", base::format_grouped(plan_.steps));
  }

  std::vector<StateTensor> all_state() const {
    std::vector<StateTensor> tensors = state_tensors(store_, optimizer_);
    // Those of activations are each rank's own; saved is a share of every rank's, which the next steps' maxima replace.
    if (runner_.fp8()) tensors.push_back({"fp8", "scalings", runner_.fp8()->scalings()});
    return tensors;
  }

  // A step that is enqueued and whose record has not been read.
  struct Begun {
    int64_t step = 0;  // from 0
    int64_t tokens = 0;
    double lr_factor = 0;
    StepCounts counts;
  };

  // The next step's batches. Data that cannot be read end the run at a border as a signal does, on all ranks, so that
  // nothing learned so far is lost.
  void read_ahead() {
    if (begun_ >= plan_.steps) return;
    try {
      batches_ = plan_.loader->step(begun_);
    } catch (const std::exception& e) {
      data_error_ = *e.what() ? e.what() : "the data could not be read";
    }
  }

  // Enqueues a whole step. What becomes of it is decided on the device (guard.h), so nothing here waits for a result.
  void begin_step() {
    if (in_flight_.empty()) step_began_ = now_seconds();
    Begun begun{.step = begun_,
                .tokens = plan_.batches->sequences_at(begun_) * plan_.shape.window,
                .lr_factor = lr_factor(recipe_.schedule, begun_, plan_.steps)};
    begun.counts = runner_.start(batches_, begun_, guard_.loss_scale());
    store_.sum_gradient_squares(kernels_, device_.stream(), squares_);
    guard_.decide(runner_.record().slice(kSumLoss, 1), static_cast<double>(begun.counts.num_supervised), squares_,
                  runner_.record());
    optimizer_.update(guard_.control(), begun.lr_factor, begun_);
    records_[static_cast<size_t>(begun_) % records_.size()].post(runner_.record());
    in_flight_.push_back(begun);
    ++begun_;
  }

  // Reads the record of the oldest step in flight and tells of it.
  void end_step() {
    const Begun begun = in_flight_.front();
    in_flight_.pop_front();
    const std::vector<float> record = records_[static_cast<size_t>(begun.step) % records_.size()].take();
    const StepOutcome outcome = read_outcome(record);
    const StepResult result = runner_.read(begun.counts, record, outcome.loss_scale);
    if (outcome.is_stop()) {
      const std::string reason = guard_.reason(outcome);
      progress_.finish();
      base::log_error("stopped at step {}: {}", begun.step + 1, reason);
      result_.stopped = "diverged: " + reason;
      is_sound_ = std::isfinite(outcome.loss);
      in_flight_.clear();  // the device ignores them too
      begun_ = state_.step;
      return;
    }
    if (!outcome.is_applied()) {
      progress_.finish();
      base::log_warning("step {} skipped: {}", begun.step + 1, guard_.reason(outcome));
    } else if (result.small_norm_squared) {
      noise_scale_.add(*result.small_norm_squared, result.small_tokens, outcome.norm * outcome.norm,
                       static_cast<double>(result.num_supervised));
    }
    state_.step = result_.steps = begun.step + 1;
    state_.tokens += begun.tokens;
    state_.updates = outcome.updates;
    result_.loss = outcome.loss;
    is_sound_ = std::isfinite(outcome.loss);

    StepMetrics m{.step = state_.step,
                  .tokens = state_.tokens,
                  .loss = outcome.loss,
                  .grad_norm = outcome.norm,
                  .lr = recipe_.optimizer.lr * begun.lr_factor,
                  .is_skipped = !outcome.is_applied()};
    m.seconds = now_seconds() - step_began_;
    m.tokens_per_second = static_cast<double>(begun.tokens) / m.seconds;
    m.noise_scale_tokens = noise_scale_.tokens();
    if (plan_.shape.compute == core::DType::f16) m.loss_scale = outcome.loss_scale;
    if (plan_.model.moe.num_experts > 0) m.balance_loss = result.balance_loss;
    if (plan_.model.mtp_heads > 0) m.mtp_loss = result.mtp_loss;
    if (is_eval_step(state_.step)) m.validation_loss = validate();
    report(m);
    step_began_ = now_seconds();
  }

  void end_all_steps() {
    while (!in_flight_.empty()) end_step();
  }

  bool is_eval_step(int64_t step) const {
    return step == plan_.steps || (recipe_.log.eval_every > 0 && step % recipe_.log.eval_every == 0);
  }
  // Whether after this step something looks at the weights.
  bool needs_all_done(int64_t step) const {
    auto is_due = [&](int64_t every) { return every > 0 && step % every == 0; };
    return is_eval_step(step) || is_due(recipe_.log.sample_every) || is_due(recipe_.checkpoint.every);
  }

  std::optional<double> validate() {
    if (recipe_.data.validation.empty()) return std::nullopt;
    result_.validation_loss = runner_.evaluate(plan_.loader->validation());
    if (result_.validation_loss)
      base::log_info("step {}: validation loss {:.4f}", state_.step, *result_.validation_loss);
    return result_.validation_loss;
  }

  void report(StepMetrics& m) {
    if (!is_first_rank()) return;
    const double flops = m.tokens_per_second * plan_.flops_per_token;
    peak_flops_ = std::max(peak_flops_, flops);  // it may have been measured while others had the machine
    m.flops_share = flops / peak_flops_;
    step_seconds_ = step_seconds_ == 0 ? m.seconds : 0.9 * step_seconds_ + 0.1 * m.seconds;
    if (m.step % recipe_.log.every == 0 || m.step == plan_.steps || m.validation_loss) {
      if (checkpoint_seconds_ > 0) m.checkpoint_seconds = std::exchange(checkpoint_seconds_, 0);
      metrics_->append(m);
    }
    progress_.update(
        progress_text(m, plan_.steps, peak_flops_, step_seconds_ * static_cast<double>(plan_.steps - m.step)));
    if (hooks_.sample && plan_.tokenizer && recipe_.log.sample_every > 0 && m.step % recipe_.log.sample_every == 0) {
      progress_.finish();
      note_peak();
      try {
        hooks_.sample(transformer_, *plan_.tokenizer, m.step);
      } catch (const std::exception& e) {  // a run is not to end for want of something to look at
        base::log_warning("step {}: no samples: {}", m.step, e.what());
      }
      device_.allocator().reset_peak();  // what the samples held is not part of the plan
    }
  }

  void note_peak() { peak_bytes_ = std::max(peak_bytes_, device_.allocator().stats().peak_bytes); }

  // At the border of every step: a reason on any rank stops all of them at the same step, and a checkpoint whose files
  // are there on all ranks moves on.
  std::string agree_at_border(const StopRequest& stop) {
    std::string reason = data_error_.empty() ? stop.reason() : "data that cannot be read";
    std::array<int64_t, 2> flags{reason.empty() ? 0 : 1, checkpoints_.is_working() ? 1 : 0};
    comm_.all_reduce(std::span<int64_t>(flags), comm::ReduceOp::max);
    if (flags[1] == 0) checkpoints_.advance();
    tell_failure();
    if (flags[0] == 0) return "";
    return reason.empty() ? "another rank's request" : reason;
  }

  // A checkpoint that could not be written does not end a run: the older ones are there, and the next may succeed.
  void tell_failure() {
    const auto failure = checkpoints_.take_failure();
    if (!failure) return;
    if (saved_step_ == failure->step) saved_step_ = -1;
    if (!failure->is_own && !is_first_rank()) return;
    progress_.finish();
    base::log_error("the checkpoint of step {} could not be written, training goes on without it: {}", failure->step,
                    failure->reason);
  }

  core::DType export_dtype() const {
    return recipe_.checkpoint.exports == spec::ExportFormat::f32 ? core::DType::f32 : plan_.shape.compute;
  }

  // Weights that give a loss which is no number are not worth the good checkpoints they would push out.
  void save_if_sound() {
    if (is_sound_) return save(false);
    progress_.finish();
    if (is_first_rank())
      base::log_warning("no checkpoint of step {}: the last loss is {}, so earlier ones are kept", state_.step,
                        result_.loss);
  }

  // With `waits` the checkpoint is complete on return, or has failed.
  void save(bool waits) {
    const double begin = now_seconds();
    checkpoints_.finish();
    tell_failure();
    const bool is_end = state_.step == plan_.steps || !result_.stopped.empty();
    const bool exports = comm_.size() == 1 || is_end ||
                         (recipe_.checkpoint.export_every > 0 && state_.step % recipe_.checkpoint.export_every == 0);
    if (saved_step_ == state_.step && (saved_model_ || !exports)) return;
    const DivergenceGuard::State guard = guard_.state();
    state_.guard = guard.window;
    state_.loss_scale = guard.loss_scale;
    state_.updates = guard.updates;
    state_.noise_scale = noise_scale_.state();
    state_.kernel_choices = kernels::kernel_choices(plan_.device);
    state_.recipe = spec::recipe_to_toml(recipe_);
    state_.tokenizer = plan_.tokenizer_hash();
    CheckpointWriter::Exporter exporter;
    if (exports) {
      exporter = [this](const std::string& folder, const std::vector<core::Tensor>& masters) {
        export_model(folder, plan_.model, masters, export_dtype(), plan_.tokenizer_files);
      };
    }
    saved_step_ = state_.step;
    saved_model_ = exports;
    checkpoints_.start(state_, all_state(), exporter, waits);
    checkpoint_seconds_ += now_seconds() - begin;
    if (state_.step % std::max<int64_t>(plan_.steps / 10, 1) == 0 || is_end) progress_.finish();
    if (!is_end) tell_failure();
  }

  // The last checkpoint is what the run was for: without it the run has failed.
  void save_last() {
    save(true);
    const auto failure = checkpoints_.take_failure();
    if (failure)
      base::fail("the last checkpoint, of step {}, could not be written: {}", failure->step, failure->reason);
  }

  std::string what_is_saved() const {
    return result_.checkpoint.empty() ? "nothing saved" : "which are saved in " + result_.checkpoint;
  }

  void finish() {
    progress_.finish();
    if (!is_sound_ && result_.stopped.empty()) result_.stopped = "diverged: the last loss is no number";
    if (is_sound_) {
      save_last();
      // Resumed from an earlier step to do nothing more, it may not be what `latest` leads to.
      const std::string latest = recipe_.checkpoint.dir + "/latest", last = folder_.path(state_.step);
      std::error_code error;
      const bool is_latest = !std::filesystem::exists(last, error) || std::filesystem::equivalent(latest, last, error);
      result_.checkpoint = is_latest ? latest : last;
    } else {
      checkpoints_.finish();
      tell_failure();
      result_.checkpoint = folder_.find_latest().value_or("");
    }
    if (!is_first_rank()) return;
    note_peak();
    const auto peak = static_cast<double>(peak_bytes_ - bytes_before_);
    base::log_info("memory: {} at most, planned {}; activations {} of {} planned", base::format_bytes(peak),
                   base::format_bytes(double(plan_.memory_bytes())),
                   base::format_bytes(double(runner_.arena_peak_bytes())),
                   base::format_bytes(double(plan_.memory.train_peak_bytes)));
    if (comm_.size() > 1) {
      base::log_info("gradients: {} of {} buckets were on their way before the backward pass ended",
                     runner_.reducer().num_overlapped(), runner_.reducer().num_buckets());
    }
  }

 public:
  const MetricsFile* metrics() const { return metrics_.get(); }

 private:
  RunPlan& plan_;
  const spec::Recipe& recipe_;
  const parallel::Mesh& mesh_;
  comm::Communicator& comm_;  // all ranks of the run
  const TrainHooks& hooks_;
  const double began_;
  core::DeviceRuntime& device_;
  const kernels::KernelTable& kernels_;
  CheckpointFolder folder_;
  std::unique_ptr<RunLock> lock_;  // of the first rank
  const size_t bytes_before_;
  models::ParameterStore store_;
  models::Transformer transformer_;
  Optimizer optimizer_;
  StepRunner runner_;
  DivergenceGuard guard_;
  NoiseScale noise_scale_;
  core::Tensor squares_;                   // (1) f32
  RunState state_;                         // after the last step whose record was read
  int64_t begun_ = 0;                      // steps enqueued
  std::vector<data::MicroBatch> batches_;  // of the next step
  std::string data_error_;                 // why there are none
  std::deque<Begun> in_flight_;
  std::vector<core::HostCopy> records_;
  double step_began_ = 0;
  size_t peak_bytes_ = 0;
  bool is_sound_ = true;           // the last loss is a number
  int64_t saved_step_ = -1;        // of the newest checkpoint begun and not known to have failed
  bool saved_model_ = false;       // with a model folder
  double checkpoint_seconds_ = 0;  // the loop stood still for checkpoints since the last line of metrics
  std::unique_ptr<MetricsFile> metrics_;
  base::ProgressLine progress_;
  double peak_flops_ = 1, step_seconds_ = 0;
  TrainResult result_;
  CheckpointWriter checkpoints_;  // last: its thread reads what stands above
};

}  // namespace

Trainer::Trainer(const spec::Recipe& recipe, comm::Communicator& comm)
    : began_(StopRequest::clock_seconds()) {
  set_threads(recipe.train.threads);
  check_same_recipe(comm, recipe);
  spec::ParallelSpec layout;
  comm::together(comm, [&] { layout = spec::make_layout(recipe, comm.size()); });
  comm.set_deadline(layout.timeout);
  mesh_ = std::make_unique<parallel::Mesh>(comm, layout);
  plan_ = std::make_unique<RunPlan>(make_run_plan(recipe, *mesh_));
  if (recipe.train.deterministic) kernels::set_deterministic(plan_->device);
}

Trainer::~Trainer() = default;

std::string Trainer::plan_text() const { return describe(*plan_, *mesh_); }
std::string Trainer::plan_json() const { return describe_json(*plan_, *mesh_); }

TrainResult Trainer::run(const TrainHooks& hooks) {
  Run run(*plan_, *mesh_, hooks, began_);
  TrainResult result = run.run();
  if (mesh_->is_first()) result.losses = run.metrics()->losses();
  return result;
}

}  // namespace sinter::train
