#include "train/checkpoint_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "train/checkpoint_boxes.h"

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
// What `rank` of `ranks` writes of its values.
Stretch share_of(const StateTensor& t, int64_t rank, int64_t ranks) {
  const int64_t elements = t.values.num_elements();
  if (t.place) rank = t.place->copy, ranks = t.place->copies;
  const int64_t begin = elements * rank / ranks;
  return {begin, elements * (rank + 1) / ranks - begin};
}
// What the copy of `rank` holds of it.
Stretch copied_of(const StateTensor& t, int rank, int ranks, bool with_masters) {
  return with_masters && rank == 0 && t.kind == kMaster ? Stretch{0, t.values.num_elements()}
                                                        : share_of(t, rank, ranks);
}

size_t aligned(size_t bytes) { return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes; }
core::Tensor flat(const core::Tensor& t) { return t.reshape({t.num_elements()}); }

json axes_of(const base::Shape& shape) {
  json axes = json::array();
  for (int axis = 0; axis < shape.rank(); ++axis) axes.push_back(shape[axis]);
  return axes;
}

json hashes_of(std::span<const std::byte> bytes) {
  json hashes = json::array();
  for (size_t at = 0; at < bytes.size(); at += kStateChunkBytes) {
    const size_t count = std::min<size_t>(kStateChunkBytes, bytes.size() - at);
    hashes.push_back(fmt::format("{:016x}", base::hash_bytes(bytes.subspan(at, count))));
  }
  return hashes;
}

// This rank's share of the tensors into its file; returns what of them is there, as entries of the index with one part.
json write_rank_file(const std::string& folder, int rank, int ranks, const std::vector<StateTensor>& tensors,
                     const std::vector<core::Tensor>& pieces) {
  io::SafetensorsWriter writer(folder + "/state/" + rank_file(rank), {{"format", "sinter state"}});
  std::vector<std::vector<HeldPiece>> held;
  for (const StateTensor& t : tensors) {
    const Stretch share = share_of(t, rank, ranks);
    held.push_back(held_pieces(t, share.begin, share.count, true));
    int64_t count = 0;
    for (HeldPiece& piece : held.back()) {
      piece.at -= share.begin;
      count += piece.box.num_elements();
    }
    if (count > 0) writer.declare(state_key(t.kind, t.name), base::DType::f32, {count});
  }
  json entries = json::array();
  std::vector<float> scratch, stored;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (held[i].empty()) continue;
    const StateTensor& t = tensors[i];
    const std::span<const float> values = core::host_floats(pieces[i], scratch);
    json boxes = json::array();
    stored.clear();
    for (const HeldPiece& piece : held[i]) {
      const auto from = values.subspan(static_cast<size_t>(piece.at), static_cast<size_t>(piece.box.num_elements()));
      stored.insert(stored.end(), from.begin(), from.end());
      json box = axes_of(piece.box.begin);
      for (const json& size : axes_of(piece.box.size)) box.push_back(size);
      boxes.push_back(std::move(box));
    }
    const std::span<const std::byte> bytes = std::as_bytes(std::span(stored));
    writer.write(state_key(t.kind, t.name), bytes);
    json part{{"file", rank_file(rank)}, {"boxes", std::move(boxes)}, {"hashes", hashes_of(bytes)}};
    entries.push_back({{"kind", t.kind},
                       {"name", t.name},
                       {"shape", axes_of(global_shape(t))},
                       {"parts", json::array({std::move(part)})}});
  }
  writer.commit();
  return entries;
}

