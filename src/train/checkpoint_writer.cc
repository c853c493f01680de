#include "train/checkpoint_writer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "io/safetensors.h"

namespace sinter::train {
namespace {

using nlohmann::json;

constexpr const char* kMaster = "master";
constexpr size_t kAlignBytes = 256;

std::string rank_file(int64_t rank) { return fmt::format("rank-{:05}.safetensors", rank); }

// Elements of a flattened tensor.
struct Stretch {
  int64_t begin = 0, count = 0;
};
// What `rank` of `ranks` writes of it.
Stretch share_of(int64_t elements, int64_t rank, int64_t ranks) {
  const int64_t begin = elements * rank / ranks;
  return {begin, elements * (rank + 1) / ranks - begin};
}
// What the copy of `rank` holds of it.
Stretch copied_of(const StateTensor& t, int rank, int ranks, bool with_masters) {
  const int64_t elements = t.values.num_elements();
  return with_masters && rank == 0 && t.kind == kMaster ? Stretch{0, elements} : share_of(elements, rank, ranks);
}

size_t aligned(size_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }
core::Tensor flat(const core::Tensor& t) { return t.reshape({t.num_elements()}); }

// This rank's pieces into its file; returns their hashes in the order of the tensors.
std::vector<uint64_t> write_rank_file(const std::string& path, const std::vector<StateTensor>& tensors,
                                      const std::vector<core::Tensor>& pieces) {
  io::SafetensorsWriter writer(path, {{"format", "sinter state"}});
  for (size_t i = 0; i < tensors.size(); ++i)
    writer.declare(state_key(tensors[i].kind, tensors[i].name), base::DType::f32, {pieces[i].num_elements()});
  std::vector<uint64_t> hashes;
  std::vector<float> scratch;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::span<const std::byte> bytes = std::as_bytes(core::host_floats(pieces[i], scratch));
    hashes.push_back(base::hash_bytes(bytes));
    writer.write(state_key(tensors[i].kind, tensors[i].name), bytes);
  }
  writer.commit();
  return hashes;
}

// `hashes`: of all ranks' pieces, rank by rank.
json make_index(const RunState& run, const std::vector<StateTensor>& tensors, const std::vector<uint64_t>& hashes,
                int ranks) {
  json entries = json::array();
  for (size_t i = 0; i < tensors.size(); ++i) {
    json pieces = json::array(), shape = json::array();
    for (int r = 0; r < ranks; ++r) {
      const Stretch share = share_of(tensors[i].values.num_elements(), r, ranks);
      const uint64_t hash = hashes[static_cast<size_t>(r) * tensors.size() + i];
      pieces.push_back({{"file", rank_file(r)},
                        {"begin", share.begin},
                        {"count", share.count},
                        {"hash", fmt::format("{:016x}", hash)}});
    }
    for (int axis = 0; axis < tensors[i].values.shape().rank(); ++axis) shape.push_back(tensors[i].values.size(axis));
    entries.push_back({{"kind", tensors[i].kind}, {"name", tensors[i].name}, {"shape", shape}, {"pieces", pieces}});
  }
  return {{"format", "sinter state"},
          {"version", 1},
          {"step", run.step},
          {"updates", run.updates},
          {"tokens", run.tokens},
          {"guard", run.guard},
          {"noise_scale", run.noise_scale},
          {"loss_scale", run.loss_scale},
          {"kernel_choices", run.kernel_choices},
          {"ranks", ranks},
          {"tokenizer", run.tokenizer},
          {"recipe", run.recipe},
          {"tensors", entries}};
}

// "" or what went wrong: a rank that fails must still take part in what the others do next.
template <class Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const std::exception& e) {
    return *e.what() ? e.what() : "unknown error";
  }
  return "";
}

}  // namespace

std::vector<StateTensor> state_tensors(const models::ParameterStore& store, const Optimizer& optimizer) {
  std::vector<StateTensor> tensors;
  for (const auto& slot : store.slots()) tensors.push_back({kMaster, slot.info.name, slot.parameter.master});
  for (const Optimizer::State& state : optimizer.states()) {
    const spec::Parameter& info = store.slots()[state.slot].info;
    tensors.push_back({state.kind, info.name, state.values.reshape(info.shape)});
  }
  return tensors;
}

size_t StateCopy::bytes(const std::vector<StateTensor>& tensors, int rank, int ranks, bool with_masters) {
  size_t sum = 0;
  for (const StateTensor& t : tensors)
    sum += aligned(static_cast<size_t>(copied_of(t, rank, ranks, with_masters).count) *
                   base::dtype_bytes(t.values.dtype()));
  return sum;
}

StateCopy::StateCopy(const std::vector<StateTensor>& tensors, core::Device device, int rank, int ranks,
                     bool with_masters) {
  const size_t all = bytes(tensors, rank, ranks, with_masters);
  std::byte* next = nullptr;
  if (device.kind == core::DeviceKind::cuda) {
    staging_ = core::runtime(device).allocate_staging(all);
    next = staging_.get();
  } else {
    memory_ = core::Tensor(core::runtime(device).allocator(), {static_cast<int64_t>(all)}, core::DType::u8);
    next = static_cast<std::byte*>(memory_.raw());
  }
  for (const StateTensor& t : tensors) {
    const Stretch copied = copied_of(t, rank, ranks, with_masters),
                  share = share_of(t.values.num_elements(), rank, ranks);
    begins_.push_back(copied.begin);
    copies_.push_back(core::Tensor::view_of(next, {copied.count}, t.values.dtype(), {}));
    pieces_.push_back(copies_.back().slice(share.begin - copied.begin, share.count));
    if (with_masters && rank == 0 && t.kind == kMaster) masters_.push_back(copies_.back());
    next += aligned(copies_.back().bytes());
  }
}

