#include "train/run_checkpoints.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "kernels/choices.h"
#include "train/agreement.h"
#include "train/disk_space.h"
#include "train/export.h"
#include "train/resume.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The masters of what trains, from the state's files: where no rank has them whole.
std::vector<core::Tensor> read_masters(const std::string& folder, const RunPlan& plan) {
  StateReader reader(folder);
  std::vector<core::Tensor> masters;
  for (const spec::ParameterSpec& p : plan.tensors.empty() ? spec::make_parameter_table(plan.model) : plan.tensors) {
    if (!p.trainable) continue;
    masters.emplace_back(core::runtime({}).allocator(), p.shape, core::DType::f32);
    reader.read({"master", p.name, masters.back()});
  }
  return masters;
}

}  // namespace

RunCheckpoints::RunCheckpoints(RunPlan& plan, const parallel::Mesh& mesh)
    : plan_(plan),
      recipe_(plan.recipe),
      mesh_(mesh),
      folder_(recipe_.checkpoint.dir, recipe_.checkpoint.keep, mesh.all()),
      lock_(mesh.is_first() ? std::make_unique<RunLock>(folder_.dir()) : nullptr),
      writer_(std::make_unique<CheckpointWriter>(folder_, mesh.all())) {}

bool RunCheckpoints::is_due_by_time() const {
  return saves_by_time(recipe_.checkpoint) && now_seconds() - saved_at_ >= 60 * recipe_.checkpoint.minutes;
}

void RunCheckpoints::attach(models::ParameterStore& store, StepLoop& loop, Reporter& reporter) {
  saved_at_ = now_seconds();
  try {
    if (plan_.loader) data_ = describe_data(*plan_.loader);
  } catch (const base::Error&) {  // damage is told when training comes to it
  }
  store_ = &store;
  loop_ = &loop;
  reporter_ = &reporter;
  if (mesh_.is_first()) folder_.remove_leftovers();
  if (plan_.checkpoint_copy_bytes > 0)
    writer_->reserve(all_state(), plan_.device, plan_.copies_masters(mesh_.all().size()));
}

// One rank looks and tells the others: a shared folder may look different from another machine for a while.
std::string RunCheckpoints::find_resume() const {
  return mesh_.all().broadcast_text(mesh_.is_first() ? find_own_resume() : "");
}

std::string RunCheckpoints::find_own_resume() const {
  const std::string& resume = recipe_.checkpoint.resume;
  if (resume == "auto") return folder_.find_latest().value_or("");
  if (resume != "never") return resume;
  SINTER_CHECK(!folder_.find_latest(),
               "checkpoint.dir '{}' already holds checkpoints; use resume = \"auto\" to go on, or another folder",
               recipe_.checkpoint.dir);
  return "";
}

std::vector<StateTensor> RunCheckpoints::all_state() const {
  std::vector<StateTensor> tensors = state_tensors(*store_, loop_->optimizer(), plan_.is_whole());
  // Those of activations are each rank's own; saved is a share of every rank's, which the next steps' maxima replace.
  if (const ops::Fp8Layers* fp8 = loop_->runner().fp8()) tensors.push_back({"fp8", "scalings", fp8->scalings()});
  return tensors;
}

std::string RunCheckpoints::older_hint(const std::string& from) const {
  const std::string older = recipe_.checkpoint.resume == "auto" ? folder_.newest_but(from) : "";
  return older.empty() ? "" : fmt::format("; to go on from an older checkpoint: checkpoint.resume={}", older);
}

