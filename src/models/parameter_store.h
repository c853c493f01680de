// A model's tensors in memory: flat buffers per kind of state, cut up by the parameter table.
//
//   master   f32, what the optimizer updates          compute  the rounded copy that kernels multiply by (bf16, f16);
//   grad     f32, gathered by backward                         the master itself in fp32
//
// The flat order is block-major: embeddings, block 0, block 1, ..., final norm and head, extra heads. So a block is one
// range of every buffer, what is gathered, reduced or moved at a time. Tensors that do not train stand behind all that
// do, in the same order: masters (when they are another buffer) and gradients end with the last tensor that trains.
// What is said of a block's range is said of what trains of it. Within a block matrices come first, then
// vectors, then experts (which other ranks share): an optimizer sees two ranges a block, three with experts. Each
// tensor starts at a multiple of 64 elements; the gaps are zero and stay zero. Short gradients (of the matrices of the
// blocks) are a buffer of their own in the same order: embeddings, head and vectors keep f32, since theirs are sums of
// very many small parts.
//
// A rank of a layout holds boxes of the global tensors (spec/local_table.h); shapes here are the local ones. Where
// ranks divide state (segments.h) the buffers hold this rank's pieces, and what is whole only for a while stands in
// slots.
#pragma once
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "autograd/tape.h"
#include "core/tensor.h"
#include "models/segments.h"
#include "spec/local_table.h"

namespace sinter::kernels {
struct KernelTable;
}

namespace sinter::models {

using autograd::Parameter;
using core::DType;
using core::Tensor;

struct StoreOptions {
  core::Device device;
  DType compute = DType::f32;
  bool trains = false;           // gradients, and masters of every tensor
  bool keeps_derived = false;    // lets kernels keep repacked weights (inference)
  DType gradients = DType::f32;  // of the matrices of the blocks: f32, or the compute format
  // Names of tensors that stand outside of the flat buffers, without gradients: set_blocks() gives them their weights,
  // in whatever format, where they lie already (a mapped file).
  std::set<std::string> apart;
  Division division = {};           // of what trains
  core::Allocator* host = nullptr;  // where Division puts something there; must outlive the store
};

class ParameterStore {
 public:
  // Allocates; contents are zero.
  ParameterStore(const spec::ModelSpec& spec, const StoreOptions& options);
  // The share of one rank.
  ParameterStore(std::vector<spec::LocalParameter> table, const StoreOptions& options);
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  struct Slot {
    spec::ParameterSpec info;  // of the local shape
    int64_t offset = 0;        // in the flat buffers, in elements
    Parameter parameter;
    base::Shape global_shape;
    std::vector<spec::Box> boxes;  // what of the global tensor stands here
    int64_t gradient_parts = 1;    // as in spec::LocalParameter
    int64_t grad_offset = 0;       // in the buffer of gradients of its format
    bool is_apart = false;         // StoreOptions::apart: nothing of it is in the flat buffers
  };
  std::vector<Slot>& slots() { return slots_; }  // in the table's order
  const std::vector<Slot>& slots() const { return slots_; }
  // Throws base::Error with the nearest name.
  Parameter& get(const std::string& name);
  Parameter* find(const std::string& name);  // null when there is none

  const StoreOptions& options() const { return options_; }
  int64_t num_elements() const { return num_elements_; }    // of the flat buffers, gaps counted
  int64_t num_trainable() const { return num_trainable_; }  // of those that train: the first in the flat order
  bool is_trained(const Slot& slot) const { return options_.trains && slot.info.trainable; }
  // A range of the flat order: tensors of one block that decay or do not, gaps counted.
  struct Range {
    int64_t begin = 0, end = 0;
    int64_t layer = -1;  // as in spec::Parameter
    bool decays = false, has_experts = false;
  };
  const std::vector<Range>& ranges() const { return ranges_; }  // of what trains (of all without), without holes
  Range block_range(int64_t layer) const;                       // all of a layer; empty when nothing of it is here
  const Tensor& master() const { return master_; }              // (n) f32 of what trains (in fp32 of all); maybe empty
  const Tensor& compute() const { return compute_; }            // (n) compute format; the master in fp32
  const Tensor& grad() const { return grad_; }                  // f32; all of them (n) unless gradients are short
  // All gradients, flat, in the order of the buffers: one tensor, or two with short gradients; where they are divided
  // also the slots, and this rank's pieces where they are on the device.
  std::vector<Tensor> gradients() const;
  // Elements [begin, begin + count) of the flat order; all of one format, begin is that of a tensor or within one. Of
  // divided tensors within this rank's piece.
  Tensor gradients_of(int64_t begin, int64_t count) const;
  Tensor masters_of(int64_t begin, int64_t count) const;
  Tensor weights_of(int64_t begin, int64_t count) const;  // empty where divided weights have no home but the masters