void StateCopy::touch() const {
  constexpr int64_t kPageBytes = 4096;
  for (int64_t at = 0; at < memory_.num_elements(); at += kPageBytes) memory_.data<uint8_t>()[at] = 0;
}

void StateCopy::take(const std::vector<StateTensor>& tensors) {
  SINTER_CHECK(tensors.size() == copies_.size(), "[checkpoint] {} tensors, room for {}", tensors.size(),
               copies_.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const core::Tensor source = flat(tensors[i].values).slice(begins_[i], copies_[i].num_elements());
    core::DeviceRuntime& device = core::runtime(source.device());
    device.copy_to_host(copies_[i].raw(), source.raw(), source.bytes(), device.stream());
    if (i + 1 == tensors.size()) device.synchronize(device.stream());  // all are on one device
  }
}

struct CheckpointWriter::Job {
  RunState run;
  std::vector<StateTensor> tensors;  // whole; in the background only names and shapes are read
  std::vector<core::Tensor> pieces, masters;
  Exporter exporter;             // the first rank's; may be empty
  std::vector<uint64_t> hashes;  // of the pieces, once written
  std::string error;             // this rank's
};

CheckpointWriter::CheckpointWriter(const CheckpointFolder& folder, comm::Communicator& comm)
    : folder_(folder), comm_(comm) {}
CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::reserve(const std::vector<StateTensor>& tensors, core::Device device, bool exports) {
  copy_ = std::make_unique<StateCopy>(tensors, device, comm_.rank(), comm_.size(), exports);
  task_.start([copy = copy_.get()] { copy->touch(); });
}

void CheckpointWriter::start(const RunState& run, const std::vector<StateTensor>& tensors, const Exporter& exporter,
                             bool waits) {
  finish();
  job_ = std::make_unique<Job>(Job{.run = run, .tensors = tensors});
  Job& job = *job_;
  if (comm_.rank() == 0) {
    job.exporter = exporter;
    job.error = error_of([&] { folder_.begin(run.step); });
  }
  if (!agree(job.error.empty())) return end(false);
  if (copy_ && !waits) {
    copy_->take(tensors);
    job.pieces = copy_->pieces();
    job.masters = copy_->masters();
    stage_ = Stage::writing;
    task_.start([this, &job] { write(job); });
    return;
  }
  for (const StateTensor& t : tensors) {
    const Stretch share = share_of(t.values.num_elements(), comm_.rank(), comm_.size());
    job.pieces.push_back(flat(t.values).slice(share.begin, share.count));
    if (t.kind == kMaster) job.masters.push_back(t.values);
  }
  job.error = error_of([&] { write(job); });
  exchange(false);
}

// One rank needs nobody's word, so its checkpoint is complete when the files are.
void CheckpointWriter::write(Job& job) const {
  const std::string folder = folder_.temporary(job.run.step);
  job.hashes = write_rank_file(folder + "/state/" + rank_file(comm_.rank()), job.tensors, job.pieces);
  if (job.exporter) job.exporter(folder, job.masters);
  if (comm_.size() == 1) folder_.commit(job.run.step, make_index(job.run, job.tensors, job.hashes, 1));
}

void CheckpointWriter::advance() {
  if (!job_) return;
  if (std::string error = error_of([&] { task_.wait(); }); !error.empty()) job_->error = std::move(error);
  if (stage_ == Stage::writing) return exchange(true);
  end(agree(job_->error.empty()));
}

// All ranks have written their files, or could not.
void CheckpointWriter::exchange(bool in_background) {
  Job& job = *job_;
  if (comm_.size() == 1) return end(job.error.empty());
  std::vector<uint64_t> hashes(job.tensors.size() * static_cast<size_t>(comm_.size()));
  if (!agree(job.error.empty())) return end(false);
  comm_.all_gather(std::as_bytes(std::span(job.hashes)), std::as_writable_bytes(std::span(hashes)));
  auto commit = [this, &job, hashes = std::move(hashes)] {
    folder_.commit(job.run.step, make_index(job.run, job.tensors, hashes, comm_.size()));
  };
  if (in_background) {
    stage_ = Stage::committing;
    if (comm_.rank() == 0) task_.start(commit);
    return;
  }
  if (comm_.rank() == 0) job.error = error_of(commit);
  end(agree(job.error.empty()));
}

void CheckpointWriter::end(bool is_written) {
  if (!is_written) {
    const bool is_own = !job_->error.empty();
    failure_ = {job_->run.step, is_own ? job_->error : "another rank could not write its part", is_own};
    if (comm_.rank() == 0) folder_.discard(job_->run.step);
  }
  job_.reset();
}

void CheckpointWriter::finish() {
  if (!job_) task_.wait();  // the memory's pages
  while (job_) advance();
}

std::optional<CheckpointWriter::Failure> CheckpointWriter::take_failure() {
  return std::exchange(failure_, std::nullopt);
}

}  // namespace sinter::train