void RunCheckpoints::load(const std::string& from) {
  // What does not fit is told by its key, before a tensor is found to have another shape.
  RunState before;
  try {
    before = load_run_state(from);
  } catch (const base::Error& e) {
    base::fail("{}{}", e.what(), older_hint(from));
  }
  const std::string changes = check_resume(from, before.recipe, recipe_, plan_.model);
  const std::string tokenizer = plan_.tokenizer_hash();
  SINTER_CHECK(before.tokenizer.empty() || tokenizer.empty() || before.tokenizer == tokenizer,
               "checkpoint '{}' was made with another tokenizer than {} now is: its ids mean something else; give it "
               "that one (a copy is beside the model), or this one another checkpoint.dir",
               from, plan_.tokenizer ? "'" + plan_.tokenizer_path + "'" : "that of the data");
  std::vector<StateTensor> tensors = all_state();
  ops::Fp8Layers* fp8 = loop_->runner().fp8();
  if (fp8 && !has_state_tensor(from, "fp8", "scalings")) {  // a run that was not in fp8 so far
    std::erase_if(tensors, [](const StateTensor& t) { return t.kind == "fp8"; });
    base::log_info("'{}' holds no fp8 scales: the first step finds them anew", from);
  }
  try {
    state_ = load_checkpoint(from, tensors);
  } catch (const base::Error& e) {  // damaged
    base::fail("{}{}", e.what(), older_hint(from));
  }
  if (mesh_.is_first() && free_disk_bytes(folder_.dir()) < plan_.disk.checkpoint_bytes()) folder_.clean_up(state_.step);
  std::array<int64_t, 4> ends{state_.step, state_.tokens, -state_.step, -state_.tokens};
  mesh_.all().all_reduce(std::span<int64_t>(ends), comm::ReduceOp::max);
  SINTER_CHECK(ends[0] == -ends[2] && ends[1] == -ends[3],
               "rank {} finds '{}' after {} steps, another rank after {}: the folder is not the same on all machines "
               "(yet); start again, or name the checkpoint by its step (checkpoint.resume)",
               mesh_.all().rank(), from, state_.step, ends[0] == state_.step ? -ends[2] : ends[0]);
  if (mesh_.is_first()) warn_of_other_data(before.data);
  if (!changes.empty()) base::log_info("the recipe has changed since this checkpoint was written:\n{}", changes);
  if (fp8) fp8->resume();
  if (recipe_.train.precision == core::DType::f16 && !was_in_f16(state_.recipe))
    state_.loss_scale = {recipe_.train.loss_scale, 0.0};
  try {
    loop_->guard().set_state({state_.guard, state_.loss_scale, state_.updates});
    loop_->noise_scale().set_state(state_.noise_scale);
    plan_.source->set_state(state_.source);
  } catch (const base::Error& e) {
    base::fail("checkpoint '{}', state/index.json: {}", from, e.what());
  }
  kernels::restore_kernel_choices(plan_.device, state_.kernel_choices);
  loop_->optimizer().publish();
  loop_->runner().weights().forget();
  note_what_is_there(from);
  base::log_info("resumed from {} after {} step{}", from, base::format_grouped(state_.step),
                 state_.step == 1 ? "" : "s");
  plan_.continue_after(state_.step, state_.tokens);
  if (state_.step >= plan_.steps)
    base::log_info("{} done already", plan_.steps == 1
                                          ? "the one step is"
                                          : fmt::format("all {} steps are", base::format_grouped(plan_.steps)));
}

// "The data go on where they stood" means little when they are others.
void RunCheckpoints::warn_of_other_data(const std::string& before) const {
  if (before.empty() || data_.empty() || data_ == before) return;
  base::log_warning(
      "the data are not those that this checkpoint was trained on: it goes on at the same place of other data\n"
      "then: {}now:  {}if that is not meant, give it its own data, or a new run another checkpoint.dir",
      before, data_);
}

// What stands there already, as the first rank sees it.
void RunCheckpoints::note_what_is_there(const std::string& from) {
  std::error_code absent;
  std::array<int64_t, 2> saved{-1, 0};
  if (mesh_.is_first() && fs::equivalent(fs::path(from).parent_path(), recipe_.checkpoint.dir, absent))
    saved = {state_.step, fs::exists(from + "/" + plan_.model_file) ? 1 : 0};
  mesh_.all().broadcast(std::as_writable_bytes(std::span(saved)), 0);
  saved_step_ = saved[0];
  saved_model_ = saved[1] != 0;
}

