// How the flat buffers of a store are divided among ranks that would hold copies of them (ZeRO), and streamed where a
// device does not hold all of them (offload).
//
// A segment is what is divided at a time: the matrices of a block, or its experts. It is cut into equal pieces of whole
// 64 elements, the last ones padded, one for each rank. Vectors and routers, which ops read in f32, are few: all ranks
// keep them whole.
//
// Divided gradients and weights are whole only while their block is at work, in slots: the segments of one block (a
// unit) stand in places that neighbours do not share, even blocks at the bottom of the buffer and odd ones at its top,
// so that one block can be fetched, or reduced, while its neighbour is computed.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "spec/parameters.h"

namespace sinter::models {

struct Division {
  bool states = false;          // master weights and what the optimizer keeps (ZeRO-1)
  bool gradients = false;       // (ZeRO-2)
  bool weights = false;         // (ZeRO-3)
  int64_t parts = 1, part = 0;  // of all tensors but experts
  int64_t expert_parts = 1, expert_part = 0;
  // Layers from this one on are one unit: the head and the extra heads, which run inside of it.
  int64_t head_layer = std::numeric_limits<int64_t>::max();
  // What of it lives in the host's memory (offload): masters and optimizer state, gradients, weights.
  bool host_states = false, host_gradients = false, host_weights = false;
  bool keeps_ends = false;  // embeddings and head share a table, or pipelines use them out of turn: slots of their own

  bool is_on() const { return states || gradients || weights; }
  bool divides(const spec::ParameterSpec& info) const {
    return is_on() && info.decays && info.role != spec::ParameterRole::router &&
           info.role != spec::ParameterRole::adapter;
  }
  int64_t unit_of(int64_t layer) const { return layer < head_layer ? layer : head_layer; }
};

// Neighbours in the flat order that are divided alike.
struct Segment {
  int64_t begin = 0, end = 0;  // in the flat order
  int64_t layer = -1, unit = -1;
  bool has_experts = false, is_divided = false, is_frozen = false;
  int64_t parts = 1, part = 0;
  // Where it begins in the buffers of masters, weights and gradients: all of it, or this rank's piece.
  int64_t master_at = 0, weight_at = 0, gradient_at = 0;
  int64_t slot_at = 0;  // in the slots, when divided: all of it

  int64_t count() const { return end - begin; }
  int64_t piece() const { return count() / parts; }
  int64_t own_begin() const { return begin + part * piece(); }
  int64_t own_end() const { return own_begin() + piece(); }
};

// Sets the places in slots of all divided segments; returns the elements of the buffer.
int64_t place_in_slots(std::vector<Segment>& segments, const Division& division);

}  // namespace sinter::models