  // What is divided at a time, in the flat order.
  const std::vector<Segment>& segments() const { return segments_; }
  const Segment& segment_of(int64_t offset) const;
  const Segment& segment_of(const Slot& slot) const { return segment_of(slot.offset); }
  bool divides_masters() const { return divides_masters_; }
  bool divides_gradients() const { return options_.division.gradients; }
  bool divides_weights() const { return options_.division.weights; }
  // All of a divided segment, while its block is at work.
  Tensor weight_slot(const Segment& segment) const;
  Tensor gradient_slot(const Segment& segment) const;
  size_t master_bytes() const;  // on the device
  // Where the state of what is divided lives: the host's memory or the device's.
  core::Allocator& state_memory() const;
  size_t weight_bytes() const;  // of everything kernels multiply by, slots counted; 0 in fp32 without slots
  // Elements [begin, begin + count) of the flat order that this rank keeps the state of and updates, in order.
  struct Stretch {
    int64_t begin = 0, count = 0;
  };
  std::vector<Stretch> owned() const;
  Stretch own_part(const Slot& slot) const;  // of one tensor; may be empty

  // total (1) f32 = the sum of the squares of all gradients. Reads those whose kernels did not leave theirs
  // (autograd::Gradient). `kernels` is the table of the store's device.
  void sum_gradient_squares(const kernels::KernelTable& kernels, core::Stream& stream, const Tensor& total) const;
  // After gradients were changed by others than the ops: sums that were left are no longer theirs.
  void forget_squares();

  // Draws every tensor from its init, keyed by (seed, name, element of the global tensor): the same on any device and
  // layout.
  void initialize(uint64_t seed);
  void draw(Slot& slot, uint64_t seed);  // one of them
  // Adapters take part in products (they do from the start), or the model is the one without them.
  void use_adapters(bool are_on);
  // Sets one tensor from host values (count = its elements), rounding into the compute copy.
  void set(Slot& slot, const std::vector<float>& values);
  // The weight of a tensor that stands apart.
  void set_blocks(Slot& slot, std::shared_ptr<const core::WeightBlocks> blocks);
  // The same from the whole global tensor: takes what its boxes hold.
  void set_global(Slot& slot, const std::vector<float>& values);
  std::vector<float> values_of(const Slot& slot) const;  // master where there is one, else the weight, dequantized
  std::vector<float> gradient_of(const Slot& slot) const;
  // Rounds all masters that are here into the compute copy (after an update that did not) and bumps the versions.
  void refresh_compute();
  void bump_versions();
  // Forgets this step's gradients: the next backward overwrites them.
  void begin_step();

 private:
  bool has_short_gradient(const Slot& slot) const;
  bool is_frozen(const Slot& slot) const { return options_.trains && !slot.info.trainable; }
  bool has_own_vector(const Slot& slot) const;
  void bind_adapters();
  void lay_out();
  void begin_segment(const Slot& slot);
  void end_segment();
  struct Sizes {  // of the buffers, in elements
    int64_t masters = 0, master_pieces = 0, weights = 0, gradients = 0, gradient_pieces = 0;
  };
  Sizes place_segments();
  void allocate();
  void bind(size_t index);

  StoreOptions options_;
  std::vector<Slot> slots_;
  std::unordered_map<std::string, size_t> index_;
  std::vector<size_t> order_;  // slots by offset
  std::vector<Range> ranges_;
  int64_t num_elements_ = 0, num_trainable_ = 0;
  int64_t num_gradients_ = 0, num_short_gradients_ = 0;  // of whole gradients in each format
  bool last_is_short_ = false;                           // of what was laid down last
  std::vector<Segment> segments_;
  bool divides_masters_ = false;
  Tensor master_, compute_, grad_, short_grad_;
  Tensor master_pieces_, weight_slots_, gradient_slots_, gradient_pieces_;  // where they are divided
  Tensor squares_;                                                          // (slots) f32, or empty
  Tensor vectors_;  // f32 masters of norms and biases that have none otherwise
};

}  // namespace sinter::models