void RunCheckpoints::tell_failure() {
  const auto failure = writer_->take_failure();
  if (!failure) return;
  if (saved_step_ == failure->step) saved_step_ = -1;
  if (!failure->is_own && !mesh_.is_first()) return;
  reporter_->break_line();
  base::log_error("the checkpoint of step {} could not be written, training goes on without it: {}", failure->step,
                  failure->reason);
}

core::DType RunCheckpoints::export_dtype() const {
  return recipe_.checkpoint.exports == spec::ExportFormat::f32 ? core::DType::f32 : plan_.shape.compute;
}

void RunCheckpoints::write_model(const std::string& folder, const std::vector<core::Tensor>& masters) const {
  if (!plan_.has_masters() && plan_.export_model)
    return plan_.export_model(folder, read_masters(folder, plan_), *store_, export_dtype());
  if (!plan_.has_masters()) return export_state(folder, plan_.model, export_dtype(), plan_.tokenizer_files);
  if (plan_.export_model) return plan_.export_model(folder, masters, *store_, export_dtype());
  export_model(folder, plan_.model, masters, export_dtype(), plan_.tokenizer_files);
}

// Where the whole state does not fit on the disk, the model, a third of it or less, may.
std::string RunCheckpoints::write_model_alone() const {
  if (!mesh_.is_first() || !plan_.has_masters()) return "";
  const std::string folder = fmt::format("{}/model-{:08}", folder_.dir(), state_.step);
  std::error_code ignored;
  try {
    std::vector<core::Tensor> masters;
    for (const StateTensor& t : all_state()) {
      if (t.kind == "master") masters.push_back(t.values);
    }
    base::create_folders(folder);
    write_model(folder, masters);
    return fmt::format("; the model alone is in '{}'", folder);
  } catch (const base::Error&) {
    fs::remove_all(folder, ignored);
    return "";
  }
}

void RunCheckpoints::save(bool is_end, bool waits) {
  const double begin = now_seconds();
  finish();
  const bool exports = mesh_.all().size() == 1 || is_end ||
                       (recipe_.checkpoint.export_every > 0 && state_.step % recipe_.checkpoint.export_every == 0);
  if (saved_step_ == state_.step && (saved_model_ || !exports)) return;
  const DivergenceGuard::State guard = loop_->guard().state();
  state_.guard = guard.window;
  state_.loss_scale = guard.loss_scale;
  state_.updates = guard.updates;
  state_.noise_scale = loop_->noise_scale().state();
  state_.kernel_choices = kernels::kernel_choices(plan_.device);
  state_.recipe = plan_.recipe_text();
  state_.tokenizer = plan_.tokenizer_hash();
  state_.data = data_;
  state_.source = plan_.source->state();
  CheckpointWriter::Exporter exporter;
  if (exports) {
    exporter = [this](const std::string& folder, const auto& masters) { write_model(folder, masters); };
  }
  saved_step_ = state_.step;
  saved_model_ = exports;
  saved_at_ = now_seconds();
  if (plan_.host) {  // the device writes what the host reads
    core::DeviceRuntime& device = core::runtime(plan_.device);
    device.synchronize(device.stream());
  }
  writer_->start(state_, all_state(), exporter, waits, !plan_.has_masters());
  reporter_->add_checkpoint_seconds(now_seconds() - begin);
  if (state_.step % std::max<int64_t>(plan_.steps / 10, 1) == 0 || is_end) reporter_->break_line();
  if (!is_end) tell_failure();
}

void RunCheckpoints::save_last() {
  save(true, true);
  const auto failure = writer_->take_failure();
  if (failure)
    base::fail("the last checkpoint, of step {}, could not be written: {}{}", failure->step, failure->reason,
               write_model_alone());
}

void RunCheckpoints::finish() {
  writer_->finish();
  tell_failure();
}

std::string RunCheckpoints::last_saved() const {
  // Resumed from an earlier step to do nothing more, it may not be what `latest` leads to.
  const std::string latest = recipe_.checkpoint.dir + "/latest", last = folder_.path(state_.step);
  std::error_code error;
  return !fs::exists(last, error) || fs::equivalent(latest, last, error) ? latest : last;
}

}  // namespace sinter::train
