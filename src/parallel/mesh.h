// The ranks of a run as a grid with named axes. Everything that talks asks the mesh for the group of an axis; nothing
// asks for the world.
//
//   rank = (((pp * replica + r) * shard + s) * cp + c) * tp + t        tp fastest: its ranks share a node
//
// Expert parallelism overlays the data and context ranks of one pipeline stage: with q the place in (replica, shard,
// cp), the ep coordinate is q % ep, and ranks with the same q % ep and t hold the same part of the same experts.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "spec/parallel_spec.h"

namespace sinter::parallel {

// Where a rank stands. data = replica * layout.shard + shard.
struct Coordinates {
  int64_t data = 0, shard = 0, replica = 0, pipeline = 0, context = 0, tensor = 0, expert = 0;
  bool operator==(const Coordinates&) const = default;
};
Coordinates coordinates_of(const spec::ParallelSpec& layout, int64_t rank);

class Mesh {
 public:
  // Splits `all`, which must outlive it and have layout.ranks() ranks; every rank of it calls this with the same
  // layout.
  Mesh(comm::Communicator& all, const spec::ParallelSpec& layout);
  // All ranks are data-parallel (`shard` of them).
  explicit Mesh(comm::Communicator& all);

  const spec::ParallelSpec& layout() const { return layout_; }
  const Coordinates& at() const { return at_; }
  comm::Communicator& all() const { return all_; }
  // The rank that speaks, writes logs and metrics.
  bool is_first() const { return all_.rank() == 0; }

  // Groups of ranks that differ in one coordinate only. One rank where an axis is 1.
  comm::Communicator& data() const { return *data_; }          // shard x replica: other sequences, same weights
  comm::Communicator& shard() const { return *shard_; }        // ZeRO divides state among these
  comm::Communicator& replica() const { return *replica_; }    // hold the same shard
  comm::Communicator& pipeline() const { return *pipeline_; }  // stages
  comm::Communicator& context() const { return *context_; }    // parts of a sequence
  comm::Communicator& tensor() const { return *tensor_; }      // parts of a layer
  comm::Communicator& expert() const { return *expert_; }      // other experts
  // Groups over several axes.
  comm::Communicator& gradient() const { return *gradient_; }  // data x context: gradients are summed over these
  comm::Communicator& expert_gradient() const { return *expert_gradient_; }  // the same experts: theirs over these
  comm::Communicator& copies() const { return *copies_; }                    // replica x context: hold the same shard
  comm::Communicator& stage() const { return *stage_; }  // all ranks of this pipeline stage: data x context x tensor
  comm::Communicator& model() const { return *model_; }  // pipeline x tensor: one copy of the model

  // What each rank is, as a table; one line a rank. Of the layout alone.
  static std::string map(const spec::ParallelSpec& layout);

 private:
  comm::Communicator* group(const char* label, int64_t size, int64_t color, int64_t key);
  comm::Communicator& all_;
  spec::ParallelSpec layout_;
  Coordinates at_;
  std::vector<std::unique_ptr<comm::Communicator>> owned_;
  comm::Communicator *data_, *shard_, *replica_, *pipeline_, *context_, *tensor_, *expert_, *gradient_,
      *expert_gradient_, *copies_, *stage_, *model_;
};

}  // namespace sinter::parallel