// `written`: what each rank's write_rank_file returned, as text.
json make_index(const RunState& run, const std::vector<std::string>& written) {
  json entries = json::array();
  std::map<std::string, size_t> places;
  for (const std::string& text : written) {
    for (json& entry : json::parse(text)) {
      const std::string key = state_key(entry["kind"], entry["name"]);
      const auto [place, is_new] = places.try_emplace(key, entries.size());
      if (is_new) {
        entries.push_back(std::move(entry));
      } else {
        entries[place->second]["parts"].push_back(std::move(entry["parts"][0]));
      }
    }
  }
  return {{"format", "sinter state"},
          {"version", 2},
          {"step", run.step},
          {"updates", run.updates},
          {"tokens", run.tokens},
          {"guard", run.guard},
          {"noise_scale", run.noise_scale},
          {"validation", run.validation},
          {"loss_scale", run.loss_scale},
          {"kernel_choices", run.kernel_choices},
          {"ranks", written.size()},
          {"tokenizer", run.tokenizer},
          {"data", run.data},
          {"source", run.source},
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

std::vector<StateTensor> state_tensors(const models::ParameterStore& store, const Optimizer& optimizer, bool is_whole) {
  std::vector<StateTensor> tensors;
  // What this rank has of a tensor from element `first` on; a part of it where ranks divide it.
  auto place_of = [&](const models::ParameterStore::Slot& slot, int64_t first, bool is_part) {
    const OptimizerShard& shard = optimizer.shard().of(slot.info);
    return StatePlace{slot.global_shape,
                      slot.info.shape,
                      slot.boxes,
                      first,
                      is_part ? shard.copy : shard.holder,
                      is_part ? shard.copies : shard.holders};
  };
  for (const auto& slot : store.slots()) {
    if (!store.is_trained(slot)) continue;
    if (slot.parameter.master) {
      tensors.push_back({kMaster, slot.info.name, slot.parameter.master});
      if (!is_whole) tensors.back().place = place_of(slot, 0, false);
    } else if (const auto own = store.own_part(slot); own.count > 0) {
      tensors.push_back({kMaster, slot.info.name, store.masters_of(own.begin, own.count),
                         place_of(slot, own.begin - slot.offset, true)});
    }
  }
  for (const Optimizer::Scales& scales : optimizer.scales()) {
    const models::ParameterStore::Slot& slot = store.slots()[scales.slot];
    StatePlace place = place_of(slot, 0, false);
    place.global_shape = place.local_shape = scales.values.shape();
    place.boxes = {{{0}, place.local_shape, {0}, slot.boxes.front().is_owned}};
    tensors.push_back({scales.kind, slot.info.name, scales.values, std::move(place)});
  }
  for (const Optimizer::State& state : optimizer.states()) {
    const models::ParameterStore::Slot& slot = store.slots()[state.slot];
    const bool is_part = store.segment_of(slot).is_divided;
    tensors.push_back({state.kind, slot.info.name, state.values, place_of(slot, state.first, is_part)});
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
    const Stretch copied = copied_of(t, rank, ranks, with_masters), share = share_of(t, rank, ranks);
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
  bool reads_files = false;
  Exporter exporter;    // the first rank's; may be empty
  std::string written;  // entries of the index of what this rank wrote
  std::string error;    // this rank's
};

CheckpointWriter::CheckpointWriter(const CheckpointFolder& folder, comm::Communicator& comm)
    : folder_(folder), comm_(comm) {}
CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::reserve(const std::vector<StateTensor>& tensors, core::Device device, bool exports) {
  copy_ = std::make_unique<StateCopy>(tensors, device, comm_.rank(), comm_.size(), exports);
  task_.start([copy = copy_.get()] { copy->touch(); });
}

void CheckpointWriter::start(const RunState& run, const std::vector<StateTensor>& tensors, const Exporter& exporter,
                             bool waits, bool reads_files) {
  finish();
  job_ = std::make_unique<Job>(Job{.run = run, .tensors = tensors, .reads_files = reads_files});
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
    const Stretch share = share_of(t, comm_.rank(), comm_.size());
    job.pieces.push_back(flat(t.values).slice(share.begin, share.count));
    if (t.kind == kMaster) job.masters.push_back(t.values);
  }
  job.error = error_of([&] { write(job); });
  exchange(false);
}

// One rank needs nobody's word, so its checkpoint is complete when the files are.
void CheckpointWriter::write(Job& job) const {
  const std::string folder = folder_.temporary(job.run.step);
  job.written = write_rank_file(folder, comm_.rank(), comm_.size(), job.tensors, job.pieces).dump();
  if (job.exporter && !job.reads_files) job.exporter(folder, job.masters);
  if (comm_.size() == 1) folder_.commit(job.run.step, make_index(job.run, {job.written}));
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
  if (!agree(job.error.empty())) return end(false);
  auto commit = [this, &job, written = comm_.gather_texts(job.written)] {
    const json index = make_index(job.run, written);
    if (job.exporter && job.reads_files) {
      const std::string folder = folder_.temporary(job.run.step);
      base::save_json(folder + "/state/index.json", index);
      job.exporter(folder, {});
    }
    folder_.commit(job.run.step, index);
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
