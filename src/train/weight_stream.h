// Divided weights (ZeRO-3): every block's are brought together in their slots before it runs, one block ahead, and
// forgotten after it. Hooks of the transformer's blocks (models::BlockHooks) drive it, in forward and backward alike.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "kernels/table.h"
#include "models/parameter_store.h"
#include "parallel/mesh.h"
#include "train/copies.h"

namespace sinter::train {

class WeightStream {
 public:
  // Keeps references. Does nothing where the store's weights are whole. `copies` brings those from the host's memory
  // that no other rank has a piece of; null: they are copied when they are asked for.
  WeightStream(models::ParameterStore& store, const parallel::Mesh& mesh, Copies* copies = nullptr);

  // A layer is about to run, forward or backward: its weights are there when this returns, those of its neighbour in
  // that direction on their way.
  void before_forward(int64_t layer) { prepare(layer, 1); }
  void before_backward(int64_t layer) { prepare(layer, -1); }
  // The masters have changed: what stands in the slots is old.
  void forget();

  int64_t num_gathers() const { return num_gathers_; }   // of units, so far
  double copy_seconds() const { return copy_seconds_; }  // spent here on copies from the host's memory
  int64_t num_ahead() const { return num_ahead_; }       // of them begun before they were asked for

 private:
  struct Unit {
    std::vector<size_t> segments;
    bool is_here = false;             // or on its way
    std::vector<comm::Handle> works;  // on its way
  };
  void prepare(int64_t layer, int64_t direction);
  void fetch(int64_t number);
  void wait_for(int64_t number);

  models::ParameterStore& store_;
  const parallel::Mesh& mesh_;
  const kernels::KernelTable& kernels_;
  Copies* copies_;
  std::map<int64_t, Unit> units_;
  double copy_seconds_ = 0;
  int64_t num_gathers_ = 0, num_ahead_ = 0;
};

}  // namespace sinter::train
