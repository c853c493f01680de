// Checkpoints (docs/formats.md): a folder per saved step that is at once a Hugging Face model and a resumable state.
//
//   DIR/latest                       symbolic link to the newest complete one
//   DIR/step-00000100/               config.json, model.safetensors, tokenizer files
//   DIR/step-00000100/state/         index.json and a file per rank: global tensor names, and pieces by flat offset,
//                                    so that any number of ranks can load it
//
// A checkpoint is written under a temporary name, synced and renamed: kill -9 at any moment leaves the last one whole.
// checkpoint_writer.h writes them, behind the training.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "core/tensor.h"

namespace sinter::train {

// One tensor of the state. All ranks hold the whole of it; each writes its share.
struct StateTensor {
  std::string kind;     // "master", "m", "v", ...
  std::string name;     // the parameter table's; "scalings" of kind "fp8"
  core::Tensor values;  // f32, or a shorter format: kept as f32 in the file
};

// What a run needs besides tensors to go on bit for bit.
struct RunState {
  int64_t step = 0;     // steps done
  int64_t updates = 0;  // of the optimizer: steps less the skipped ones
  int64_t tokens = 0;   // seen
  std::vector<double> guard, noise_scale;
  std::vector<double> loss_scale{1.0, 0.0};  // the scale, good steps since it changed
  std::vector<std::string> kernel_choices;   // kernels/choices.h: what this run's kernels measured
  std::string tokenizer;                     // the hash of the one its data were made with, in hex; "" = not known
  std::string recipe;                        // the effective recipe, for people and for `sinter inspect`
};

// The name of a state tensor in the files: "master/layers.0.mlp.up.weight".
std::string state_key(const std::string& kind, const std::string& name);

// index.json of a state folder, parsed and checked.
struct StatePiece {
  std::string file;
  int64_t begin = 0, count = 0;  // elements of the flattened tensor
  uint64_t hash = 0;
};
struct StateEntry {
  std::string kind, name;
  std::vector<int64_t> shape;
  std::vector<StatePiece> pieces;  // in order, without gaps
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
  // Writes index.json, renames the folder, moves `latest` and removes all but the newest `keep` up to this step. Names
  // other than step-NNNNNNNN are the user's and left alone. Once the folder has its name the checkpoint is there: what
  // fails after that is a warning.
  void commit(int64_t step, const nlohmann::json& index) const;
  // Instead of commit: removes the temporary folder. Never throws.
  void discard(int64_t step) const;

  std::string path(int64_t step) const;

 private:
  void replace(const std::string& from, const std::string& target) const;
  void move_latest(int64_t step) const;
  void clean_up(int64_t newest) const;
  std::string dir_;
  int64_t keep_;
};

// What a checkpoint folder says besides tensors. Throws base::Error when it is none.
RunState load_run_state(const std::string& folder);
// Whether a checkpoint folder holds this tensor of the state.
bool has_state_tensor(const std::string& folder, const std::string& kind, const std::string& name);

// Reads a checkpoint folder into the tensors (every one must be there with its shape). Throws base::Error naming the
// file when something is missing, cut off or damaged.
RunState load_checkpoint(const std::string& folder, const std::vector<StateTensor>& tensors);

}  // namespace sinter::train
