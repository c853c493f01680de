// Checkpoints (docs/formats.md): a folder per saved step that is at once a Hugging Face model and a resumable state.
//
//   DIR/latest                       symbolic link to the newest complete one
//   DIR/best                         with train.patience: to the one of the least validation loss
//   DIR/step-00000100/               config.json, model.safetensors, tokenizer files
//   DIR/step-00000100/state/         index.json and a file per rank: pieces are boxes of global tensors, so that any
//                                    other layout can load them
//
// A checkpoint is written under a temporary name, synced and renamed: kill -9 at any moment leaves the last one whole.
// checkpoint_writer.h writes them, behind the training.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "core/tensor.h"
#include "spec/local_table.h"

namespace sinter::train {

// Where a rank's values lie in a global tensor, when they are a part of it.
struct StatePlace {
  base::Shape global_shape, local_shape;  // the local tensor holds boxes of the global one (spec/local_table.h)
  std::vector<spec::Box> boxes;
  int64_t first = 0;             // the values are the local tensor's elements from here on (ZeRO)
  int64_t copy = 0, copies = 1;  // of the ranks that hold the same values; each writes its share
};

// One tensor of the state.
struct StateTensor {
  std::string kind;                      // "master", "m", "v", ...
  std::string name;                      // the parameter table's; "scalings" of kind "fp8"
  core::Tensor values;                   // f32, or a shorter format: kept as f32 in the file
  std::optional<StatePlace> place = {};  // nothing: every rank holds the whole tensor
};

// What a run needs besides tensors to go on bit for bit.
struct RunState {
  int64_t step = 0;     // steps done
  int64_t updates = 0;  // of the optimizer: steps less the skipped ones
  int64_t tokens = 0;   // seen
  std::vector<double> guard, noise_scale;
  std::vector<double> loss_scale{1.0, 0.0};  // the scale, good steps since it changed
  // With train.patience: the least validation loss, its step, and how many have been no less since. Empty before.
  std::vector<double> validation;
  std::vector<std::string> kernel_choices;  // kernels/choices.h: what this run's kernels measured
  std::string tokenizer;                    // the hash of the one its data were made with, in hex; "" = not known
  std::string data;                         // what its sources held, a line each (agreement.h); "" = not known
  std::string source;                       // what the next batches depend on (batch_source.h)
  std::string recipe;                       // the effective recipe, for people and for `sinter inspect`
};

// The name of a state tensor in the files: "master/layers.0.mlp.up.weight".
std::string state_key(const std::string& kind, const std::string& name);

// index.json of a state folder, parsed and checked: version 2, or version 1 seen as such.
inline constexpr int64_t kStateChunkBytes = 1 << 20;  // hashed at a time
// Elements [begin, begin + size) on every axis of a global tensor.
struct StateBox {
  base::Shape begin, size;
  int64_t num_elements() const { return size.num_elements(); }
};
// What one file holds of a tensor.
struct StatePart {
  std::string file;
  std::vector<StateBox> boxes;             // behind each other in the file, each row-major
  std::vector<uint64_t> hashes;            // of every chunk
  int64_t chunk_bytes = kStateChunkBytes;  // 0: one hash for all (version 1)
  int64_t num_elements() const {
    int64_t n = 0;
    for (const StateBox& box : boxes) n += box.num_elements();
    return n;
  }
};
struct StateEntry {
  std::string kind, name;
  base::Shape shape;
  std::vector<StatePart> parts;  // as many elements as the tensor has
};
struct StateIndex {
  RunState run;
  int64_t ranks = 0;
  std::vector<StateEntry> entries;
};
// Throws base::Error naming `origin` and the key.
StateIndex parse_state_index(std::string_view json, const std::string& origin);

// The folder of a run's checkpoints: which is the newest, and how one takes its place. checkpoint_writer.h fills them.
class CheckpointFolder {
 public:
  // Makes it where it is not there (rank 0; the others wait).
  CheckpointFolder(std::string dir, int64_t keep, comm::Communicator& comm);
  // Removes what a killed run left half written. Only for whoever holds the folder's lock (run_lock.h).
  void remove_leftovers() const;

  // The checkpoint that resume = auto means: where the link `latest` leads, else the newest complete step; a `latest`
  // that is no link (a copy of a folder may hold one) counts only where there is nothing else. Nothing when there is
  // none.
  std::optional<std::string> find_latest() const;
  const std::string& dir() const { return dir_; }

  // How step-N comes to be; rank 0 calls these, in this order. begin() makes its temporary folder anew.
  void begin(int64_t step) const;
  std::string temporary(int64_t step) const;
  // Writes index.json, renames the folder, moves `latest` and, where the index says that this step is the best, `best`,
  // and removes all but the newest `keep` up to this step and the best. Names other than step-NNNNNNNN are the user's
  // and left alone. Once the folder has its name the checkpoint is there: what fails after that is a warning.
  void commit(int64_t step, const nlohmann::json& index) const;
  // Instead of commit: removes the temporary folder. Never throws.
  void discard(int64_t step) const;

  std::string path(int64_t step) const;
  // The newest whole checkpoint but this one; "" when there is none.
  std::string newest_but(const std::string& folder) const;
  // Removes what the next checkpoint after step `newest` would push out.
  void clean_up(int64_t newest) const;

 private:
  void replace(const std::string& from, const std::string& target) const;
  void move_link(const std::string& name, int64_t step) const;
  std::string dir_;
  int64_t keep_;
};

// The checkpoints of a folder that `keep` no longer keeps, oldest first; none where there is no folder. The first
// weights (step 0) are not among them, nor where the link `best` leads, nor steps after `newest`.
std::vector<std::string> old_checkpoints(const std::string& dir, int64_t keep, int64_t newest = INT64_MAX);

// What a checkpoint folder says besides tensors. Throws base::Error when it is none.
RunState load_run_state(const std::string& folder);
// Whether a checkpoint folder holds this tensor of the state.
bool has_state_tensor(const std::string& folder, const std::string& kind, const std::string& name);

// Reads tensors out of a checkpoint folder, and of its files only what they need.
class StateReader {
 public:
  explicit StateReader(const std::string& folder);
  ~StateReader();
  const RunState& run() const;
  // Throws base::Error naming the file when the tensor or a part of it is missing, cut off or damaged, or has another
  // global shape.
  void read(const StateTensor& tensor);

 private:
  struct Files;
  const std::string folder_;
  std::unique_ptr<Files> files_;
};
// All of them.
RunState load_checkpoint(const std::string& folder, const std::vector<StateTensor>& tensors);

}  // namespace sinter::train
